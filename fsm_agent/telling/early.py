"""Why a run came to its end without the model's own word that the work is done."""

from __future__ import annotations

from fsm_agent.run.limits import Limits

LIMITS = {
    "turns": "the limit on turns",
    "tokens": "the limit on tokens",
    "tool_calls": "the limit on tool calls",
    "wall_time": "the limit on working time",
    "money": "the limit on money",
}
_OTHERS = {
    "errors": "finished early: every call failed, turn after turn",
    "loop": "finished early: it did the same again and again",
    "progress": "finished early: turn after turn brought next to nothing new",
    "critic": "answered by the critic",
    "": "finished early",
}


def early(reason: str, limits: Limits | None = None) -> str:
    """'finished early: the limit on turns was reached', for a `Result.reason`."""
    if reason in LIMITS:
        return f"finished early: {LIMITS[reason]} was reached"
    if reason == "repairs":
        count = limits.repairs if limits else "too many"
        return f"rescued: {count} replies in a row broke the protocol"
    return _OTHERS.get(reason) or f"finished early: {reason.replace('_', ' ')}"


def turns(count: int) -> str:
    """'1 turn', '2 turns'."""
    return f"{count} turn" if count == 1 else f"{count} turns"
