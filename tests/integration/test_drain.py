"""A stop of the process while tools run: an unsafe call gets time to come to its end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from checkpoints.model import Claim, Lease, RunId
from fsm_agent import Agent, Runtime, ToolContext, keyed, tool
from fsm_agent.tools.effects import Effect
from tests.conftest import Bench, Ledger, ScriptedModel, ask, finish, turns, until

LONG_S = 60.0  # never waited for in full: each test ends the wait itself


def make_agent(ledger: Ledger, gate: asyncio.Event, **options: Any) -> Agent:
    def acting(name: str, effect: Effect, is_failing: bool = False) -> Any:
        async def act(n: int, ctx: ToolContext) -> str:
            """Do it."""
            ledger.record(f"{name} begun")
            try:
                await gate.wait()
            except asyncio.CancelledError:
                ledger.record(f"{name} cut off")
                raise
            ledger.record(f"{name} done")
            if is_failing:
                raise ValueError("no such account")
            return "ok"

        return tool(act, name=name, effect=effect)

    tools = [
        acting("pay", "unsafe"),
        acting("bounce", "unsafe", is_failing=True),
        acting("look", "read"),
        acting("set", "idempotent"),
        acting("send", keyed()),
    ]
    return Agent("actor", tools=tools, **options)


def wants(*names: str) -> ScriptedModel:
    return turns(ask(*((name, {"n": n}) for n, name in enumerate(names))), finish())


async def begun(runtime: Runtime, agent: Agent, ledger: Ledger, *names: str) -> tuple[str, Any]:
    run_id = await runtime.start(agent, "task")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: all(ledger[f"{name} begun"] for name in names))
    return run_id, working


async def stopped(working: asyncio.Task[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await working


@pytest.mark.parametrize(("name", "status"), [("pay", "success"), ("bounce", "error")])
async def test_an_unsafe_call_comes_to_its_end_and_its_result_goes_on_record(
    bench: Bench, ledger: Ledger, name: str, status: str
) -> None:
    model, gate = wants(name), asyncio.Event()
    runtime = await bench.runtime(model, drain_s=LONG_S)
    agent = make_agent(ledger, gate)
    run_id, working = await begun(runtime, agent, ledger, name)

    working.cancel()
    await asyncio.sleep(0)
    assert not working.done()
    gate.set()
    await stopped(working)

    assert await bench.settled(run_id) == [("c4-0", status)]
    assert len(model.requests) == 1
    assert [run.run_id for run in (await runtime.store.agenda()).runs] == [run_id]
    result = await (await bench.runtime(model)).work(run_id, agent)
    assert (result.status, result.asks) == ("done", ())
    assert dict(ledger) == {f"{name} begun": 1, f"{name} done": 1}


async def test_the_others_of_its_batch_are_cut_off_at_once_and_nothing_more_begins(
    bench: Bench, ledger: Ledger
) -> None:
    gate = asyncio.Event()
    names = ("pay", "look", "set", "send")
    runtime = await bench.runtime(wants(*names, "pay"), drain_s=LONG_S)
    agent = make_agent(ledger, gate, parallel_calls=4)
    run_id, working = await begun(runtime, agent, ledger, *names)

    working.cancel()
    await until(lambda: all(ledger[f"{name} cut off"] for name in names[1:]))
    assert not working.done()
    gate.set()
    await stopped(working)

    assert ledger["pay begun"] == ledger["pay done"] == 1
    assert await bench.settled(run_id) == [("c4-0", "success")]


async def test_when_the_patience_ends_the_call_is_cut_off_and_asked_about(
    bench: Bench, ledger: Ledger
) -> None:
    runtime = await bench.runtime(wants("pay"), drain_s=0.01)
    agent = make_agent(ledger, asyncio.Event())
    run_id, working = await begun(runtime, agent, ledger, "pay")

    working.cancel()
    await stopped(working)
    result = await (await bench.runtime(wants())).work(run_id, agent)

    assert dict(ledger) == {"pay begun": 1, "pay cut off": 1}
    assert result.status == "waiting"
    assert [request.question.kind for request in await runtime.requests(run_id)] == ["in_doubt"]


async def test_a_cancel_request_ends_the_wait(bench: Bench, ledger: Ledger) -> None:
    runtime = await bench.runtime(wants("pay"), drain_s=LONG_S)
    agent = make_agent(ledger, asyncio.Event())
    run_id, working = await begun(runtime, agent, ledger, "pay")

    working.cancel()
    await runtime.cancel(run_id, by="mia")
    await stopped(working)

    assert ledger["pay cut off"] == 1


async def test_a_person_who_cancels_does_not_wait_for_it(bench: Bench, ledger: Ledger) -> None:
    runtime = await bench.runtime(wants("pay"), drain_s=LONG_S)
    run_id, working = await begun(runtime, make_agent(ledger, asyncio.Event()), ledger, "pay")

    await runtime.cancel(run_id, by="mia")
    result = await working

    assert result.reason == "cancelled"
    assert ledger["pay cut off"] == 1


async def test_a_result_that_comes_after_the_run_was_lost_is_an_orphan_report(
    bench: Bench, ledger: Ledger
) -> None:
    gate, store = asyncio.Event(), await bench.store()
    leases: list[Lease] = []
    claim = store.claim

    async def remembered(*args: Any, **options: Any) -> Claim:
        claimed = await claim(*args, **options)
        leases.append(claimed.lease)
        return claimed

    store.claim = remembered  # type: ignore[attr-defined]
    runtime = await bench.runtime(wants("pay"), store=store, drain_s=LONG_S, lease_s=60.0)
    run_id, working = await begun(runtime, make_agent(ledger, gate), ledger, "pay")
    working.cancel()
    await asyncio.sleep(0)

    other = await bench.store()  # takes the run before the one that stops could hear of it
    await other.release(leases[0], due_ms=0)
    await other.claim(RunId(run_id), owner="other", nonce="n", term_ms=60_000)
    gate.set()
    await stopped(working)

    reports = [str(report) for report in await runtime.orphans(run_id)]
    assert any("while the worker was being stopped" in report for report in reports), reports
    assert await bench.settled(run_id) == []


async def test_a_thread_is_waited_for_too(bench: Bench, ledger: Ledger) -> None:
    gate = threading.Event()

    @tool(effect="unsafe")
    def pay(n: int) -> str:
        """Pay."""
        ledger.record("begun")
        gate.wait()
        ledger.record("done")
        return "ok"

    runtime = await bench.runtime(wants("pay"), drain_s=LONG_S)
    agent = Agent("actor", tools=[pay])
    run_id = await runtime.start(agent, "task")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: ledger["begun"])

    working.cancel()
    await asyncio.sleep(0)
    gate.set()
    await stopped(working)

    assert await bench.settled(run_id) == [("c4-0", "success")]
