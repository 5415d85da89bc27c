"""What REFLECT may conclude: a closed union of plain values."""

from __future__ import annotations

import msgspec

from fsm_agent.run.delta import FailureReason


class Continue(msgspec.Struct, frozen=True):
    """Go on with the next turn."""


class Repair(msgspec.Struct, frozen=True):
    """Go on, and tell the model what was wrong with its reply."""

    text: str


class Warn(msgspec.Struct, frozen=True):
    """Go on, and tell the model to change its course."""

    text: str


class Steer(msgspec.Struct, frozen=True):
    """Go on, tell the model what to leave, and do not make the barred calls again."""

    text: str
    barred: tuple[str, ...] = ()  # digests of calls, see run.step.call_digest


class Finalise(msgspec.Struct, frozen=True):
    """Allow only the terminal label from here on."""

    why: FailureReason
    text: str


class Finish(msgspec.Struct, frozen=True):
    """End with this text. Not completed: a rescued draft or an honest fallback."""

    text: str
    is_completed: bool
    why: str  # what made it end: a FailureReason


class Stop(msgspec.Struct, frozen=True):
    """End without a result."""

    reason: FailureReason
    message: str


Verdict = Continue | Repair | Warn | Steer | Finalise | Finish | Stop
