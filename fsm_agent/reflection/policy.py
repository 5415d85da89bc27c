"""The order in which REFLECT asks its policies; the first that has something to say decides."""

from __future__ import annotations

from typing import TypeVar

from fsm_agent.run.delta import ModelFailed
from fsm_agent.run.record import Run

from . import budgets, loops, repair
from .verdict import Continue, Finalise, Finish, Stop, Verdict


def reflect(
    run: Run,
    now_ms: int,
    *,
    allowed: tuple[str, ...],
    may_rescue: bool,
    next_reserve_tokens: int,
) -> Verdict:
    """What follows from the turn that `run` has just made. Pure: equal input, equal verdict.

    `allowed` are the labels that the model may use, for the words of a correction.
    """
    if run.final_turns_left is not None:
        return _in_finalisation(run, now_ms, allowed)
    repaired = repair.check(run, allowed, may_rescue=may_rescue)
    if isinstance(repaired, (Stop, Finish)):
        return repaired
    spent = budgets.check(run, now_ms, next_reserve_tokens=next_reserve_tokens)
    if not isinstance(spent, Continue):
        return within_limits(run, spent)
    if isinstance(run.last, ModelFailed):
        return Continue()
    looped = loops.check(run)
    if isinstance(looped, (Finalise, Stop)) or isinstance(repaired, Continue):
        return within_limits(run, looped)
    return repaired


V = TypeVar("V", bound=Verdict)


def within_limits(run: Run, verdict: V) -> V | Finish:
    """The verdict, or a fallback at once where no turn is allowed for a forced finish."""
    if isinstance(verdict, Finalise) and run.limits.final_turns < 1:
        return Finish(_fallback(run, verdict.why), is_completed=False, why=verdict.why)
    return verdict


def _in_finalisation(run: Run, now_ms: int, allowed: tuple[str, ...]) -> Verdict:
    """Bounded: a correction while turns are left, then an honest fallback."""
    if run.final_turns_left:
        told = repair.check(run, allowed, may_rescue=False)
        if not isinstance(told, (Stop, Finish)):
            is_out = budgets.check(run, now_ms, next_reserve_tokens=0)
            return is_out if isinstance(is_out, Stop) else told
    return Finish(_fallback(run, run.final_why), is_completed=False, why=run.final_why)


def _fallback(run: Run, reason: str) -> str:
    why = reason.replace("_", " ")
    text = getattr(run.last, "text", "").strip()
    if text:
        return f"{text}\n\n[Stopped by the limit on {why}; this was not confirmed as an answer.]"
    return f"[No answer: stopped by the limit on {why}, and the model gave no closing text.]"
