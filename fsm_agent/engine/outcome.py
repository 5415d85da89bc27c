"""What a handler returns: an arrow with its facts, or a wait."""

from __future__ import annotations

from typing import Literal

import msgspec

from fsm_agent.run.delta import AnyDelta
from fsm_agent.run.state import Trigger


class Move(msgspec.Struct, frozen=True):
    """Take this arrow, with these facts."""

    trigger: Trigger
    deltas: tuple[AnyDelta, ...] = ()


class Park(msgspec.Struct, frozen=True):
    """Give the run back; a worker looks at it again at `wake_ms`, or when something comes."""

    status: Literal["waiting", "sleeping"]
    wake_ms: int | None = None


Outcome = Move | Park
