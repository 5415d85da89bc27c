"""How REFLECT asks its policies: the gravest verdict decides, the earlier policy among equals."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from fsm_agent.errors import BadAgent
from fsm_agent.run.record import Run

from . import budgets, loops, progress, repair
from .scene import Policy, Scene
from .verdict import Continue, Finalise, Finish, Repair, Steer, Stop, Verdict, Warn

POLICIES: tuple[Policy, ...] = (repair.check, budgets.check, loops.check, progress.check)
"""What an agent is held to unless it says otherwise."""

_GRAVITY: dict[type, int] = {
    Stop: 4, Finish: 4, Finalise: 4, Repair: 3, Steer: 2, Warn: 1, Continue: 0,
}  # fmt: skip


def reflect(run: Run, scene: Scene, policies: tuple[Policy, ...] = POLICIES) -> Verdict:
    """What follows from the turn that `run` has just made. Pure: equal input, equal verdict.

    Within a forced finish only repair and budgets are asked, whatever the agent's list. Raises
    BadAgent for a policy that returns no verdict.
    """
    if run.final_turns_left is not None:
        return _in_finalisation(run, scene)
    verdict: Verdict = Continue()
    for policy in policies:
        said = policy(run, scene)
        if type(said) not in _GRAVITY:
            name = getattr(policy, "__qualname__", repr(policy))
            raise BadAgent(
                f"policy {name} returned {said!r}. Return a verdict of "
                "fsm_agent.reflection.verdict, such as Continue()."
            )
        if _GRAVITY[type(said)] > _GRAVITY[type(verdict)]:
            verdict = said
    return within_limits(run, verdict)


V = TypeVar("V", bound=Verdict)


def within_limits(run: Run, verdict: V) -> V | Finish:
    """The verdict, or a fallback at once where no turn is allowed for a forced finish."""
    if isinstance(verdict, Finalise) and run.limits.final_turns < 1:
        return Finish(fallback(run, verdict.why), is_completed=False, why=verdict.why)
    return verdict


def _in_finalisation(run: Run, scene: Scene) -> Verdict:
    """Bounded: a correction while turns are left, then an honest fallback."""
    if run.final_turns_left:
        told = repair.check(run, replace(scene, may_rescue=False))
        if not isinstance(told, (Stop, Finish)):
            bare = replace(scene, next_reserve_tokens=0, next_reserve_micros=0)
            is_out = budgets.check(run, bare)
            return is_out if isinstance(is_out, Stop) else told
    return Finish(fallback(run, run.final_why), is_completed=False, why=run.final_why)


def fallback(run: Run, reason: str) -> str:
    """An honest text for a run that has no answer of its own."""
    why = reason.replace("_", " ")
    text = getattr(run.last, "text", "").strip()
    if text:
        return f"{text}\n\n[Stopped by the limit on {why}; this was not confirmed as an answer.]"
    return f"[No answer: stopped by the limit on {why}, and the model gave no closing text.]"
