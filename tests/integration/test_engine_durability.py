"""Runs on a store that must make sure of what it keeps, and on one that forgot."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from checkpoints.errors import NotDurable, StoreRegressed
from checkpoints.model import RunId
from checkpoints.testing.pairs import Pair, pair
from fsm_agent import Agent, ToolContext, keyed, tool
from fsm_agent.run.delta import Intended, Withheld
from tests.conftest import Bench, Ledger, ScriptedModel, ask, finish, results, turns, until

# A copy that is there is waited for as long as a slow machine needs; one that is not, shortly.
PATIENT = "?durability=memory:1&durability_s=50"
HASTY = "?durability=memory:1&durability_s=0.1"
EVERY = "&durability_for=every"


@pytest.fixture
def servers() -> Iterator[Pair]:
    folder = Path(tempfile.mkdtemp(prefix="fsm-"))
    with pair(folder) as servers:
        yield servers
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def desk(ledger: Ledger, gate: asyncio.Event | None = None) -> Agent:
    @tool(effect="read")
    def look() -> str:
        return f"looked {ledger.record('look')}"

    @tool(effect=keyed(ttl_s=3600))
    def hold(ctx: ToolContext) -> str:
        return f"held {ctx.attempt} {ledger.record('hold')}"

    @tool(effect="unsafe", timeout_s=30)
    async def pay() -> str:
        ledger.record("pay")
        if gate:
            await gate.wait()
        return "paid"

    return Agent("desk", tools=[look, hold, pay])


def paying() -> ScriptedModel:
    return turns(ask(("look", {}), ("pay", {})), finish("all done"))


async def test_an_unsafe_call_that_is_not_confirmed_is_put_off_and_asks_nobody(
    servers: Pair, stack: AsyncExitStack, ledger: Ledger
) -> None:
    bench, agent, model = Bench(servers.url + HASTY, stack), desk(ledger), paying()
    runtime = await bench.runtime(model, unconfirmed_retry_s=60.0)
    run_id = await runtime.start(agent, "pay")  # not every commit waits
    servers.freeze_replica()

    parked = await runtime.work(run_id, agent)

    assert (parked.status, dict(ledger)) == ("sleeping", {"look": 1})
    run = await bench.run_of(run_id)
    assert [c.phase for c in run.calls] == ["settled", "open"]
    servers.thaw_replica()
    patient = await bench.beside(servers.url + PATIENT).runtime(model)
    result = await patient.work(run_id, agent)
    assert (result.status, result.asks, dict(ledger)) == ("done", (), {"look": 1, "pay": 1})
    assert [status for _, status, _ in results(model.requests[-1])] == ["success", "success"]
    facts = [f for e in await runtime.history(run_id) for f in e.record.deltas]
    pays = [type(f) for f in facts if isinstance(f, (Intended, Withheld)) and f.call_id[-1] == "1"]
    assert pays == [Intended, Withheld, Intended]


async def test_where_every_commit_is_confirmed_a_keyed_call_waits_too(
    servers: Pair, stack: AsyncExitStack, ledger: Ledger
) -> None:
    bench, agent = Bench(servers.url + PATIENT + EVERY, stack), desk(ledger)
    model = turns(ask(("hold", {})), finish("all done"))
    runtime = await bench.runtime(model)
    hasty = await bench.beside(servers.url + HASTY + EVERY).runtime(model, unconfirmed_retry_s=0.01)
    run_id = await runtime.start(agent, "hold")
    servers.freeze_replica()

    with pytest.raises(NotDurable):
        await hasty.work(run_id, agent)

    assert not ledger
    servers.thaw_replica()

    async def is_due() -> bool:
        return RunId(run_id) in await runtime.store.due()

    await until(is_due)
    assert (await runtime.work(run_id, agent)).status == "done"
    assert dict(ledger) == {"hold": 1}


async def test_a_failover_that_lost_the_intent_is_reported_and_nobody_goes_on_by_itself(
    servers: Pair, stack: AsyncExitStack, ledger: Ledger
) -> None:
    gate = asyncio.Event()
    bench, agent = Bench(servers.url, stack), desk(ledger, gate)
    runtime = await bench.runtime(paying(), lease_s=3.0)
    run_id = await runtime.start(agent, "pay")
    await runtime.store._line.call("WAIT", 1, 5000)  # type: ignore[attr-defined]
    servers.promote()

    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: ledger["pay"] == 1)
    servers.fail_over()

    with pytest.raises(StoreRegressed):
        await working
    reports = map(str, await runtime.orphans(run_id))
    words = "was under way, and was cut off after the store had lost entries 2 to"
    assert [words in report for report in reports].count(True) == 1
    assert await runtime.store.due() == []
    assert (await runtime.store.head(RunId(run_id))).lease_until_ms == 0
    gate.set()
    assert (await runtime.work(run_id, agent)).status == "done"  # a person said so
    assert ledger["pay"] == 2  # what nobody can prevent without durability=
