"""SIGKILL at every write of a run whose approval comes too late: one end, and nothing ran."""

from __future__ import annotations

import time

from fsm_agent import Agent, ask, tool
from fsm_agent.llm.model import Reply, RequestedCall, StepRequest
from fsm_agent.run.content import ToolMessage, Usage
from fsm_agent.testing.crash import Ledger, Scenario, sweep
from fsm_agent.waiting import Request

DEADLINE_S = 0.05


def make_agent(ledger: Ledger) -> Agent:
    @tool(approval=ask(expires_s=DEADLINE_S))
    def pay(cents: int) -> str:
        """Pay."""
        ledger.record("pay", str(cents))
        return "paid"

    return Agent("payer", "Pay.", tools=[pay])


class PayModel:
    """Wants to pay once, and says what came of it."""

    async def step(self, request: StepRequest, on_piece: object) -> Reply:
        told = [m.status for m in request.messages if isinstance(m, ToolMessage)]
        if told:
            return Reply(label="FINISH", text=", ".join(told), usage=Usage(1, 1))
        wanted = (RequestedCall("pay", {"cents": 5}, "{}"),)
        return Reply(label="TOOL", text="", calls=wanted, usage=Usage(1, 1))

    async def aclose(self) -> None:
        pass


def too_late(request: Request, ledger: Ledger) -> tuple[str, str | None]:
    """A person who thinks until the time is up."""
    time.sleep(max(0.0, request.expires_ms / 1000 - time.time()) + 0.002)
    return "approve", None


def test_an_approval_after_the_deadline_never_runs_wherever_a_worker_dies() -> None:
    report = sweep(
        Scenario(
            make_agent=make_agent,
            make_model=PayModel,
            task="Pay.",
            decide=too_late,
        ),
    )

    assert report.never_reached == []
    assert "decide#2:after" in report.points  # the person's word, and time's
    assert report.undisturbed.result.answer == "expired"
    for outcome in report.outcomes:
        assert outcome.result.answer == "expired", outcome
        assert outcome.ledger.raw("pay") == 0, outcome
        assert set(outcome.calls.values()) == {1}, outcome
