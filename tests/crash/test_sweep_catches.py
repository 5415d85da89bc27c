"""The kit proves itself: it catches each wrong runtime, and a sweep that strikes nothing."""

from __future__ import annotations

import os
from typing import Any

import pytest

from fsm_agent.errors import UsageError
from fsm_agent.testing import wrong
from fsm_agent.testing.crash import Plan, Report, Scenario, SweepFailed, points, sweep
from fsm_agent.testing.crash.case import parse
from tests.crash.desk import DeskModel, make_desk

SCENARIO = Scenario(make_agent=make_desk, make_model=DeskModel, task="Refund order A7.")


def swept(line: str) -> Report:
    case, _ = parse(line)
    return sweep(SCENARIO, plan=Plan(at=("transitions", "tools", "store_ops"), replay=case))


# The runtime's mistake, where it shows, and what the judges say then.
MISTAKES = [
    ("no intent", "effect refund#1:before=kill", "refund is unsafe and was started twice"),
    ("key per attempt", "effect hold#1:before=kill", "hold was sent under 2 different keys"),
    ("no op id", "wire commit#3=lost_reply_after_apply", "failed: Store"),
    ("token ignored", "wire commit#3=late_request", "failed: Store"),
]


@pytest.mark.parametrize(("mistake", "line", "words"), MISTAKES)
def test_a_wrong_runtime_is_caught(mistake: str, line: str, words: str) -> None:
    with wrong.WRONG[mistake]():
        report = swept(line)

    assert report.never_reached == []
    assert not report.is_ok
    (outcome,) = report.outcomes
    assert any(words in problem.text for problem in outcome.problems), outcome
    with pytest.raises(AssertionError, match="replay: "):
        report.passed()


@pytest.mark.parametrize(("mistake", "line", "words"), MISTAKES)
def test_the_right_runtime_is_not(mistake: str, line: str, words: str) -> None:
    report = swept(line)

    report.passed()


def test_every_wrong_runtime_is_tried() -> None:
    assert {mistake for mistake, _, _ in MISTAKES} == set(wrong.WRONG)


def test_the_answer_alone_would_have_passed_a_runtime_without_intents() -> None:
    with wrong.no_intent():
        report = swept("effect refund#1:before=kill")

    report.same_answer()
    with pytest.raises(AssertionError, match=r"refund \(unsafe\) took effect 2 times"):
        report.effect_once("refund")


def test_a_point_that_is_never_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points.Points, "pass_", _only_traces)

    report = sweep(SCENARIO, only=lambda name: name == "create#1:before")

    assert report.never_reached == ["create#1:before=kill"]
    assert not report.is_ok
    with pytest.raises(AssertionError, match="never reached"):
        report.reached_all_points()


def _only_traces(self: Any, name: str, number: int, moment: str) -> None:
    """A hook that forgets to kill."""
    os.write(self._trace, f"{name}#{number}:{moment}\n".encode())


def test_a_sweep_that_would_test_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no point to strike"):
        sweep(SCENARIO, only=lambda name: False)


def test_an_agent_that_fails_by_itself_is_no_base_for_a_sweep() -> None:
    class Broken(DeskModel):
        async def step(self, request: Any, on_piece: Any) -> Any:
            raise UsageError("no such model")

    with pytest.raises(SweepFailed, match="no such model"):
        sweep(Scenario(make_agent=make_desk, make_model=Broken, task="Refund order A7."))


async def test_a_sweep_inside_an_event_loop_is_refused() -> None:
    with pytest.raises(UsageError, match="event loop"):
        sweep(SCENARIO)


def test_the_words_of_a_replay_line_lead_back_to_their_case() -> None:
    for line in (
        "tool refund#1:after=kill",
        "commit#3:before=kill; claim#1:after=kill",
        "wire commit#3+=READONLY",
    ):
        assert str(parse(line)[0]) == line
    assert parse("seed=41; commit#1:after=kill")[1] == 41


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "names no fault"),
        ("refund=kill", "not POINT=FAULT"),
        ("tool refund#1=kill", "needs :before or :after"),
        ("wire commit#1=lost", "no fault 'lost'"),
        ("tool refund#1:after=OOM", "strikes requests to the store"),
        ("seed=x; commit#1:after=kill", "seed is not a number"),
    ],
)
def test_a_replay_line_that_says_nothing_is_refused(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("?", r"\?")):
        parse(line)
