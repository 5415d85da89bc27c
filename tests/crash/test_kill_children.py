"""SIGKILL at every write and tool boundary of a run whose call is the work of a child run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fsm_agent import Agent, tool
from fsm_agent.llm.model import Piece, Reply, RequestedCall, StepRequest
from fsm_agent.run.content import ToolMessage, Usage
from fsm_agent.testing.crash import Ledger, Outcome, Report, Scenario, sweep


def make_boss(ledger: Ledger) -> Agent:
    @tool(effect="unsafe", approval="always", timeout_s=0.2)
    def refund(order: str) -> str:
        """Pay an order back."""
        ledger.record("refund", order)
        return "paid back"

    helper = Agent("helper", "helper", tools=[refund])
    return Agent("boss", "boss", tools=[helper.as_tool()])


class TeamModel:
    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        has_result = any(isinstance(m, ToolMessage) for m in request.messages)
        if request.instructions.startswith("boss"):
            call, end = RequestedCall("helper", {"task": "Refund A7."}, "{}"), "The boss is done."
        else:
            call, end = RequestedCall("refund", {"order": "A7"}, "{}"), "Refunded."
        if has_result:
            return Reply(label="FINISH", text=end, usage=Usage(10, 5))
        return Reply(label="TOOL", text="", calls=(call,), usage=Usage(10, 5))

    async def aclose(self) -> None:
        pass


@pytest.fixture(scope="module")
def report() -> Report:
    scenario = Scenario(
        make_agent=make_boss,
        make_model=TeamModel,
        task="Refund order A7.",
    )
    return sweep(scenario)


def faults(outcomes: list[Outcome], is_wrong: Callable[[Outcome], bool]) -> list[str]:
    return [f"{o.killed_at}: {o}" for o in outcomes if is_wrong(o)]


def test_the_points_of_both_runs_are_swept(report: Report) -> None:
    creates = [point for point in report.points if point.startswith("create#")]

    assert len(creates) >= 4  # before and after, of parent and child
    assert {"tool refund#1:before", "effect refund#1:before"} <= set(report.points)
    assert report.never_reached == []


def test_every_run_ends_as_the_undisturbed_one(report: Report) -> None:
    assert report.undisturbed.result.answer == "The boss is done."
    assert faults(report.outcomes, lambda o: o.result.answer != "The boss is done.") == []


def test_the_childs_unsafe_effect_happens_once(report: Report) -> None:
    assert faults(report.outcomes, lambda o: o.ledger.raw("refund") != 1) == []


def test_the_parent_counts_what_the_child_has_spent(report: Report) -> None:
    spent = report.undisturbed.result.spent_tokens

    assert spent == 60
    assert faults(report.outcomes, lambda o: o.result.spent_tokens < spent) == []
