"""Runs of agents whose store is a cluster, or stands behind a sentinel, and loses a server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from checkpoints import StoreSettings, open_store
from checkpoints.testing.servers import start_cluster_nodes, start_sentinel_trio, wait_for_copy
from fsm_agent import Agent, Runtime, ToolContext, keyed, tool
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.worker.pool import Settings, Worker
from tests.conftest import ScriptedModel, ask, finish, until

RUNS = 12
AT_ONCE = 4
Place = tuple[str, Callable[[], None]]


@pytest.fixture(params=["cluster", "sentinel"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A store's address, and the server of it that is to die with what must be there before."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fsm-")))  # short, for sockets
        if request.param == "cluster":
            nodes = stack.enter_context(start_cluster_nodes(folder, has_replicas=True))
            first, second, _, copy, *_ = nodes
            url = f"redis+cluster://127.0.0.1:{second}"
        else:
            port, nodes = stack.enter_context(start_sentinel_trio(folder))
            first, copy, _ = nodes
            url = f"redis+sentinel://127.0.0.1:{port}/agents"

        def fail() -> None:
            wait_for_copy(first, copy)  # so that the failover loses nothing
            nodes[first].kill()

        yield url, fail


async def test_runs_outlive_the_death_of_a_server(place: Place) -> None:
    url, fail = place
    sent: Counter[str] = Counter()
    gate = asyncio.Event()
    held: set[str] = set()

    @tool(effect=keyed(ttl_s=3600))
    async def hold(order: str, ctx: ToolContext) -> str:
        """Hold the money of an order."""
        sent[ctx.idempotency_key] += 1
        if len(sent) > RUNS:
            held.add(ctx.run_id)
            await gate.wait()
        return f"held for {order}"

    def answer(request: StepRequest) -> Reply:
        results = len(request.messages) // 2
        return ask(("hold", {"order": f"{results}"})) if results < 3 else finish("All held.")

    agent = Agent("desk", "Hold.", tools=[hold])
    store = await open_store(url, settings=StoreSettings(restart_s=30))
    async with Runtime.open(store, model=ScriptedModel(answer)) as runtime:
        run_ids = [await runtime.start(agent, f"order {n}") for n in range(RUNS)]
        worker = asyncio.create_task(
            Worker(runtime, {"desk": agent}, settings=Settings(runs=AT_ONCE)).work()
        )
        async with asyncio.timeout(90):
            await until(lambda: len(held) == AT_ONCE)
            await asyncio.to_thread(fail)
            gate.set()
            while len(await runtime.runs(status="done")) < RUNS:
                assert not worker.done(), worker
                await asyncio.sleep(0.05)
        worker.cancel()
        await asyncio.wait([worker])
        results = [await runtime.result(run_id) for run_id in run_ids]
        replayed = [await runtime.replay(run_id) for run_id in run_ids]
    await store.aclose()

    assert {result.answer for result in results} == {"All held."}
    assert len(sent) == 3 * RUNS  # a key for each call, however often it was sent
    assert not any(each.differences for each in replayed)
