"""How far each turn gets, and what follows if turn after turn gets nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fsm_agent.run.delta import Assessed, ModelFailed
from fsm_agent.run.record import Run
from fsm_agent.run.step import Sketch, Step, likeness

from .loops import calls_of, counted, is_free, turning
from .scene import Scene
from .verdict import Continue, Finalise, Steer, Stop, Verdict, Warn

COMPARED = 12  # steps that results and texts are compared with
CHANGED = 0.5  # information of a result that is not the same, however alike

_SURE = re.compile(
    r"(?<!not )(?<!n't )(?<!less )\b(?:confident|certain(?:ly)?|confirmed|found it|solved"
    r"|works now|now (?:works|passes)|succeeded|done with|the cause is|clearly)\b"
    r"|(?<![不未没])(?:确定|确认)|已解决|找到了|成功|搞定|清楚了",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:not (?:sure|confident|certain|confirmed)|unsure|stuck|no progress|no idea"
    r"|don'?t know|do not know|uncertain|confused|try(?:ing)? again"
    r"|still (?:fails|failing|nothing)|can(?:no|')?t find|same (?:error|result))\b"
    r"|不确定|不清楚|不知道|卡住|没有进展|无法|再试|仍然失败|找不到",
    re.IGNORECASE,
)


def assess(run: Run, scene: Scene) -> Assessed | None:
    """The score of the turn just made; None where there is none: a model failure, or a turn that
    only calls tools that may repeat."""
    if not run.steps or isinstance(run.last, ModelFailed) or is_free(run.steps[-1], scene):
        return None
    rule, steps = scene.progress, counted(run, scene)
    now, before = steps[-1], steps[:-1]
    parts = (
        _tools(steps),
        _arguments(now, before),
        _information(now, before[-COMPARED:]),
        _confidence(now.reply.text),
        _retries(now, before),
    )
    weights = (rule.tools, rule.arguments, rule.information, rule.confidence, rule.retries)
    score = sum(w * p for w, p in zip(weights, parts, strict=True)) / sum(weights)
    window = (*run.scores[1 - rule.window or len(run.scores) :], _percent(score))
    mean = sum(window) / len(window)
    is_low = len(window) >= rule.window and mean < rule.threshold * 100
    return Assessed(
        score=_percent(score),
        mean=round(mean),
        parts=tuple(map(_percent, parts)),
        low=run.low + 1 if is_low else 0,
        rounds=turning(steps)[0],
    )


def check(run: Run, scene: Scene) -> Verdict:
    """The ladder: Warn, then Steer, then Finalise or Stop, each after so many low turns."""
    rule, assessed = scene.progress, scene.assessed
    if assessed is None or not assessed.low:
        return Continue()
    text = f"The last {assessed.low + rule.window - 1} turns brought next to nothing new."
    if rule.stop and assessed.low >= rule.stop:
        if run.limits.on_exhausted == "error":
            return Stop("progress", text)
        return Finalise("progress", text)
    if assessed.low == rule.steer:
        steps = counted(run, scene)[-(rule.window + rule.steer) :]
        stale = [step for n, step in enumerate(steps) if _is_stale(step, steps[:n])]
        advice = "Take another way, ask the user, or answer with what you have."
        if barred := tuple(dict.fromkeys(calls_of(stale))):
            return Steer(f"{text} Calls that brought the same are not made again. {advice}", barred)
        return Steer(f"{text} {advice}")
    if assessed.low == rule.warn:
        return Warn(f"{text} Change what you do, or answer with what you have.")
    return Continue()


def _is_stale(step: Step, before: Sequence[Step]) -> bool:
    return bool(step.did) and any(step.is_like(other) for other in before)


def _tools(steps: Sequence[Step]) -> float:
    """1 for two different tools or more of late, or where there was no call at all."""
    used = {call.name for step in steps[-COMPARED:] for call in step.reply.calls}
    return min(1.0, len(used) / 2) if used else 1.0


def _arguments(now: Step, before: Sequence[Step]) -> float:
    """The part of the calls that were not made before; of a text, how far it is a new one."""
    if not now.did:
        texts = [step.sketch for step in before[-COMPARED:] if not step.reply.calls]
        return _newness(now.sketch, texts)
    new = [not any(each in step.asked for step in before) for each in now.asked]
    return sum(new) / len(new)


def _information(now: Step, before: Sequence[Step]) -> float:
    """How much the results say that no result said before; a text counts as its own result."""
    if not now.did:
        same = any(now.is_like(step) for step in before)
        texts = [step.sketch for step in before if not step.reply.calls]
        return 0.0 if same else max(CHANGED, _newness(now.sketch, texts))
    earlier = [did for step in before for did in step.did]
    said = {did.outcome for did in earlier}
    new = [
        0.0
        if did.outcome in said
        else max(CHANGED, _newness(did.sketch, (other.sketch for other in earlier)))
        for did in now.did
    ]
    return sum(new) / len(new)


def _newness(one: Sketch, others: Iterable[Sketch]) -> float:
    return 1.0 - max((likeness(one, other) for other in others), default=0.0)


def _confidence(text: str) -> float:
    sure, unsure = bool(_SURE.search(text[:2_000])), bool(_UNSURE.search(text[:2_000]))
    return 0.5 + (sure - unsure) / 2


def _retries(now: Step, before: Sequence[Step]) -> float:
    """0 for a reply that broke the protocol, or a call that has failed before as it is."""
    if now.reply.violation:
        return 0.0
    return 0.0 if any(each in step.failed for step in before for each in now.asked) else 1.0


def _percent(part: float) -> int:
    return round(100 * part)
