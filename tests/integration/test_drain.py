"""A stop of the process in the middle of a batch: what is known goes on record before it ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from checkpoints.errors import CheckpointError
from checkpoints.model import RunId
from fsm_agent import Agent, Hooks, Runtime, tool
from tests.conftest import Bench, Ledger, Watched, ask, finish, turns, until

TICKS = (1, 2, 3, 5, 8)  # turns of the event loop between a commit and the stop


def late(ledger: Ledger) -> Any:
    """A tool that comes to its end when it is told to stop."""

    @tool(effect="unsafe")
    async def pay() -> str:
        """Pay."""
        ledger.record("pay")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "paid, ref 7"
        return "never"

    return pay


def commits(store: Watched, holds: Any) -> asyncio.Event:
    """Set as soon as a commit is asked for while `holds`; it then goes on."""
    asked, commit = asyncio.Event(), store.commit

    async def watched(*args: Any) -> Any:
        if holds():
            asked.set()
        return await commit(*args)

    store.commit = watched  # type: ignore[attr-defined]
    return asked


async def stop_after(working: asyncio.Task[Any], ticks: int) -> None:
    for _ in range(ticks):
        await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def is_due(runtime: Runtime, run_id: str) -> bool:
    return run_id in [run.run_id for run in (await runtime.store.agenda()).runs]


@pytest.mark.parametrize("ticks", TICKS)
@pytest.mark.parametrize("count", [1, 2])
async def test_a_call_that_was_not_started_when_the_stop_came_is_in_no_doubt(
    bench: Bench, ledger: Ledger, ticks: int, count: int
) -> None:
    @tool(effect="unsafe")
    async def pay(n: int) -> str:
        """Pay."""
        ledger.record("pay")
        return "ok"

    agent, store = Agent("payer", tools=[pay]), await bench.store()
    model = turns(ask(*(("pay", {"n": n}) for n in range(count))), finish())
    runtime = await bench.runtime(model, store=store)
    asked = commits(store, lambda: len(model.requests) == 1)
    run_id = await runtime.start(agent, "task")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await asked.wait()

    await stop_after(working, ticks)
    if ledger["pay"]:
        return  # it came too late: this is of calls that had not begun
    was_due = await is_due(runtime, run_id)
    result = await (await bench.runtime(model)).work(run_id, agent)

    assert was_due
    assert (result.status, ledger["pay"]) == ("done", count)


@pytest.mark.parametrize("ticks", TICKS)
async def test_a_stop_while_another_result_is_committed_loses_none(
    bench: Bench, ledger: Ledger, ticks: int
) -> None:
    gate = asyncio.Event()

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        await gate.wait()
        ledger.record("look")
        return "seen"

    agent, store = Agent("payer", tools=[late(ledger), look]), await bench.store()
    model = turns(ask(("pay", {}), ("look", {})), finish())
    runtime = await bench.runtime(model, store=store)
    asked = commits(store, lambda: ledger["look"])
    run_id = await runtime.start(agent, "task")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: ledger["pay"])
    gate.set()
    await asked.wait()

    await stop_after(working, ticks)

    assert sorted(await bench.settled(run_id)) == [("c4-0", "success"), ("c4-1", "success")]
    assert await runtime.orphans(run_id) == []
    result = await (await bench.runtime(model)).work(run_id, agent)
    assert (result.status, ledger["pay"], ledger["look"]) == ("done", 1, 1)


@pytest.mark.parametrize("ticks", TICKS)
async def test_a_second_stop_does_not_keep_a_late_result_off_the_record(
    bench: Bench, ledger: Ledger, ticks: int
) -> None:
    agent, store = Agent("payer", tools=[late(ledger)]), await bench.store()
    runtime = await bench.runtime(turns(ask(("pay", {})), finish()), store=store)
    run_id = await runtime.start(agent, "task")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: ledger["pay"])
    asked = commits(store, lambda: True)

    working.cancel()
    await asked.wait()
    await stop_after(working, ticks)

    assert await bench.settled(run_id) == [("c4-0", "success")]
    assert await is_due(runtime, run_id)


async def test_a_result_that_the_host_could_not_look_at_is_not_given_to_the_model(
    bench: Bench, ledger: Ledger
) -> None:
    async def after_tool(*_: Any) -> str | None:
        raise RuntimeError("the redactor is down")

    agent = Agent("payer", tools=[late(ledger)], hooks=Hooks(after_tool=after_tool))
    model = turns(ask(("pay", {})), finish())
    runtime = await bench.runtime(model)
    run_id = await runtime.start(agent, "task")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: ledger["pay"])

    await stop_after(working, 0)
    result = await (await bench.runtime(model)).work(run_id, agent)

    assert await bench.settled(run_id) == []
    assert (result.status, len(model.requests)) == ("waiting", 1)
    assert "paid, ref 7" in "".join(map(str, await runtime.orphans(run_id)))


async def test_a_result_after_the_lease_was_taken_is_an_orphan_report(
    bench: Bench, ledger: Ledger
) -> None:
    agent, store = Agent("payer", tools=[late(ledger)]), await bench.store()
    claim, leases = store.claim, []

    async def remembered(*args: Any, **options: Any) -> Any:
        claimed = await claim(*args, **options)
        leases.append(claimed.lease)
        return claimed

    store.claim = remembered  # type: ignore[attr-defined]
    runtime = await bench.runtime(turns(ask(("pay", {})), finish()), store=store, lease_s=60.0)
    run_id = await runtime.start(agent, "task")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: ledger["pay"])
    other = await bench.store()  # takes the run before the one that stops could hear of it
    with suppress(CheckpointError):
        await other.release(leases[0], due_ms=0)
    await other.claim(RunId(run_id), owner="other", nonce="n", term_ms=60_000)

    await stop_after(working, 0)

    assert await bench.settled(run_id) == []
    (report,) = map(str, await runtime.orphans(run_id))
    assert "while the worker was being stopped" in report
