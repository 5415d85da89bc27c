"""Threads: one active run each, decided in the store, and nobody waits for ever after a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from checkpoints.errors import RunExists, ThreadBusy
from checkpoints.model import RunId
from fsm_agent import Agent, Runtime, archive, tool
from fsm_agent.engine import threads
from fsm_agent.errors import UsageError
from fsm_agent.run.delta import OnBusy
from fsm_agent.worker.local import work_due_once
from tests.conftest import Bench, Ledger, ask, die, finish, turns, until

Gate = asyncio.Event


def make_agent(ledger: Ledger, gate: Gate) -> Agent:
    @tool(effect="idempotent")
    async def act() -> str:
        """Do it."""
        ledger.record("begun")
        await gate.wait()
        ledger.record("done")
        return "ok"

    return Agent("actor", tools=[act])


def model() -> Any:
    return turns(ask(("act", {})), finish())


async def status(runtime: Runtime, run_id: str) -> tuple[str, str]:
    result = await runtime.result(run_id)
    return result.status, result.reason


async def test_a_busy_thread_refuses_by_default_and_leaves_no_trace(
    bench: Bench, ledger: Ledger
) -> None:
    runtime = await bench.runtime(model())
    agent = make_agent(ledger, Gate())
    first = await runtime.start(agent, "one", thread="t")

    with pytest.raises(ThreadBusy, match=f"busy with run '{first}'"):
        await runtime.start(agent, "two", thread="t")

    assert [head.run_id for head in await runtime.runs()] == [first]


async def test_the_repeat_of_a_start_is_the_same_run_and_not_a_second_of_its_thread(
    bench: Bench, ledger: Ledger
) -> None:
    runtime = await bench.runtime(model())
    gate = Gate()
    gate.set()
    agent = make_agent(ledger, gate)
    again = {"run_id": "r-1", "thread": "t"}
    await runtime.start(agent, "one", **again)
    await runtime.start(agent, "one", **again)
    await runtime.work("r-1", agent)
    await runtime.start(agent, "one", **again)  # it is over by now

    assert await runtime.store.active_in("t") is None
    assert ledger["done"] == 1
    with pytest.raises(RunExists):
        await runtime.start(agent, "one", run_id="r-1", thread="another")


async def test_of_many_starts_at_once_one_is_active_and_the_others_are_refused(
    bench: Bench, ledger: Ledger
) -> None:
    runtimes = [await bench.runtime(model()) for _ in range(4)]
    agent = make_agent(ledger, Gate())

    starts = [runtimes[n % 4].start(agent, f"task {n}", thread="t") for n in range(12)]
    begun = await asyncio.gather(*starts, return_exceptions=True)

    refused = [each for each in begun if isinstance(each, ThreadBusy)]
    (active,) = [each for each in begun if isinstance(each, str)]
    assert len(refused) == 11
    heads = await runtimes[0].runs()
    assert {h.run_id: h.status for h in heads if h.status != "error"} == {active: "ready"}
    for head in heads:
        if head.run_id != active:  # it was already there when it was refused
            assert await status(runtimes[0], head.run_id) == ("error", "rejected")


async def test_queued_runs_take_turns_in_any_process(bench: Bench, ledger: Ledger) -> None:
    one, two = await bench.runtime(model()), await bench.runtime(model())
    gate = Gate()
    agent = make_agent(ledger, gate)
    runs = [await one.start(agent, f"{n}", thread="t", on_busy="queue") for n in range(3)]

    working = asyncio.create_task(one.work(runs[0], agent))
    await until(lambda: ledger["begun"] == 1)
    early = await two.work(runs[1], agent)
    gate.set()
    await working
    while await work_due_once(two, {agent.name: agent}):
        pass

    assert early.status == "sleeping"
    assert [await status(two, run_id) for run_id in runs] == [("done", "")] * 3
    assert ledger["done"] == 3


async def test_an_interrupting_run_ends_the_active_one_and_is_next(
    bench: Bench, ledger: Ledger
) -> None:
    runtime, other = await bench.runtime(model()), await bench.runtime(model())
    gate = Gate()
    agent = make_agent(ledger, gate)
    first = await runtime.start(agent, "one", thread="t")
    waiting = await runtime.start(agent, "two", thread="t", on_busy="queue")
    working = asyncio.create_task(runtime.work(first, agent))
    await until(lambda: ledger["begun"] == 1)

    newest = await other.start(agent, "three", thread="t", on_busy="interrupt", requester="mia")
    ended = await working
    gate.set()
    active = await other.store.active_in("t")
    while await work_due_once(other, {agent.name: agent}):
        pass

    assert (ended.status, ended.reason) == ("error", "cancelled")
    assert f"run {newest} of the same thread interrupts it" in ended.message
    assert active == newest
    assert await status(other, newest) == ("done", "")
    assert await status(other, waiting) == ("done", "")
    assert ledger["done"] == 2


async def test_a_run_that_waits_can_be_cancelled_and_leaves_its_place(
    bench: Bench, ledger: Ledger
) -> None:
    runtime = await bench.runtime(model())
    gate = Gate()
    gate.set()
    agent = make_agent(ledger, gate)
    first = await runtime.start(agent, "one", thread="t")
    second = await runtime.start(agent, "two", thread="t", on_busy="queue")
    third = await runtime.start(agent, "three", thread="t", on_busy="queue")

    await runtime.cancel(second, by="mia")
    ended = await runtime.work(second, agent)
    await runtime.work(first, agent)

    assert (ended.status, ended.reason) == ("error", "cancelled")
    assert await runtime.store.active_in("t") == third


async def test_a_start_that_died_before_it_joined_is_made_up_for(
    bench: Bench, ledger: Ledger
) -> None:
    store = await bench.store()
    runtime = await bench.runtime(model(), store=store)
    gate = Gate()
    gate.set()
    agent = make_agent(ledger, gate)

    async def die_here(*args: Any) -> None:
        raise asyncio.CancelledError

    store.join_thread = die_here  # type: ignore[attr-defined]
    with pytest.raises(asyncio.CancelledError):
        await runtime.start(agent, "one", run_id="r-1", thread="t")
    healthy = await bench.runtime(model())
    await work_due_once(healthy, {agent.name: agent})

    assert await status(healthy, "r-1") == ("done", "")
    assert await healthy.store.active_in("t") is None


async def test_a_run_that_ended_and_died_before_it_left_does_not_block_its_thread(
    bench: Bench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await bench.store()
    runtime = await bench.runtime(model(), store=store)
    gate = Gate()
    gate.set()
    agent = make_agent(ledger, gate)
    first = await runtime.start(agent, "one", thread="t")
    second = await runtime.start(agent, "two", thread="t", on_busy="queue")

    async def die_here(*args: Any) -> None:
        raise asyncio.CancelledError

    store.leave_thread = die_here  # type: ignore[attr-defined]
    with pytest.raises(asyncio.CancelledError):
        await runtime.work(first, agent)
    healthy = await bench.runtime(model())
    stuck = await healthy.store.active_in("t")
    third = await healthy.start(agent, "three", thread="t", on_busy="queue")
    result = await healthy.work(second, agent)

    assert stuck == first
    assert result.status == "done"
    assert (await healthy.work(third, agent)).status == "done"


async def test_a_waiting_run_is_due_again_by_itself(bench: Bench, ledger: Ledger) -> None:
    runtime = await bench.runtime(model())
    agent = make_agent(ledger, Gate())
    await runtime.start(agent, "one", thread="t")
    second = await runtime.start(agent, "two", thread="t", on_busy="queue")

    await runtime.work(second, agent)
    head = await runtime.store.head(RunId(second))
    now_ms = await runtime.store.now_ms()

    assert head.status == "ready"
    assert head.due_ms is not None
    assert 0 < head.due_ms - now_ms <= threads.LOOK_S * 1000


async def test_the_active_run_of_a_dead_worker_stays_the_active_one(
    bench: Bench, ledger: Ledger
) -> None:
    store = await bench.store()
    runtime = await bench.runtime(model(), store=store, lease_s=0.5)
    gate = Gate()
    agent = make_agent(ledger, gate)
    first = await runtime.start(agent, "one", thread="t")
    second = await runtime.start(agent, "two", thread="t", on_busy="queue")
    working = asyncio.create_task(runtime.work(first, agent))
    await until(lambda: ledger["begun"] == 1)
    await die(store, working)
    other = await bench.runtime(model(), lease_s=0.5)

    parked = await other.work(second, agent)
    gate.set()

    async def both_done() -> bool:
        await work_due_once(other, {agent.name: agent})
        return [(await status(other, r))[0] for r in (first, second)] == ["done", "done"]

    assert parked.status == "sleeping"
    await until(both_done)


async def test_a_purged_run_leaves_its_thread_whether_it_was_active_or_waited(
    bench: Bench, ledger: Ledger
) -> None:
    runtime = await bench.runtime(model())
    gate = Gate()
    gate.set()
    agent = make_agent(ledger, gate)
    runs = [await runtime.start(agent, f"{n}", thread="t", on_busy="queue") for n in range(4)]

    for run_id in (runs[1], runs[0]):
        assert await archive.purge(runtime.store, run_id, is_forced=True)

    assert await runtime.store.active_in("t") == runs[2]
    assert (await runtime.work(runs[2], agent)).status == "done"
    assert await runtime.store.active_in("t") == runs[3]


@pytest.mark.parametrize("on_busy", ["reject", "interrupt"])
async def test_a_fork_of_the_active_run_waits_for_its_turn_and_leaves_its_origin_alone(
    bench: Bench, ledger: Ledger, on_busy: OnBusy
) -> None:
    runtime = await bench.runtime(model())
    gate = Gate()
    agent = make_agent(ledger, gate)
    origin = await runtime.start(agent, "one", thread="t", on_busy=on_busy)
    working = asyncio.create_task(runtime.work(origin, agent))
    await until(lambda: ledger["begun"] == 1)
    other = await bench.runtime(model())
    fork = (await other.fork(origin, at=1)).run_id

    parked = await other.work(fork, agent)
    gate.set()
    ended = await working

    assert (parked.status, ended.status) == ("sleeping", "done")
    assert (await other.work(fork, agent)).status == "done"


@pytest.mark.parametrize(
    ("filing", "words"),
    [
        ({"thread": "x" * 181}, "is no thread"),
        ({"tenant": " acme"}, "is no tenant"),
        ({"tenant": "\ud800"}, "is no tenant"),
        ({"priority": 101}, "is no priority"),
        ({"priority": True}, "is no priority"),
        ({"priority": 1.5}, "is no priority"),
        ({"on_busy": "queue"}, "Name one with thread="),
        ({"thread": "t", "on_busy": "wait"}, "on_busy is one of reject, queue, interrupt"),
    ],
)
async def test_what_cannot_be_filed_is_refused_before_anything_is_written(
    bench: Bench, ledger: Ledger, filing: dict[str, Any], words: str
) -> None:
    runtime = await bench.runtime(model())

    with pytest.raises(UsageError, match=words):
        await runtime.start(make_agent(ledger, Gate()), "task", **filing)

    assert await runtime.runs() == []
