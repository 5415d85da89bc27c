"""Whether a run goes in circles: the same step again and again, or two steps in turn."""

from __future__ import annotations

from fsm_agent.run.record import Run

from .verdict import Continue, Finalise, Stop, Verdict, Warn


def check(run: Run) -> Verdict:
    """Warn one round before the limit, then Finalise or Stop as the run's limits say."""
    rounds, shape = _rounds(run.steps)
    if rounds >= run.limits.repeats:
        text = f"{shape} {rounds} times in a row."
        if run.limits.on_exhausted == "error":
            return Stop("loop", text)
        return Finalise("loop", text)
    if rounds == run.limits.repeats - 1 and rounds >= 2:
        return Warn(
            f"{shape} {rounds} times in a row, with nothing new. "
            "Do something else, or answer with what you have."
        )
    return Continue()


def _rounds(steps: tuple[str, ...]) -> tuple[int, str]:
    same = _tail_repeats(steps, 1)
    pair = _tail_repeats(steps, 2)
    if pair > same and len(set(steps[-2:])) == 2:
        return pair, "The same two steps were taken in turn"
    return same, "The same step was taken"


def _tail_repeats(steps: tuple[str, ...], period: int) -> int:
    """How often the last `period` steps stand at the end, one after the other."""
    tail, count = steps[-period:], 0
    while tail and steps[len(steps) - (count + 1) * period : len(steps) - count * period] == tail:
        count += 1
    return count
