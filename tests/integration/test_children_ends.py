"""No child run outlives the run that it works for, however that one ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from checkpoints.errors import StoreDiverged, StoreUnavailable
from checkpoints.model import Commit, RunId
from fsm_agent import Agent, Runtime, tool
from fsm_agent.errors import CodeChanged
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.run.content import AssistantMessage
from fsm_agent.worker.local import work_due_once
from fsm_agent.worker.pool import Settings, Worker
from tests.conftest import Bench, Ledger, ScriptedModel, ask, die, finish, take_over, until

QUICK = 0.3


class Team:
    """A top whose boss has a helper, which asks a person and is in a tool when its worker dies."""

    def __init__(self) -> None:
        self.ledger = Ledger()

        @tool(approval="always")
        async def pay() -> str:
            self.ledger.record("pay")
            return "paid"

        @tool(effect="idempotent", timeout_s=60)
        async def hang() -> str:
            self.ledger.record("hang")
            await asyncio.sleep(60)
            return "hung"

        self.helper = Agent("helper", "helper", tools=[pay, hang])
        self.boss = Agent("boss", "boss", tools=[self.helper.as_tool()])
        self.top = Agent("top", "top", tools=[self.boss.as_tool()])


def model(*calls: str) -> ScriptedModel:
    """Each delegates to the next; the helper calls these tools together."""
    first = {
        "top": ask(("boss", {"task": "Do it."})),
        "boss": ask(("helper", {"task": "Do it."})),
        "helper": ask(*((name, {}) for name in calls)),
    }

    def answer(request: StepRequest) -> Reply:
        has_spoken = any(isinstance(m, AssistantMessage) for m in request.messages)
        return finish() if has_spoken else first[request.instructions.split()[0]]

    return ScriptedModel(answer)


async def cut_off(bench: Bench, team: Team, agent: Agent) -> str:
    """A run whose worker died while the helper's tool was under way, with its request open."""
    store = await bench.store()
    runtime = await bench.runtime(model("pay", "hang"), store=store, lease_s=QUICK)
    run_id = await runtime.start(agent, "Go.")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: team.ledger["hang"])
    await until(runtime.requests)
    await die(store, working)
    return run_id


async def waiting(bench: Bench, team: Team) -> tuple[Runtime, str, Any]:
    """A run of the boss whose helper waits for a person, and the helper's request."""
    runtime = await bench.runtime(model("pay"))
    run_id = (await runtime.run(team.boss, "Go.")).run_id
    (request,) = await runtime.requests(run_id)
    return runtime, run_id, request


async def family(bench: Bench, run_id: str) -> list[str]:
    """The run, and those that work for it."""
    found = [run_id]
    for each in found:
        found += [c.delegated.child for c in (await bench.run_of(each)).calls if c.delegated]
    return found


async def all_over(runtime: Runtime, run_ids: list[str]) -> bool:
    heads = [await runtime.store.head(RunId(run_id)) for run_id in run_ids]
    return all(head.status == "error" for head in heads) and await nothing_left(runtime)


async def nothing_left(runtime: Runtime) -> bool:
    agenda = await runtime.store.agenda()
    return not agenda.runs and agenda.next_ms is None and await runtime.requests() == []


@pytest.mark.parametrize("name", ["boss", "top"])
async def test_a_run_that_is_given_up_takes_its_children_along(bench: Bench, name: str) -> None:
    team = Team()
    agent = getattr(team, name)
    run_id = await cut_off(bench, team, agent)
    runtime = await bench.runtime(model("pay", "hang"), lease_s=QUICK, max_recoveries=0)
    runs = await family(bench, run_id)

    result = await take_over(runtime, run_id, agent)

    assert (result.status, result.reason) == ("error", "poison")
    assert len(runs) == {"boss": 2, "top": 3}[name]
    assert await all_over(runtime, runs)
    assert team.ledger == {"hang": 1}
    assert result.spent_tokens == 15 * len(runs)


