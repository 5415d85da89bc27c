"""What a handler returns: an arrow with its facts, or a wait."""

from __future__ import annotations

import msgspec

from checkpoints.model import ParkedStatus
from fsm_agent.run.delta import AnyDelta
from fsm_agent.run.state import Trigger


class Move(msgspec.Struct, frozen=True):
    """Take this arrow, with these facts."""

    trigger: Trigger
    deltas: tuple[AnyDelta, ...] = ()


class Park(msgspec.Struct, frozen=True):
    """Give the run back; a worker looks at it again at `wake_ms`, or when something comes."""

    status: ParkedStatus
    wake_ms: int | None = None


Outcome = Move | Park
