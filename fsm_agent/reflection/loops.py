"""Whether a run goes in circles: steps that come round again and bring nothing new."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.run.delta import ModelFailed
from fsm_agent.run.record import Run
from fsm_agent.run.step import Step, call_digest

from .scene import Scene
from .verdict import Continue, Finalise, Steer, Stop, Verdict, Warn

MAX_PERIOD = 8  # steps of one round
STRAYED_ROUNDS = 1.5  # of steps in no order: from here on it is worth a warning


def check(run: Run, scene: Scene) -> Verdict:
    """Warn one round before `limits.repeats`, then Finalise or Stop as the run's limits say.

    A step is what was called and what came of it, or what was said: a job that is polled and
    answers something else each time is no loop. With four rounds or more allowed, the calls of
    the loop are barred a round before the end.
    """
    if isinstance(run.last, ModelFailed):
        return Continue()
    limit, assessed = run.limits.repeats, scene.assessed
    if assessed and assessed.rounds < 2 <= limit:
        return Continue()  # its look at the steps was the same
    steps = counted(run, scene)
    rounds, shape = turning(steps)
    if rounds >= limit:
        text = f"{shape} {rounds} times in a row."
        if run.limits.on_exhausted == "error":
            return Stop("loop", text)
        return Finalise("loop", text)
    text = (
        f"{shape} {max(2, rounds)} times in a row, with nothing new. "
        "Do something else, or answer with what you have."
    )
    if rounds == limit - 1 and rounds >= 3:
        barred = calls_of(steps[-1:])
        return Steer(f"{text} The same call is not made again.", barred) if barred else Warn(text)
    if rounds >= 2 and rounds >= limit - 2:
        return Warn(text)
    return Continue()


def counted(run: Run, scene: Scene) -> tuple[Step, ...]:
    """The steps that may make a loop: not those that only call tools which may repeat."""
    if not scene.may_repeat:
        return run.steps
    return tuple(step for step in run.steps if not is_free(step, scene))


def is_free(step: Step, scene: Scene) -> bool:
    """Whether all that the step does is call tools that may repeat."""
    calls = step.reply.calls
    return bool(calls) and all(call.name in scene.may_repeat for call in calls)


def turning(steps: Sequence[Step]) -> tuple[int, str]:
    """How often the steps at the end have come round, and what that looks like in words."""
    if not is_known(steps):
        return 1, ""  # the usual case: a step that is new
    rounds, period = max(
        (_tail_rounds(steps, period), -period) for period in range(1, MAX_PERIOD + 1)
    )
    strayed = _strayed(steps)
    if strayed >= STRAYED_ROUNDS and strayed + 1 > rounds:
        return int(strayed) + 1, "The same few steps were taken in changing order"
    if rounds < 2:
        return 1, ""
    return rounds, _SHAPES.get(-period, f"The same {-period} steps were taken in turn")


def is_known(steps: Sequence[Step]) -> bool:
    """Whether the last step brings nothing that an earlier one had not."""
    if not steps:
        return False
    last = steps[-1]
    return any(last.is_like(step) for step in steps[:-1])


_SHAPES = {1: "The same step was taken", 2: "The same two steps were taken in turn"}


def calls_of(steps: Sequence[Step]) -> tuple[str, ...]:
    """Digests of the calls of these steps."""
    return tuple(call_digest(c.name, c.arguments) for step in steps for c in step.reply.calls)


def _tail_rounds(steps: Sequence[Step], period: int) -> int:
    """How often the last `period` steps stand at the end, one round after the other."""
    count = 0
    for index in range(len(steps) - 1, -1, -1):
        if index + period >= len(steps):
            continue
        if not steps[index].is_like(steps[index + period]):
            break
        count += 1
    return 1 + count // period if steps else 0


def _strayed(steps: Sequence[Step]) -> float:
    """Rounds that the last steps make, in whatever order, since one of them was the first time."""
    stale: list[Step] = []
    for index in range(len(steps) - 1, 0, -1):
        if not any(steps[index].is_like(before) for before in steps[:index]):
            break
        stale.append(steps[index])
    kinds: list[Step] = []
    for step in stale:
        if not any(step.is_like(kind) for kind in kinds):
            kinds.append(step)
    # Two or three steps that were taken before are a second look; more of them are a habit.
    return len(stale) / len(kinds) if len(stale) >= 4 and len(kinds) > 1 else 0.0