@pytest.mark.parametrize("at", ["signal", "commit of the child", "commit of the parent"])
async def test_a_worker_that_dies_while_it_gives_up_leaves_what_the_next_one_ends(
    bench: Bench, at: str
) -> None:
    team = Team()
    run_id = await cut_off(bench, team, team.boss)
    runs = await family(bench, run_id)
    store = await bench.store()
    dying = await bench.runtime(model("pay", "hang"), store=store, lease_s=QUICK, max_recoveries=0)
    ends = Ledger()

    def dies() -> None:
        store.is_dead = True
        raise StoreUnavailable("this worker is dead", applied=None)

    async def no_signal(*args: Any, **options: Any) -> bool:
        dies()
        return False

    async def before_commit(commit: Commit) -> None:
        nth = {"commit of the child": 1, "commit of the parent": 2}[at]
        if commit.status == "error" and ends.record("end") == nth:
            dies()

    if at == "signal":
        store.signal = no_signal  # type: ignore[attr-defined]
    else:
        store.before_commit = before_commit
    with suppress(StoreUnavailable):
        await take_over(dying, run_id, team.boss)
    assert store.is_dead
    assert (await dying.store.head(RunId(run_id))).status == "running"
    runtime = await bench.runtime(model("pay", "hang"), lease_s=QUICK, max_recoveries=0)

    await take_over(runtime, run_id, team.boss)

    assert await all_over(runtime, runs)
    assert team.ledger == {"hang": 1}


async def test_a_child_that_is_broken_keeps_its_parent_from_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = Team()
    runtime, run_id, request = await waiting(bench, team)
    signal = runtime.store.signal

    async def broken(to: RunId, **options: Any) -> bool:
        if to == request.run_id:
            raise StoreDiverged("its mailbox holds data that is not this program's")
        return await signal(to, **options)

    monkeypatch.setattr(runtime.store, "signal", broken, raising=False)
    await runtime.cancel(run_id, by="mia")

    assert (await runtime.work(run_id, team.boss)).reason == "cancelled"


# -- children that were left alone nevertheless ---------------------------------------------------


@pytest.mark.parametrize("knows_helper", [True, False])
@pytest.mark.parametrize("left_by", ["an older version", "a purge", "a purge elsewhere"])
async def test_a_child_without_a_parent_is_ended_by_the_worker_that_finds_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, left_by: str, knows_helper: bool
) -> None:
    team = Team()
    runtime, run_id, request = await waiting(bench, team)
    agents = {"boss": team.boss} | ({"helper": team.helper} if knows_helper else {})
    if left_by == "an older version":
        with monkeypatch.context() as patch:

            async def nobody(*args: Any) -> tuple[()]:
                return ()

            patch.setattr("fsm_agent.engine.ending.cancel_children", nobody)
            await runtime.cancel(run_id, by="mia")
            await runtime.work(run_id, team.boss)
        assert await runtime.requests()
    else:
        other = await bench.store()
        purging: Any = runtime.store if left_by == "a purge" else other
        await purging.purge(RunId(run_id), is_forced=True)

    await runtime.decide(request.run_id, request.ask_id, "approve", by="mia")
    worker = Worker(runtime, agents, settings=Settings(look_s=0.05))
    task = asyncio.create_task(worker.work())
    await until(lambda: all_over(runtime, [request.run_id]))
    task.cancel()
    await asyncio.wait([task])

    result = await runtime.result(request.run_id)
    assert (result.reason, result.message) == (
        "cancelled", f"cancelled by {run_id}: that run does not wait for it any more",
    )  # fmt: skip
    assert team.ledger == {}


