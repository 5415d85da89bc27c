"""How much a run may use before it is made to finish."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from fsm_agent.errors import UsageError

MOST = 10**15  # of anything that is counted; a store's numbers end at 2**64
MAX_MONEY = 1e9  # of one run
_LEAST = {"turns": 1, "tokens": 1, "tool_calls": 0, "errors": 1, "failures": 1, "repairs": 0,
          "repeats": 2, "final_turns": 0}  # fmt: skip
OnExhausted = Literal["finalise", "error"]


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
    on_exhausted: OnExhausted = "finalise"
    money: float | None = None  # in the currency of the agent's `prices`; None: no limit

    @property
    def micros(self) -> int | None:
        """The money limit in millionths, as it is counted."""
        return None if self.money is None else int(self.money * 1_000_000)


def check_limits(limits: Limits) -> None:
    """Raises UsageError for a limit that could not be kept, or not be read again once stored."""
    for name, least in _LEAST.items():
        value = getattr(limits, name)
        if not (type(value) is int and least <= value <= MOST):
            raise UsageError(f"Limits({name}={value!r}) is no count. Use {least} to {MOST}.")
    if not (_is_number(limits.wall_s) and limits.wall_s > 0):
        raise UsageError(f"Limits(wall_s={limits.wall_s!r}) is no time. Use seconds, more than 0.")
    money = limits.money
    if money is not None and not (_is_number(money) and 0 <= money <= MAX_MONEY):
        raise UsageError(f"Limits(money={money!r}) is no amount. Use 0 to {MAX_MONEY:g}.")
    if limits.on_exhausted not in get_args(OnExhausted):
        known = " or ".join(map(repr, get_args(OnExhausted)))
        raise UsageError(f"Limits(on_exhausted={limits.on_exhausted!r}): use {known}.")


def _is_number(value: object) -> bool:
    # A float of any size can be stored (infinity is no limit at all), a whole number cannot.
    return type(value) is float or (type(value) is int and value <= MOST)
