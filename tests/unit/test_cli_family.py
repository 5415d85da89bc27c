"""A run's view while child runs work for it: each is told as a story of its own."""

from __future__ import annotations

import io

from fsm_agent.cli.views.family import FamilyView
from fsm_agent.cli.views.plain import PlainView
from fsm_agent.run.content import Usage
from fsm_agent.run.delta import AnyDelta, Began, Created, Replied
from fsm_agent.run.event import EntryEvent, LiveEvent
from fsm_agent.run.limits import Limits
from fsm_agent.run.record import Record
from fsm_agent.run.state import State, Trigger


def entry(run_id: str, seq: int, trigger: Trigger | None, *facts: AnyDelta) -> EntryEvent:
    return EntryEvent(run_id, seq, State.THINK, Record(trigger, 1_000 + seq, facts))


def replied(text: str) -> Replied:
    return Replied("THINK", text, Usage(1, 1))


def test_attempts_of_runs_side_by_side_are_not_taken_for_one_that_failed() -> None:
    out = io.StringIO()
    view = FamilyView(PlainView(out))
    view.recall(entry("r-main", 1, None, Created("a", "go", Limits())))

    for child in ("c-1111111111", "c-2222222222"):
        view.hear(entry(child, 1, None, Created("b", "part", Limits())))
        view.hear(entry(child, 2, Trigger.BEGAN, Began(1, 10)))
    view.hear(LiveEvent("c-1111111111", "thinking", "hm", 1))
    view.hear(entry("r-main", 2, Trigger.BEGAN, Began(1, 10)))
    for run_id in ("c-2222222222", "c-1111111111", "r-main"):
        view.hear(entry(run_id, 3, Trigger.REPLIED, replied(f"of {run_id} .")))

    told = out.getvalue()
    assert [text for text in told.split() if text.startswith(("c-", "r-"))] == [
        "c-222222:", "c-2222222222", "c-111111:", "c-1111111111", "r-main",
    ]  # fmt: skip
    assert "void" not in told
    assert "hm" not in told
