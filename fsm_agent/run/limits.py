"""How much a run may use before it is made to finish."""

from __future__ import annotations

from typing import Literal

import msgspec


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """Budgets of one run. They are stored with it, so a resumed run keeps those it began with."""

    turns: int = 40  # model replies, repairs included
    tokens: int = 400_000  # prompt and completion together, as billed or reserved
    tool_calls: int = 200
    wall_s: float = 3600.0  # while somebody works on it; waiting for a person does not count
    errors: int = 4  # turns in a row in which every call failed
    failures: int = 8  # model calls in a row without a reply; then the run is parked, not ended
    repairs: int = 3  # replies in a row that broke the protocol
    repeats: int = 3  # the same step this often in a row is a loop
    final_turns: int = 2  # replies allowed for a forced finish
    on_exhausted: Literal["finalise", "error"] = "finalise"
    money: float | None = None  # in the currency of the agent's `prices`; None: no limit

    @property
    def micros(self) -> int | None:
        """The money limit in millionths, as it is counted."""
        return None if self.money is None else int(self.money * 1_000_000)
