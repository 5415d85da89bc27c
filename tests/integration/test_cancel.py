"""Cancelling: at once, which cuts off what runs, and gracefully, which lets it come to its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from checkpoints.errors import RunBusy
from checkpoints.model import RunId
from fsm_agent import Agent, Runtime, tool
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.run.content import ToolMessage
from tests.conftest import (
    Bench,
    Ledger,
    ScriptedModel,
    Watched,
    ask,
    die,
    finish,
    take_over,
    turns,
    until,
)

Gate = asyncio.Event


def make_agent(ledger: Ledger, gate: Gate, **options: Any) -> Agent:
    @tool(effect="unsafe")
    async def act(n: int) -> str:
        """Do it."""
        ledger.record("begun")
        try:
            await gate.wait()
        except asyncio.CancelledError:
            ledger.record("cut off")
            raise
        ledger.record("done")
        return "ok"

    return Agent("actor", tools=[act], **options)


def wants(count: int) -> ScriptedModel:
    return turns(ask(*(("act", {"n": n}) for n in range(count))), finish())


async def begun(runtime: Runtime, agent: Agent, ledger: Ledger, count: int = 1) -> tuple[str, Any]:
    """A run whose tools are under way, and the task that works on it."""
    run_id = await runtime.start(agent, "task")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: ledger["begun"] == count)
    return run_id, working


class Heard:
    """Runs whose mail was read by their worker after a cancel request was in it."""

    def __init__(self, store: Watched) -> None:
        self.runs: set[str] = set()
        read = store.mailbox

        async def mailbox(run_id: RunId) -> Any:
            signals = await read(run_id)
            if any(signal.signal_id.startswith("cancel") for signal in signals):
                self.runs.add(run_id)
            return signals

        store.mailbox = mailbox  # type: ignore[attr-defined]


async def test_a_graceful_cancel_lets_running_tools_finish_and_starts_nothing_more(
    bench: Bench, ledger: Ledger
) -> None:
    model, store = wants(4), await bench.store()
    heard = Heard(store)
    runtime = await bench.runtime(model, store=store)
    gate = Gate()
    agent = make_agent(ledger, gate, parallel_calls=2)
    run_id, working = await begun(runtime, agent, ledger, 2)

    await (await bench.runtime(model)).cancel(run_id, by="mia", is_graceful=True)
    await until(lambda: run_id in heard.runs)
    gate.set()
    result = await working

    assert (result.status, result.reason) == ("error", "cancelled")
    assert dict(ledger) == {"begun": 2, "done": 2}
    assert [status for _, status in await bench.settled(run_id)] == [
        *("success", "success"),
        *("cancelled", "cancelled"),
    ]
    assert len(model.requests) == 1


async def test_one_tool_alone_is_let_finish_too(bench: Bench, ledger: Ledger) -> None:
    model, store = wants(1), await bench.store()
    heard = Heard(store)
    runtime = await bench.runtime(model, store=store)
    gate = Gate()
    run_id, working = await begun(runtime, make_agent(ledger, gate), ledger)

    await runtime.cancel(run_id, by="mia", is_graceful=True)
    await until(lambda: run_id in heard.runs)
    gate.set()
    result = await working

    assert result.reason == "cancelled"
    assert dict(ledger) == {"begun": 1, "done": 1}
    assert [status for _, status in await bench.settled(run_id)] == ["success"]
    assert len(model.requests) == 1


async def test_now_after_gracefully_cuts_off_what_is_still_running(
    bench: Bench, ledger: Ledger
) -> None:
    runtime = await bench.runtime(wants(2))
    run_id, working = await begun(runtime, make_agent(ledger, Gate()), ledger, 2)

    assert await runtime.cancel(run_id, by="mia", is_graceful=True)
    assert not await runtime.cancel(run_id, by="mia", is_graceful=True)
    assert await runtime.cancel(run_id, by="leo")
    result = await working

    assert result.reason == "cancelled"
    assert "by leo" in result.message
    assert dict(ledger) == {"begun": 2, "cut off": 2}


async def test_gracefully_after_now_changes_nothing(bench: Bench, ledger: Ledger) -> None:
    runtime = await bench.runtime(wants(1))
    agent = make_agent(ledger, Gate())
    run_id = await runtime.start(agent, "task")

    await runtime.cancel(run_id, by="leo")
    await runtime.cancel(run_id, by="mia", is_graceful=True)
    result = await runtime.work(run_id, agent)

    assert "by leo" in result.message
    assert dict(ledger) == {}


async def test_a_reply_under_way_is_kept_gracefully_and_dropped_now(bench: Bench) -> None:
    for is_graceful in (True, False):
        asked, gate = Gate(), Gate()

        async def answer(
            request: StepRequest, asked: Gate = asked, gate: Gate = gate
        ) -> Reply | Exception:
            asked.set()
            await gate.wait()
            return ask(("act", {"n": 1}))

        store = await bench.store()
        heard = Heard(store)
        runtime = await bench.runtime(ScriptedModel(answer), store=store)
        agent = make_agent(Ledger(), Gate())
        run_id = await runtime.start(agent, "task")
        working = asyncio.create_task(runtime.work(run_id, agent))
        await asked.wait()
        await runtime.cancel(run_id, by="mia", is_graceful=is_graceful)
        if is_graceful:
            await until(lambda run_id=run_id, heard=heard: run_id in heard.runs)
            gate.set()
        result = await working

        assert result.reason == "cancelled"
        assert result.turns == int(is_graceful)


async def test_both_reach_a_child_run_and_its_tools(bench: Bench) -> None:
    for is_graceful in (True, False):
        ledger, gate = Ledger(), Gate()
        child = make_agent(ledger, gate)
        boss = Agent("boss", "boss", tools=[child.as_tool()])

        def answer(request: StepRequest) -> Reply:
            if request.instructions == "boss":
                return ask(("actor", {"task": "act"}))
            return ask(("act", {"n": 1}))

        store = await bench.store()
        heard = Heard(store)
        runtime = await bench.runtime(ScriptedModel(answer), store=store)
        run_id, working = await begun(runtime, boss, ledger)
        (child_id,) = (await runtime.result(run_id)).children
        await runtime.cancel(run_id, by="mia", is_graceful=is_graceful)
        if is_graceful:
            await until(lambda child_id=child_id, heard=heard: child_id in heard.runs)
            gate.set()
        result = await working
        of_child = await runtime.result(child_id)

        assert (result.reason, of_child.reason) == ("cancelled", "cancelled")
        assert dict(ledger) == {"begun": 1, "done" if is_graceful else "cut off": 1}


class Line:
    """boss asks mid, mid asks actor, whose tool is unsafe."""

    def __init__(self, ledger: Ledger, gate: Gate) -> None:
        leaf = make_agent(ledger, gate)
        self.mid = Agent("mid", "mid", tools=[leaf.as_tool()])
        self.boss = Agent("boss", "boss", tools=[self.mid.as_tool()])
        self.model = ScriptedModel(self._answer)

    def _answer(self, request: StepRequest) -> Reply:
        if any(isinstance(message, ToolMessage) for message in request.messages):
            return finish()
        below = {"boss": "mid", "mid": "actor"}.get(request.instructions)
        return ask((below, {"task": "act"})) if below else ask(("act", {"n": 1}))


async def results_of(bench: Bench, run_id: str) -> list[tuple[str, str]]:
    run = await bench.run_of(run_id)
    return [(m.status, m.text) for m in run.messages if isinstance(m, ToolMessage)]


async def below(runtime: Runtime, run_id: str) -> list[str]:
    """The runs that work for this one, each with the one below it."""
    found = []
    while children := (await runtime.result(run_id)).children:
        (run_id,) = children
        found.append(run_id)
    return found


async def is_taken(runtime: Runtime, run_id: str) -> bool:
    """Whether somebody else has the run now, and goes on holding it."""
    with suppress(RunBusy):
        await runtime.store.claim(RunId(run_id), owner="x", nonce="n", term_ms=60_000)
        return True
    return False


async def test_what_a_cancel_leaves_in_doubt_far_below_is_told_at_every_level(
    bench: Bench, ledger: Ledger
) -> None:
    line = Line(ledger, Gate())
    runtime = await bench.runtime(line.model)
    run_id, working = await begun(runtime, line.boss, ledger)
    mid, leaf = await below(runtime, run_id)

    await runtime.cancel(run_id, by="mia")
    await working

    told = [await results_of(bench, each) for each in (run_id, mid, leaf)]
    assert [status for ((status, _),) in told] == ["in_doubt"] * 3
    assert f"of run {mid} is in doubt" in told[0][0][1]
    assert f"of run {leaf} is in doubt" in told[1][0][1]


async def test_a_cancel_before_anything_began_below_leaves_nothing_in_doubt(
    bench: Bench, ledger: Ledger
) -> None:
    @tool(approval="always")
    def act(n: int) -> str:
        """Do it."""
        return str(ledger.record("done"))

    line = Line(ledger, Gate())
    leaf = Agent("actor", tools=[act])
    line.mid = Agent("mid", "mid", tools=[leaf.as_tool()])
    boss = Agent("boss", "boss", tools=[line.mid.as_tool()])
    runtime = await bench.runtime(line.model)
    run_id = (await runtime.run(boss, "task")).run_id

    await runtime.cancel(run_id, by="mia")
    await runtime.work(run_id, boss)

    assert [status for status, _ in await results_of(bench, run_id)] == ["cancelled"]
    assert dict(ledger) == {}


async def test_a_child_that_was_cancelled_itself_leaves_its_doubt_to_its_parent(
    bench: Bench, ledger: Ledger
) -> None:
    line = Line(ledger, Gate())
    runtime = await bench.runtime(line.model)
    run_id, working = await begun(runtime, line.boss, ledger)
    mid, leaf = await below(runtime, run_id)

    await runtime.cancel(leaf, by="mia")
    result = await working

    assert result.status == "done"
    ((status, text),) = await results_of(bench, mid)
    assert status == "in_doubt"
    assert f"of run {leaf} is in doubt: it may have taken effect" in text


async def test_a_child_that_another_worker_holds_is_in_doubt_while_its_tool_runs(
    bench: Bench, ledger: Ledger
) -> None:
    line = Line(ledger, Gate())
    store = await bench.store()
    first = await bench.runtime(line.model, store=store, lease_s=0.3)
    run_id, working = await begun(first, line.boss, ledger)
    mid, leaf = await below(first, run_id)
    await die(store, working)
    second = await bench.runtime(line.model, lease_s=0.3)
    await until(lambda: is_taken(second, mid))

    await second.cancel(run_id, by="mia")
    await take_over(second, run_id, line.boss)

    ((status, text),) = await results_of(bench, run_id)
    assert status == "in_doubt"
    assert f"of run {leaf} is in doubt" in text
