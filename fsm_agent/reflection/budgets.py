"""Whether a run has used up what it may use."""

from __future__ import annotations

from collections.abc import Iterator

from fsm_agent.run.delta import FailureReason
from fsm_agent.run.record import Run

from .scene import Scene
from .verdict import Continue, Finalise, Stop, Verdict


def check(run: Run, scene: Scene) -> Verdict:
    """Finalise or Stop if a budget ends before the next turn, as the run's limits say.

    What the next model call would set aside counts: the check comes before the spending. Too many
    errors in a row always stop: what only fails cannot finish either.
    """
    limits = run.limits
    if run.errors >= limits.errors:
        return Stop("errors", f"Every call failed in {run.errors} turns in a row.")
    for why, text in _ended(run, scene):
        if limits.on_exhausted == "error":
            return Stop(why, text)
        return Finalise(why, text)
    return Continue()


def worked_s(run: Run, now_ms: int) -> float:
    """Seconds since a worker took the run up, without those in which nobody worked on it."""
    return max(0, now_ms - run.begun_ms - run.waited_ms) / 1000 if run.begun_ms else 0.0


def _ended(run: Run, scene: Scene) -> Iterator[tuple[FailureReason, str]]:
    limits = run.limits
    if run.turns >= limits.turns:
        yield "turns", f"The limit of {limits.turns} turns is reached."
    if run.spent_tokens + scene.next_reserve_tokens > limits.tokens:
        yield "tokens", f"{run.spent_tokens} of {limits.tokens} tokens are spent."
    most = limits.micros
    if most is not None and run.spent_micros + scene.next_reserve_micros > most:
        spent = run.spent_micros / 1_000_000
        yield "money", f"{spent:.4g} of {limits.money:g} in money is spent."
    if run.tool_calls >= limits.tool_calls:
        yield "tool_calls", f"The limit of {limits.tool_calls} tool calls is reached."
    if worked_s(run, scene.now_ms) >= limits.wall_s:
        yield "wall_time", f"The limit of {limits.wall_s:g} s of working time is reached."
