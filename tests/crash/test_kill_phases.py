"""SIGKILL in each phase of plan-then-execute, and of research with five child runs.

A sample of the points; `python -m tests.crash.phases` takes them all.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from fsm_agent.testing.crash import Report, sweep
from tests.crash.phases import (
    PLANNED,
    QUESTIONS,
    RESEARCHED,
    faults,
    phases_at_death,
    planning,
    researching,
)


def sample(*parts: tuple[int, int]) -> Callable[[str], bool]:
    """Every nth of the points up to the given one, part by part: [(30, 3), …]."""
    passed = count()

    def is_taken(point: str) -> bool:
        number = next(passed)
        step = next(step for end, step in parts if number < end)
        return number % step == 0

    return is_taken


@pytest.fixture(scope="module")
def planned() -> Report:
    return sweep(planning(), only=sample((1_000, 2)))


@pytest.fixture(scope="module")
def researched() -> Report:
    # Sparser where the children run side by side, which is most of it.
    return sweep(researching(), only=sample((30, 3), (90, 6), (1_000, 2)))


def test_a_planned_run_resumes_right_from_a_crash_in_each_phase(planned: Report) -> None:
    report = planned

    assert report.undisturbed.result.answer == PLANNED
    assert faults(report, PLANNED, {"hold": 1, "refund": 1}) == []
    assert report.never_reached == []
    assert set(phases_at_death(report)) >= {"plan", "step", "answer"}


def test_the_unsafe_step_of_a_plan_happens_once(planned: Report) -> None:
    report = planned

    assert [o.killed_at for o in report.outcomes if o.ledger.raw("refund") != 1] == []


def test_research_resumes_right_from_a_crash_in_each_phase(researched: Report) -> None:
    report = researched

    assert report.undisturbed.result.answer == RESEARCHED
    assert report.undisturbed.starts["research"] == QUESTIONS
    assert faults(report, RESEARCHED, {"search": QUESTIONS}) == []
    # How many commits side by side become one is not the same each time, so the last may be gone.
    assert len(report.never_reached) <= len(report.points) // 5
    died_in = set(phases_at_death(report))
    assert died_in >= {"clarify", "outline", "research", "report"}