async def test_a_child_of_a_child_without_a_parent_is_ended_too(bench: Bench) -> None:
    team = Team()
    run_id = await cut_off(bench, team, team.top)
    runs = await family(bench, run_id)
    store: Any = await bench.store()
    await store.purge(RunId(run_id), is_forced=True)
    runtime = await bench.runtime(model("pay", "hang"), lease_s=QUICK)

    async def worked() -> bool:
        await work_due_once(runtime, {"top": team.top})
        return await all_over(runtime, runs[1:])

    await until(worked)

    assert team.ledger == {"hang": 1}


async def test_a_child_that_is_cancelled_after_its_parent_ended_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = Team()
    runtime, run_id, request = await waiting(bench, team)
    store: Any = runtime.store
    await store.purge(RunId(run_id), is_forced=True)

    assert await runtime.cancel(request.run_id, by="leo")
    assert await work_due_once(runtime, {"boss": team.boss}) == 1

    assert (await runtime.result(request.run_id)).message == "cancelled by leo"
    assert await nothing_left(runtime)


async def test_a_child_is_left_to_a_parent_that_waits_for_it(bench: Bench) -> None:
    team = Team()
    runtime, run_id, request = await waiting(bench, team)

    await runtime.store.wake(RunId(request.run_id))
    await work_due_once(runtime, {"helper": team.helper})

    assert [each.ask_id for each in await runtime.requests(run_id)] == [request.ask_id]


async def test_a_child_whose_call_got_its_result_without_it_is_ended(bench: Bench) -> None:
    team = Team()
    runtime, run_id, request = await waiting(bench, team)

    @tool(name="helper", effect="read")
    async def helper(number: int) -> str:
        """Something else by now."""
        raise AssertionError

    boss = Agent("boss", "boss", tools=[helper])
    await runtime.store.wake(RunId(run_id))

    assert await work_due_once(runtime, {"boss": boss}) >= 1
    await work_due_once(runtime, {"boss": boss})

    assert (await runtime.result(run_id)).status == "done"
    assert (await runtime.result(request.run_id)).reason == "cancelled"
    assert await nothing_left(runtime)


async def test_a_child_whose_agent_is_gone_is_ended_once_a_person_accepts_that(
    bench: Bench,
) -> None:
    team = Team()
    runtime, run_id, request = await waiting(bench, team)
    boss = Agent("boss", "boss")

    with pytest.raises(CodeChanged):
        await runtime.work(run_id, boss)
    assert await runtime.requests(run_id)
    assert (await runtime.work(run_id, boss, accept_changes_by="mia")).status == "done"
    await work_due_once(runtime, {"boss": boss})

    assert (await runtime.result(request.run_id)).reason == "cancelled"
    assert await nothing_left(runtime)


async def test_a_result_does_not_wait_for_the_server_of_a_child(bench: Bench) -> None:
    paid: list[str] = []
    has_told = asyncio.Event()

    @tool
    async def pay() -> str:
        await has_told.wait()
        paid.append("pay")
        return "paid"

    helper = Agent("helper", "helper")
    boss = Agent("boss", "boss", tools=[helper.as_tool(), pay])

    def answer(request: StepRequest) -> Reply:
        if request.instructions.startswith("helper"):
            return finish()
        has_spoken = any(isinstance(m, AssistantMessage) for m in request.messages)
        return finish() if has_spoken else ask(("helper", {"task": "x"}), ("pay", {}))

    store = await bench.store()

    class Sick:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def commit(self, lease: Any, commit: Commit) -> Any:
            done = await store.commit(lease, commit)
            if lease.run_id.startswith("c-") and commit.status == "done":
                has_told.set()
            return done

        async def head(self, run_id: RunId) -> Any:
            if paid and run_id.startswith("c-"):
                raise StoreUnavailable("the child's server is away", applied=False)
            return await store.head(run_id)

    runtime = await bench.runtime(ScriptedModel(answer), store=Sick())  # type: ignore[arg-type]

    result = await runtime.run(boss, "Go.", run_id="p1")

    assert (result.status, paid) == ("done", ["pay"])
    assert sorted(await bench.settled("p1")) == [("c4-0", "success"), ("c4-1", "success")]
