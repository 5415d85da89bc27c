"""SIGKILL at every write, every tool boundary and after every effect of a three-tool run."""

from __future__ import annotations

import pytest

from fsm_agent.testing.crash import Outcome, Report, Scenario, sweep
from tests.crash.desk import DeskModel, make_desk


@pytest.fixture(scope="module")
def report() -> Report:
    scenario = Scenario(
        make_agent=make_desk,
        make_model=DeskModel,
        task="Refund order A7.",
    )
    return sweep(scenario)


def faults(outcomes: list[Outcome], is_wrong: object) -> list[str]:
    return [f"{o.killed_at}: {o}" for o in outcomes if is_wrong(o)]  # type: ignore[operator]


def test_the_points_are_those_of_a_whole_run(report: Report) -> None:
    names = {point.split("#")[0] for point in report.points}

    assert {"create", "claim", "commit", "decide", "put_blob"} <= names
    assert {"tool look_up", "tool hold", "tool refund"} <= names
    assert {"effect hold", "effect refund"} <= names
    commits = [point for point in report.points if point.startswith("commit#")]
    assert len(commits) >= 14  # before and after each of them
    assert len(report.points) == len(set(report.points))


def test_no_point_was_skipped(report: Report) -> None:
    assert report.never_reached == []
    assert len(report.outcomes) == len(report.points)


def test_every_run_ends_with_the_answer_of_the_undisturbed_one(report: Report) -> None:
    wanted = report.undisturbed.result.answer

    assert wanted == "Order A7 was refunded."
    assert faults(report.outcomes, lambda o: o.result.answer != wanted) == []
    assert faults(report.outcomes, lambda o: o.result.status != "done") == []


def test_the_keyed_effect_happens_once_per_key(report: Report) -> None:
    assert report.undisturbed.ledger.raw("hold") == 1
    assert faults(report.outcomes, lambda o: o.ledger.by_key("hold") != 1) == []


def test_the_unsafe_effect_happens_once(report: Report) -> None:
    # At most once by the runtime's own doing; exactly once because the person tells the truth.
    assert faults(report.outcomes, lambda o: o.ledger.raw("refund") != 1) == []


def test_a_person_is_asked_exactly_where_the_runtime_cannot_know(report: Report) -> None:
    asked = {o.killed_at for o in report.outcomes if o.asked_in_doubt}

    assert faults(report.outcomes, lambda o: set(o.asked_in_doubt) > {"refund"}) == []
    gap = {"tool refund#1:before", "effect refund#1:before", "tool refund#1:after"}
    gap |= {"put_blob#1:before", "put_blob#1:after"}  # the one await between effect and commit
    assert gap <= asked
    # Besides: the commits between which the intent is on record and the result is not.
    others = asked - gap
    assert all(point.startswith("commit#") for point in others)
    assert len(others) == 2


def test_every_call_has_one_result_on_record(report: Report) -> None:
    assert faults(report.outcomes, lambda o: set(o.calls.values()) != {1}) == []
    assert faults(report.outcomes, lambda o: len(o.calls) != 3) == []


def test_an_unsafe_call_is_started_again_only_after_a_person_said_so(report: Report) -> None:
    def started_without_asking(o: Outcome) -> bool:
        return o.starts["refund"] > 1 + len(o.asked_in_doubt)

    assert faults(report.outcomes, started_without_asking) == []
