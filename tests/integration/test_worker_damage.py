"""What somebody else wrote over in the store stops the runs it belongs to, and no worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from checkpoints.keys import group_keys, thread_key
from checkpoints.model import RunId
from checkpoints.schedule import Limit
from fsm_agent import Agent, Runtime, tool
from fsm_agent.engine.session import snapshot_of
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.run import codec
from fsm_agent.run.record import Run
from fsm_agent.telling.stands import stands
from fsm_agent.worker import backlog, pool
from fsm_agent.worker.local import work_due_once
from fsm_agent.worker.pool import Settings, Worker
from tests.conftest import Bench, ScriptedModel, ask, finish, turns, until

AGENT = Agent("worker", "worker")
AGENTS = {"worker": AGENT}


class Damage:
    """Commands below the surface of a store."""

    def __init__(self, runtime: Runtime) -> None:
        self.store: Any = runtime.store

    async def call(self, *args: Any) -> Any:
        return await self.store._line.call(*args)

    def keys(self, run_id: str) -> Any:
        return self.store._of(run_id)

    @property
    def namespace(self) -> str:
        name: str = self.store._all_keys().namespace
        return name

    async def occupy(self, key: bytes) -> None:
        """Put a value in the place of the key that no script of ours would put there."""
        kind = await self.call("TYPE", key)
        await self.call("DEL", key)
        put = ("RPUSH", key, "x") if kind == b"string" else ("SET", key, "somebody else's")
        await self.call(*put)

    async def snapshot(self, run_id: str, body: bytes) -> None:
        await self.call("SET", self.keys(run_id).snapshot, body)

    async def due(self, member: str | bytes, score: str) -> None:
        await self.call("ZADD", self.keys("any").partition.due, score, member)


Do = Callable[[Damage, str], Awaitable[None]]


async def foreign_mailbox(damage: Damage, run_id: str) -> None:
    await damage.store.signal(RunId(run_id), signal_id="s", body=b"x")
    await damage.occupy(damage.keys(run_id).mailbox)


async def unreadable_mail(damage: Damage, run_id: str) -> None:
    await damage.store.signal(RunId(run_id), signal_id="s", body=b"x")
    await damage.call("HSET", damage.keys(run_id).mailbox, "other", "no mail of ours")


async def parent_that_is_none(damage: Damage, run_id: str) -> None:
    told = snapshot_of(Run(run_id=run_id, agent="worker", parent="../r"))
    await damage.snapshot(run_id, codec.encode_snapshot(told))


async def taken_place(damage: Damage, run_id: str) -> None:
    await damage.store.set_limit("tenant:bad", Limit(at_once=1))
    for key in group_keys(damage.namespace, "tenant:bad"):
        await damage.occupy(key)


DAMAGES: dict[str, Do] = {
    "the head": lambda d, run_id: d.occupy(d.keys(run_id).head),
    "a number of the head": lambda d, run_id: d.call("HSET", d.keys(run_id).head, "n", "x"),
    "the status of the head": lambda d, run_id: d.call("HSET", d.keys(run_id).head, "s", b"\xff"),
    "a field of the head": lambda d, run_id: d.call("HDEL", d.keys(run_id).head, "m"),
    "the snapshot": lambda d, run_id: d.occupy(d.keys(run_id).snapshot),
    "what the snapshot says": lambda d, run_id: d.snapshot(run_id, b"\x01somebody else's"),
    "how the snapshot is packed": lambda d, run_id: d.snapshot(run_id, b"\xc1\x07"),
    "the parent in the snapshot": parent_that_is_none,
    "the journal": lambda d, run_id: d.occupy(d.keys(run_id).journal),
    "the mailbox": foreign_mailbox,
    "what the mailbox says": unreadable_mail,
    "the requests": lambda d, run_id: d.occupy(d.keys(run_id).asks),
    "the thread": lambda d, run_id: d.occupy(thread_key(d.namespace, "bad")),
    "the places": taken_place,
    "a member of the due index": lambda d, run_id: d.due(b"\xff/..", "1"),
    "a due time before all others": lambda d, run_id: d.due(run_id, "-inf"),
    "a due time after all others": lambda d, run_id: d.due("elsewhere", "inf"),
}


@asynccontextmanager
async def working(runtime: Runtime, agents: dict[str, Agent]) -> AsyncIterator[None]:
    """A worker that is still at work at the end of the block."""
    worker = Worker(runtime, agents, settings=Settings(look_s=0.05))
    task = asyncio.create_task(worker.work())
    try:
        yield
    finally:
        was_at_work = not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert was_at_work, task


async def is_done(runtime: Runtime, run_id: str) -> bool:
    return (await runtime.store.head(RunId(run_id))).status == "done"


@pytest.mark.parametrize("what", DAMAGES)
async def test_a_run_of_which_something_is_written_over_hides_no_other(
    bench: Bench, what: str
) -> None:
    runtime = await bench.runtime(turns(finish()))
    bad = await runtime.start(AGENT, "bad", tenant="bad", thread="bad", priority=1)
    await DAMAGES[what](Damage(runtime), bad)

    async with working(runtime, AGENTS):
        for number in range(3):
            good = await runtime.start(AGENT, f"good {number}")
            await until(lambda good=good: is_done(runtime, good))


async def test_a_parent_that_cannot_be_told_hides_no_other(bench: Bench) -> None:
    @tool(approval="always")
    def pay() -> str:
        return "paid"

    def answer(request: Any) -> Any:
        name = {"boss": "helper", "helper": "pay"}.get(request.instructions)
        arguments = {"task": "Pay."} if name == "helper" else {}
        return ask((name, arguments)) if name else finish()

    helper = Agent("helper", "helper", tools=[pay])
    boss = Agent("boss", "boss", tools=[helper.as_tool()])
    runtime = await bench.runtime(ScriptedModel(answer))
    result = await runtime.run(boss, "Go.")
    await foreign_mailbox(Damage(runtime), result.run_id)
    await runtime.store.wake(RunId(result.children[0]))

    with capture_logs() as logs:
        async with working(runtime, {"boss": boss, **AGENTS}):
            good = await runtime.start(AGENT, "good")
            await until(lambda: is_done(runtime, good))

    skipped = [line for line in logs if line["event"] == "worker.run_skipped"]
    assert {line["run_id"] for line in skipped} == {result.children[0]}
    assert "holds data that is not this program's" in skipped[0]["why"]


@pytest.mark.parametrize("what", ["the head", "what the snapshot says"])
async def test_a_run_that_cannot_be_looked_at_rests_and_is_found_once_it_is_mended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(backlog, "FIRST_WAIT_S", 0.2)
    runtime = await bench.runtime(turns(finish()))
    damage = Damage(runtime)
    bad = await runtime.start(AGENT, "bad")
    keys = damage.keys(bad)
    head = await damage.call("HGETALL", keys.head)
    snapshot = await damage.call("GET", keys.snapshot)
    await DAMAGES[what](damage, bad)

    with capture_logs() as logs:

        def tries() -> int:
            return sum(line["event"] == "worker.run_skipped" for line in logs)

        async with working(runtime, AGENTS):
            for number in range(8):
                good = await runtime.start(AGENT, f"good {number}")
                await until(lambda good=good: is_done(runtime, good))
            await until(lambda: tries() >= 2)
            assert tries() <= 4
            await damage.call("DEL", keys.head)
            await damage.call("HSET", keys.head, *head)
            await damage.call("SET", keys.snapshot, snapshot)
            await until(lambda: is_done(runtime, bad))


async def test_a_worker_outlives_a_due_index_that_is_written_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "STORE_AWAY_S", 0.02)
    runtime = await bench.runtime(turns(finish()))
    damage = Damage(runtime)
    run_id = await runtime.start(AGENT, "x")
    (index,) = [part.due for part in damage.store._all_keys().partitions]
    await damage.occupy(index)

    with capture_logs() as logs:
        async with working(runtime, AGENTS):
            await until(lambda: any(line["event"] == "worker.store_unreadable" for line in logs))
            await damage.call("DEL", index)
            await damage.call("ZADD", index, 1, run_id)
            await until(lambda: is_done(runtime, run_id))

    assert [line["event"] for line in logs].count("worker.store_unreadable") == 1
    assert await work_due_once(runtime, AGENTS) == 0


async def test_a_child_that_cannot_be_read_hides_nothing_of_others(bench: Bench) -> None:
    @tool(approval="always")
    def pay() -> str:
        return "paid"

    helper = Agent("helper", "helper", tools=[pay])
    boss = Agent("boss", "boss", tools=[helper.as_tool(), pay])

    def answer(request: StepRequest) -> Reply:
        mine = ask(("pay", {}))
        return (
            mine if request.instructions[0] == "h" else ask(("helper", {"task": "x"}), ("pay", {}))
        )

    runtime = await bench.runtime(ScriptedModel(answer))
    damage = Damage(runtime)
    parent = await runtime.run(boss, "Go.")
    (child,) = (await runtime.result(parent.run_id)).children
    await damage.call("HSET", damage.keys(child).head, "n", "no number")

    heads = await runtime.runs()

    assert [head.run_id for head in heads] == [parent.run_id]
    assert (await stands(runtime, heads))[parent.run_id].needs == "person"
    assert [request.question.tool for request in await runtime.requests(parent.run_id)] == [
        "pay",
        "pay",
    ]
