"""A worker with many runs at once: what it takes, what it leaves, and what waits for what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from time import monotonic, process_time
from typing import Any

import msgspec
import pytest

from checkpoints.model import RunId
from checkpoints.schedule import Limit
from fsm_agent import Agent, Runtime, tool
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.worker import pool
from fsm_agent.worker.backlog import Backlog, Candidate
from fsm_agent.worker.local import work_due_once
from fsm_agent.worker.places import Full, Places
from fsm_agent.worker.pool import Settings, Worker
from fsm_agent.worker.services import Service
from tests.conftest import Bench, Ledger, ScriptedModel, ask, die, finish, take_over, until

FAR_S = 60.0  # a worker that only looks so rarely has been woken


class Crew:
    """An agent whose tool holds until it is told to go on, and that counts who is in it."""

    def __init__(self) -> None:
        self.now: list[str] = []
        self.order: list[str] = []
        self.most = 0
        self.gate = asyncio.Event()

        @tool(effect="idempotent", timeout_s=60)
        async def act(who: str) -> str:
            """Do it."""
            self.now.append(who)
            self.order.append(who)
            self.most = max(self.most, len(self.now))
            try:
                await self.gate.wait()
            finally:
                self.now.remove(who)
            return "ok"

        self.agent = Agent("actor", "actor", tools=[act])
        self.agents = {"actor": self.agent}


def model() -> ScriptedModel:
    """Has each run call the tool with its task, once."""

    def answer(request: StepRequest) -> Reply:
        if len(request.messages) > 1:
            return finish()
        return ask(("act", {"who": request.messages[0].text}))

    return ScriptedModel(answer)


@asynccontextmanager
async def working(worker: Worker[Any]) -> AsyncIterator[asyncio.Task[None]]:
    """The worker at work for the length of the block."""
    task = asyncio.create_task(worker.work())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task


async def all_done(runtime: Runtime, count: int) -> bool:
    return len(await runtime.runs(status="done", limit=1000)) == count


# -- many runs, and being woken -------------------------------------------------------------------


async def test_runs_go_on_side_by_side_up_to_the_number_that_was_set(bench: Bench) -> None:
    runtime, crew = await bench.runtime(model()), Crew()
    for number in range(7):
        await runtime.start(crew.agent, f"{number}")

    async with working(Worker(runtime, crew.agents, settings=Settings(runs=3))):
        await until(lambda: len(crew.now) == 3)
        crew.gate.set()
        await until(lambda: all_done(runtime, 7))

    assert crew.most == 3
    assert sorted(crew.order) == [f"{n}" for n in range(7)]


async def test_an_idle_worker_is_woken_and_does_not_poll(bench: Bench) -> None:
    runtime, other, crew = await bench.runtime(model()), await bench.runtime(model()), Crew()
    crew.gate.set()
    settings = Settings(look_s=FAR_S)

    async with working(Worker(runtime, crew.agents, settings=settings)):
        run_ids = []
        end = monotonic() + FAR_S / 2
        while not run_ids or not await all_done(other, len(run_ids)):
            # The first may come before the worker listens, and is found with the second.
            if len(run_ids) < 2 or monotonic() > end:
                run_ids.append(await other.start(crew.agent, "now"))
            await asyncio.sleep(0.01)
            assert monotonic() < end


async def test_a_lost_wake_up_costs_a_bounded_delay(bench: Bench) -> None:
    runtime, crew = await bench.runtime(model()), Crew()
    crew.gate.set()

    async def deaf() -> AsyncIterator[RunId]:
        await asyncio.Event().wait()
        yield RunId("")

    worker = Worker(runtime, crew.agents, settings=Settings(look_s=0.1), hints=deaf)
    async with working(worker):
        for number in range(3):
            await runtime.start(crew.agent, f"{number}")
            await until(lambda number=number: all_done(runtime, number + 1))


async def test_an_idle_worker_costs_little(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, crew = await bench.runtime(model()), Crew()
    looks = 0
    look = Backlog.look

    async def counted(self: Backlog, busy: Any) -> None:
        nonlocal looks
        looks += 1
        await look(self, busy)

    monkeypatch.setattr(Backlog, "look", counted)
    async with working(Worker(runtime, crew.agents, settings=Settings(look_s=0.2))):
        await until(lambda: looks >= 2)
        cpu, wall, before = process_time(), monotonic(), looks
        await until(lambda: monotonic() > wall + 1.0)

    assert looks - before <= 6
    assert process_time() - cpu < 0.5 * (monotonic() - wall) + 0.5  # `until` itself polls


async def test_a_timer_is_met_when_its_time_comes_and_not_at_the_next_look(bench: Bench) -> None:
    runtime, crew = await bench.runtime(model()), Crew()
    crew.gate.set()
    store = runtime.store
    run_id = RunId(await runtime.start(crew.agent, "later"))
    claimed = await store.claim(run_id, owner="w", nonce="n", term_ms=60_000)
    await store.release(claimed.lease, due_ms=claimed.server_ms + 400)

    async with working(Worker(runtime, crew.agents, settings=Settings(look_s=FAR_S))):
        await until(lambda: all_done(runtime, 1))

    assert await store.now_ms() >= claimed.server_ms + 400


# -- nobody hides others --------------------------------------------------------------------------


async def test_runs_of_an_agent_that_is_not_here_hide_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsm_agent.worker.backlog.DEPTH", 4)
    runtime, crew = await bench.runtime(model()), Crew()
    crew.gate.set()
    stranger = Agent("stranger", "elsewhere")
    for number in range(30):
        await runtime.start(stranger, f"{number}")
    await runtime.start(crew.agent, "mine")
    for number in range(30):
        await runtime.start(stranger, f"more {number}")

    assert await work_due_once(runtime, crew.agents) == 1
    async with working(Worker(runtime, crew.agents, settings=Settings(look_s=0.1))):
        await runtime.start(crew.agent, "mine too")
        await until(lambda: all_done(runtime, 2))


async def test_a_run_that_fails_each_time_rests_longer_and_longer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsm_agent.worker.backlog.FIRST_WAIT_S", 0.1)
    runtime, crew = await bench.runtime(model()), Crew()
    crew.gate.set()
    bad = await runtime.start(crew.agent, "bad")
    tries: list[float] = []
    work = runtime.work

    async def failing(run_id: str, agent: Agent) -> Any:
        if run_id != bad:
            return await work(run_id, agent)
        tries.append(monotonic())
        raise OSError("its disk is broken")

    runtime.work = failing  # type: ignore[method-assign]
    async with working(Worker(runtime, crew.agents, settings=Settings(runs=1, look_s=0.02))):
        for number in range(3):
            await runtime.start(crew.agent, f"good {number}")
        await until(lambda: all_done(runtime, 3))
        await until(lambda: len(tries) >= 4)

    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses[0] >= 0.1
    assert pauses[1] >= 0.2
    assert pauses[2] >= 0.4


async def test_a_worker_outlives_its_store(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from checkpoints.errors import StoreUnavailable

    monkeypatch.setattr(pool, "STORE_AWAY_S", 0.02)
    store, crew, told = await bench.store(), Crew(), []
    runtime = await bench.runtime(model(), store=store)
    crew.gate.set()
    is_away = True
    agenda = store.agenda

    async def away(**options: Any) -> Any:
        if is_away:
            raise StoreUnavailable("away", applied=False)
        return await agenda(**options)

    store.agenda = away  # type: ignore[attr-defined]
    await (await bench.runtime(model())).start(crew.agent, "x")
    worker = Worker(runtime, crew.agents, settings=Settings(look_s=0.05), on_store_away=told.append)
    async with working(worker):
        await until(lambda: told)
        is_away = False
        await until(lambda: all_done(runtime, 1))

    assert len(told) == 1


# -- order, limits --------------------------------------------------------------------------------


async def test_a_dead_workers_run_comes_first_and_then_the_higher_priority(bench: Bench) -> None:
    store, crew = await bench.store(), Crew()
    dying = await bench.runtime(model(), store=store, lease_s=0.3)
    lost = await dying.start(crew.agent, "lost", priority=-100)
    holding = asyncio.create_task(dying.work(lost, crew.agent))
    await until(lambda: crew.now == ["lost"])
    await die(store, holding)
    crew.order.clear()
    runtime = await bench.runtime(model())
    for number in range(4):
        await runtime.start(crew.agent, f"normal {number}")
    await runtime.start(crew.agent, "low", priority=-1)
    await runtime.start(crew.agent, "high", priority=7)
    head = await runtime.store.head(RunId(lost))
    await until(lambda: _is_past(runtime, head.lease_until_ms))
    crew.gate.set()

    async with working(Worker(runtime, crew.agents, settings=Settings(runs=1))):
        await until(lambda: all_done(runtime, 7))

    assert crew.order[:2] == ["lost", "high"]
    assert crew.order[-1] == "low"


async def _is_past(runtime: Runtime, at_ms: int) -> bool:
    return await runtime.store.now_ms() > at_ms


@pytest.mark.parametrize("group", ["agent:actor", "agent:*", "tenant:acme", "tenant:*"])
async def test_a_limit_holds_for_two_workers_together(bench: Bench, group: str) -> None:
    one, two, crew = await bench.runtime(model()), await bench.runtime(model()), Crew()
    await one.store.set_limit(group, Limit(at_once=2))
    for number in range(8):
        await one.start(crew.agent, f"{number}", tenant="acme")

    settings = Settings(look_s=0.05)
    async with (
        working(Worker(one, crew.agents, settings=settings)),
        working(Worker(two, crew.agents, settings=settings)),
    ):
        await until(lambda: len(crew.now) == 2)
        crew.gate.set()
        await until(lambda: all_done(one, 8))

    assert crew.most == 2
    assert len(crew.order) == 8


async def test_a_full_tenant_does_not_keep_others_from_going_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsm_agent.worker.backlog.DEPTH", 4)
    runtime, crew = await bench.runtime(model()), Crew()
    await runtime.store.set_limit("tenant:acme", Limit(at_once=1))
    for number in range(20):
        await runtime.start(crew.agent, f"acme {number}", tenant="acme")
    await runtime.start(crew.agent, "other", tenant="other")
    for number in range(20):
        await runtime.start(crew.agent, f"acme, more {number}", tenant="acme")

    async with working(Worker(runtime, crew.agents, settings=Settings(runs=4, look_s=0.05))):
        await until(lambda: "other" in crew.now)
        now = list(crew.now)
        crew.gate.set()

    assert len(now) == 2


@asynccontextmanager
async def dead_worker(bench: Bench, crew: Crew) -> AsyncIterator[str]:
    """A run whose worker died in the middle of it, and left its place behind."""
    store = await bench.store()
    dying = await bench.runtime(model(), store=store, lease_s=0.3)
    run_id = await dying.start(crew.agent, "lost")
    task = asyncio.create_task(Worker(dying, crew.agents).work())
    await until(lambda: crew.now == ["lost"])

    async def dead(*args: Any, **options: Any) -> None:
        await asyncio.Event().wait()

    store.free_slot = store.take_slot = dead  # type: ignore[attr-defined]
    store.is_dead = True
    task.cancel()
    try:
        yield run_id
    finally:
        for _ in range(2):
            task.cancel()
            await asyncio.wait([task], timeout=0.1)


async def test_a_place_of_a_worker_that_died_becomes_free(bench: Bench) -> None:
    runtime, crew = await bench.runtime(model(), lease_s=0.3), Crew()
    await runtime.store.set_limit("agent:actor", Limit(at_once=1))
    async with dead_worker(bench, crew) as lost:
        # Somebody takes the run by hand: nobody knows then whose place it was.
        crew.gate.set()
        await take_over(runtime, lost, crew.agent)
        await runtime.start(crew.agent, "second")
        async with working(Worker(runtime, crew.agents, settings=Settings(look_s=0.05))):
            await until(lambda: all_done(runtime, 2))


async def test_a_takeover_waits_for_no_place_and_leaves_none_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PLACE_TERMS", 1000)  # far longer than the test waits
    monkeypatch.setattr("fsm_agent.worker.places.LONGEST_S", FAR_S)
    runtime, crew = await bench.runtime(model()), Crew()
    await runtime.store.set_limit("agent:actor", Limit(at_once=1))
    async with dead_worker(bench, crew):
        await runtime.start(crew.agent, "waits", priority=100)
        async with working(Worker(runtime, crew.agents, settings=Settings(look_s=0.05))):
            await until(lambda: crew.order == ["lost", "lost"])
            crew.gate.set()
            await until(lambda: all_done(runtime, 2))

    assert crew.order == ["lost", "lost", "waits"]
    assert crew.most == 1


async def test_a_takeover_whose_place_is_gone_waits_as_others_do(
    bench: Bench,
) -> None:
    runtime, crew = await bench.runtime(model()), Crew()
    await runtime.store.set_limit("agent:actor", Limit(at_once=1))
    taken = 0
    take_slot = runtime.store.take_slot

    async def counted(*args: Any, **options: Any) -> int:
        nonlocal taken
        taken += 1
        return await take_slot(*args, **options)

    async with dead_worker(bench, crew) as lost:
        await runtime.store.free_slot("agent:actor", RunId(lost), owner=await _owner(runtime, lost))
        other = await bench.runtime(model())
        await runtime.start(crew.agent, "first")
        async with working(Worker(other, crew.agents, settings=Settings(look_s=0.05))):
            await until(lambda: crew.now == ["first"])
            head = await runtime.store.head(RunId(lost))
            await until(lambda: _is_past(runtime, head.lease_until_ms))
            runtime.store.take_slot = counted  # type: ignore[method-assign]
            async with working(Worker(runtime, crew.agents, settings=Settings(look_s=0.05))):
                await until(lambda: taken)
                since = monotonic()
                await until(lambda: monotonic() > since + 0.5)
                tries = taken
                crew.gate.set()
                await until(lambda: all_done(runtime, 2))

    assert tries == 1  # and again after a second
    assert crew.most == 1


async def _owner(runtime: Runtime, run_id: str) -> str:
    return (await runtime.store.head(RunId(run_id))).owner


@pytest.mark.parametrize("limit", [Limit(at_once=2), Limit(per_minute=2)])
async def test_runs_that_wait_for_their_tenant_use_up_nothing_of_their_agents(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: Limit
) -> None:
    monkeypatch.setattr("fsm_agent.worker.places.LONGEST_S", FAR_S)
    runtime, crew = await bench.runtime(model()), Crew()
    await runtime.store.set_limit("agent:actor", limit)
    await runtime.store.set_limit("tenant:acme", Limit(at_once=1))
    for number in range(12):
        await runtime.start(crew.agent, f"acme {number}", tenant="acme")
    await runtime.start(crew.agent, "beta", tenant="beta", priority=-1)

    async with working(Worker(runtime, crew.agents, settings=Settings(look_s=0.05))):
        await until(lambda: "beta" in crew.now)
        now = list(crew.now)

    assert len(now) == 2


async def test_a_worker_that_is_stopped_while_it_takes_a_place_leaves_none(bench: Bench) -> None:
    runtime, crew, limit = await bench.runtime(model()), Crew(), Limit(at_once=1, per_minute=1)
    await runtime.store.set_limit("agent:actor", limit)
    await runtime.start(crew.agent, "x")
    take_slot, is_taken = runtime.store.take_slot, asyncio.Event()

    async def slow(*args: Any, **options: Any) -> int:
        await take_slot(*args, **options)
        is_taken.set()
        await asyncio.Event().wait()
        return 0

    runtime.store.take_slot = slow  # type: ignore[method-assign]
    async with working(Worker(runtime, crew.agents)):
        await is_taken.wait()
    other = RunId("other")
    wait_ms = await take_slot("agent:actor", other, limit, owner="o", term_ms=1000, begins=True)

    assert wait_ms == 0


@pytest.mark.parametrize("how", ["busy", "over"])
async def test_a_run_that_another_got_uses_up_no_beginning(bench: Bench, how: str) -> None:
    runtime, crew = await bench.runtime(model()), Crew()
    other = await bench.runtime(ScriptedModel(lambda request: finish()))
    await runtime.store.set_limit("agent:actor", Limit(per_minute=1))
    theirs = await runtime.start(crew.agent, "theirs", priority=1)
    await runtime.start(crew.agent, "ours")
    work = runtime.work

    async def slower(run_id: str, agent: Agent) -> Any:
        if run_id == theirs and how == "over":
            await other.work(run_id, agent)
        elif run_id == theirs:
            await other.store.claim(RunId(run_id), owner="other", nonce="n", term_ms=60_000)
        return await work(run_id, agent)

    runtime.work = slower  # type: ignore[method-assign]
    async with working(Worker(runtime, crew.agents, settings=Settings(look_s=0.05))):
        await until(lambda: crew.now == ["ours"])


async def test_so_many_runs_begin_in_a_minute_and_those_that_began_go_on(bench: Bench) -> None:
    runtime, crew = await bench.runtime(model()), Crew()
    await runtime.store.set_limit("agent:actor", Limit(per_minute=2))
    began = await runtime.start(crew.agent, "began")
    claimed = await runtime.store.claim(RunId(began), owner="w", nonce="n", term_ms=60_000)
    await runtime.store.release(claimed.lease, due_ms=claimed.server_ms)
    for number in range(4):
        await runtime.start(crew.agent, f"{number}")

    async with working(Worker(runtime, crew.agents, settings=Settings(look_s=0.05))):
        await until(lambda: len(crew.now) == 3)
        crew.gate.set()
        await until(lambda: all_done(runtime, 3))

    assert "began" in crew.order
    assert len(crew.order) == 3


# -- draining, services ---------------------------------------------------------------------------


async def test_a_drained_worker_gives_all_its_runs_back_due_now(bench: Bench) -> None:
    runtime, crew = await bench.runtime(model()), Crew()
    for number in range(3):
        await runtime.start(crew.agent, f"{number}")

    async with working(Worker(runtime, crew.agents)):
        await until(lambda: len(crew.now) == 3)
    heads = await runtime.runs()
    agenda = await runtime.store.agenda()

    assert [head.lease_until_ms for head in heads] == [0, 0, 0]
    assert {run.run_id for run in agenda.runs} == {head.run_id for head in heads}


async def test_a_service_that_fails_is_started_again_and_stops_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsm_agent.worker.services.AGAIN_S", 0.01)
    runtime, crew, starts = await bench.runtime(model()), Crew(), Ledger()
    crew.gate.set()

    async def service() -> None:
        if starts.record("start") < 3:
            raise RuntimeError("no luck")
        await asyncio.Event().wait()

    await runtime.start(crew.agent, "x")
    worker = Worker(runtime, crew.agents, services=[Service("test", service)])
    async with working(worker):
        await until(lambda: starts["start"] == 3)
        await until(lambda: all_done(runtime, 1))


async def test_who_brings_a_run_waits_until_there_is_room(bench: Bench) -> None:
    runtime, crew = await bench.runtime(model()), Crew()
    first = await runtime.start(crew.agent, "first")
    worker = Worker(runtime, crew.agents, settings=Settings(runs=1))
    async with working(worker):
        await worker.offer(RunId(first))
        await until(lambda: crew.now == ["first"])
        second = await runtime.start(crew.agent, "second")
        offered = asyncio.create_task(worker.offer(RunId(second)))
        await asyncio.sleep(0)
        was_kept = not offered.done()
        crew.gate.set()
        await offered
        await until(lambda: all_done(runtime, 2))

    assert was_kept


async def test_a_run_that_goes_on_and_finds_no_room_stays_begun(bench: Bench) -> None:
    store = await bench.store()
    await store.set_limit("agent:a", Limit(per_minute=1))
    await store.set_limit("tenant:t", Limit(at_once=1))
    ours, theirs = (Places(store, owner=w, term_s=30, steady_s=monotonic) for w in ("w1", "w2"))
    first = Candidate(
        run_id=RunId("first"), agent="a", tenant="t", priority=0, dead_owner="", has_place=False,
        begins=True, due_ms=0,
    )  # fmt: skip
    other = msgspec.structs.replace(first, run_id=RunId("other"), begins=False)
    second = msgspec.structs.replace(first, run_id=RunId("second"), tenant="")
    async with ours.held(first):
        pass

    async with theirs.held(other):
        with pytest.raises(Full):
            async with ours.held(msgspec.structs.replace(first, begins=False)):
                pass

    with pytest.raises(Full) as full:
        async with ours.held(second):
            pass
    assert full.value.group == "agent:a"
