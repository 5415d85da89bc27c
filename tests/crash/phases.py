"""Agents with phases for the kill sweeps, and the whole sweep: `python -m tests.crash.phases`.

The tests take a sample of the points of research, whose five child runs have very many.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from fsm_agent import Agent, Source, ToolContext, keyed, tool, with_sources
from fsm_agent.capabilities.plan import plan
from fsm_agent.capabilities.research import research
from fsm_agent.llm.model import Piece, Reply, RequestedCall, StepRequest
from fsm_agent.run.content import AssistantMessage, ToolMessage, Usage
from fsm_agent.run.delta import Entered, Resumed
from fsm_agent.testing.crash import Ledger, Outcome, Report, Scenario, sweep

QUESTIONS = 5
TOOL_TIMEOUT_S = 2.0  # no point may be missed because the machine is busy
PLANNED, RESEARCHED = "Order A7 was refunded.", "All is known [1].\n\nSources\n[1] q0 http://x/q0"


def make_planner(ledger: Ledger) -> Agent:
    @tool(effect=keyed(ttl_s=3600), timeout_s=TOOL_TIMEOUT_S)
    async def hold(order: str, ctx: ToolContext) -> str:
        """Hold the money of an order."""
        ledger.record("hold", ctx.idempotency_key)
        return "held"

    @tool(effect="unsafe", timeout_s=TOOL_TIMEOUT_S)
    def refund(order: str) -> str:
        """Pay an order back."""
        ledger.record("refund", order)
        return "paid back"

    return plan("planner", tools=[hold, refund])


def make_researcher(ledger: Ledger) -> Agent:
    @tool(effect=keyed(ttl_s=3600), timeout_s=TOOL_TIMEOUT_S)
    async def search(about: str, ctx: ToolContext) -> object:
        """Search."""
        ledger.record("search", ctx.idempotency_key)
        return with_sources("facts", Source(about, f"http://x/{about}"))

    return research("researcher", tools=[search], questions=QUESTIONS)


def says(label: str, text: str) -> Reply:
    return Reply(label=label, text=text, usage=Usage(10, 5))


def calls(name: str, **arguments: str) -> Reply:
    call = RequestedCall(name, arguments, "{}")
    return Reply(label="TOOL", text="", calls=(call,), usage=Usage(10, 5))


class PhaseModel:
    """Answers by what the request holds, so a resumed run is answered alike."""

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        assert request.protocol
        labels, told = request.protocol.allowed, request.instructions
        done = [m.name for m in request.messages if isinstance(m, ToolMessage)]
        if "PLAN" in labels:
            return says("PLAN", "1. Hold the money.\n2. Give up.")
        if "REPLAN" in labels:
            return self._step(told, done)
        if "BRIEF" in labels:
            return says("BRIEF", "x") if done else calls("ask_user", question="All of it?")
        if "OUTLINE" in labels:
            return says("OUTLINE", "\n".join(f"- q{n}" for n in range(QUESTIONS - 1)))
        if "APPEND" in labels:
            return self._research(request, done)
        return says("FINISH", PLANNED if "refund" in done else "All is known [1].")

    def _step(self, told: str, done: list[str]) -> Reply:
        if "Hold the money. [now]" in told:
            return says("FINISH", "held") if "hold" in done else calls("hold", order="A7")
        if "Give up. [now]" in told:
            return says("REPLAN", "There is still hope.")
        return says("FINISH", "paid") if "refund" in done else calls("refund", order="A7")

    def _research(self, request: StepRequest, done: list[str]) -> Reply:
        task = request.messages[0].text
        spoken = sum(isinstance(m, AssistantMessage) for m in request.messages)
        if not done:
            return calls("search", about=task)
        if task == "q0" and spoken == 1:
            return says("APPEND", f"- q{QUESTIONS - 1}")
        return says("FINISH", f"found {task}")

    async def aclose(self) -> None:
        pass


class SecondPlan(PhaseModel):
    """Plans the refund once giving up has been dropped."""

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        assert request.protocol
        if "PLAN" in request.protocol.allowed and "[dropped]" in request.instructions:
            return says("PLAN", "1. Pay it back.")
        return await super().step(request, on_piece)


def planning() -> Scenario:
    return Scenario(make_agent=make_planner, make_model=SecondPlan, task="Refund order A7.")


def researching() -> Scenario:
    return Scenario(make_agent=make_researcher, make_model=PhaseModel, task="Find out.")


def phases_at_death(report: Report) -> list[str]:
    """The phase that each run with a takeover stood in when its worker had died."""
    journals = [j for o in report.outcomes if o.evidence for j in o.evidence.journals]
    return [phase for journal in journals for phase in _phases(journal.deltas())]


def _phases(deltas: Iterable[object]) -> Iterator[str]:
    phase = "(before the first)"
    for delta in deltas:
        if isinstance(delta, Entered):
            phase = delta.phase
        elif isinstance(delta, Resumed) and delta.is_takeover:
            yield phase


def faults(report: Report, answer: str, effects: dict[str, int]) -> list[str]:
    """What went wrong at which point: another end, or an effect that happened more or less often.

    Effects are counted as a receiver that honours keys sees them.
    """

    def is_wrong(outcome: Outcome) -> bool:
        seen = {name: outcome.ledger.by_key(name) for name in effects}
        return outcome.result.answer != answer or seen != effects

    return [
        f"{o.killed_at}: {o.result.answer!r}, {Counter(name for name, _ in o.ledger.effects())}"
        for o in report.outcomes
        if is_wrong(o)
    ]


def main() -> int:
    """Sweep every point of both agents, and say what came of it."""
    wrong = 0
    for make, answer, effects in (
        (planning, PLANNED, {"hold": 1, "refund": 1}),
        (researching, RESEARCHED, {"search": QUESTIONS}),
    ):
        report = sweep(make())
        found = faults(report, answer, effects)
        phases = sorted(set(phases_at_death(report)))
        print(
            f"{make.__name__}: {len(report.points)} points, died in the phases {', '.join(phases)};"
            f" {len(report.never_reached)} never reached, {len(found)} faults"
        )
        print(*found, sep="\n", end="\n" if found else "")
        wrong += len(found)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
