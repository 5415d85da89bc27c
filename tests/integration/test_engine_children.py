"""An agent as a tool: a child run of its own, with its share of the budget and its requests."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from checkpoints.errors import AlreadyDecided, DecisionStale, RunBusy
from checkpoints.model import RunId
from fsm_agent import Agent, Limits, Runtime, tool, with_sources
from fsm_agent.errors import BadAgent, UsageError
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.run.content import AssistantMessage
from fsm_agent.run.delta import Delegated
from fsm_agent.telling.stands import Stand, stands
from fsm_agent.worker.local import work_due_once
from tests.conftest import (
    Bench,
    Ledger,
    ScriptedModel,
    ask,
    die,
    finish,
    results,
    take_over,
    until,
)

QUICK = 0.3


def by_agent(**replies: list[Reply]) -> ScriptedModel:
    """Replies by the words that the agent's instructions begin with, in turn."""

    def answer(request: StepRequest) -> Reply:
        mine = replies[request.instructions.split()[0]]
        spoken = sum(isinstance(m, AssistantMessage) for m in request.messages)
        return mine[min(spoken, len(mine) - 1)]

    return ScriptedModel(answer)


class Team:
    """A boss whose helper has an unsafe tool that needs a person."""

    def __init__(self, **settings: Any) -> None:
        self.ledger = Ledger()
        self.hang = asyncio.Event()

        @tool(approval=settings.pop("approval", "never"), timeout_s=5)
        async def pay(amount: int = 1) -> Any:
            if self.ledger.record("pay") == 1 and not self.hang.is_set():
                self.hang.set()
            return with_sources(f"paid {amount}", "http://receipt")

        @tool(effect="read")
        async def wait() -> str:
            self.ledger.record("wait")
            await asyncio.sleep(60)
            return "waited"

        self.helper = Agent("helper", "helper", tools=[pay, wait])
        self.boss = Agent("boss", "boss", tools=[self.helper.as_tool(**settings), wait])


def dialogue(*helper: Reply, boss: tuple[Reply, ...] = ()) -> ScriptedModel:
    first = boss or (ask(("helper", {"task": "Pay 5."})), finish("all done"))
    return by_agent(boss=list(first), helper=list(helper))


PAYS = (ask(("pay", {"amount": 5})), finish("it is paid"))


async def delegated(runtime: Any, run_id: str) -> list[Delegated]:
    return [
        delta
        for event in await runtime.history(run_id)
        for delta in event.record.deltas
        if isinstance(delta, Delegated)
    ]


async def test_a_call_is_a_run_of_its_own_and_its_answer_is_the_result(bench: Bench) -> None:
    team = Team()
    runtime = await bench.runtime(model := dialogue(*PAYS))

    result = await runtime.run(team.boss, "Pay.", requester="mia")

    assert (result.status, result.answer) == ("done", "all done")
    assert results(model.requests[-1]) == [("helper", "success", "it is paid")]
    (child,) = await delegated(runtime, result.run_id)
    run = await bench.run_of(child.child)
    assert (run.agent, run.task, run.parent, run.requester) == (
        "helper", "Pay 5.", result.run_id, "mia",
    )  # fmt: skip
    assert [s.url for s in result.sources] == ["http://receipt"]
    assert result.spent_tokens == 30 + 30  # its own two replies, and the child's two


async def test_the_child_may_spend_its_share_of_what_is_left_and_no_more(bench: Bench) -> None:
    team = Team(share=0.5)
    boss = Agent("boss", "boss", tools=[team.helper.as_tool()], limits=Limits(tokens=20_000))
    calls = ask(("helper", {"task": "Pay 1."}), ("helper", {"task": "Pay 2."}))
    runtime = await bench.runtime(dialogue(*PAYS, boss=(calls, finish("ok"))))

    result = await runtime.run(boss, "Pay.")

    grants = [child.grant_tokens for child in await delegated(runtime, result.run_id)]
    assert grants == [(20_000 - 15) // 4] * 2
    run = await bench.run_of((await delegated(runtime, result.run_id))[0].child)
    assert run.limits.tokens == grants[0]


async def test_a_child_that_fails_is_an_error_with_its_reason(bench: Bench) -> None:
    team = Team()
    helper = Agent("helper", "helper", limits=Limits(tokens=10, on_exhausted="error"))
    boss = Agent("boss", "boss", tools=[helper.as_tool()])
    runtime = await bench.runtime(model := dialogue(*PAYS))

    await runtime.run(boss, "Pay.")

    ((_, status, text),) = results(model.requests[-1])
    assert status == "error"
    assert "did not finish. tokens:" in text
    assert team.ledger["pay"] == 0


# -- requests of the child ------------------------------------------------------------------------


async def waiting(bench: Bench, team: Team, model: ScriptedModel) -> tuple[Any, Any, Any]:
    runtime = await bench.runtime(model)
    result = await runtime.run(team.boss, "Pay.")
    assert result.status == "waiting"
    (request,) = await runtime.requests(result.run_id)
    return runtime, result, request


@pytest.mark.parametrize("is_named_by_parent", [True, False])
async def test_what_the_child_asks_is_listed_and_decided_with_the_parent(
    bench: Bench, is_named_by_parent: bool
) -> None:
    team = Team(approval="always")
    runtime, result, request = await waiting(bench, team, model := dialogue(*PAYS))
    assert (request.question.tool, request.question.parent) == ("pay", result.run_id)
    assert result.asks == (request.ask_id,)
    assert result.children == (request.run_id,)

    named = result.run_id if is_named_by_parent else request.run_id
    await runtime.comment(named, request.ask_id, "To whom?", by="leo")
    await runtime.claim(named, request.ask_id, by="leo")
    await runtime.release(named, request.ask_id, by="leo")
    (talked_about,) = await runtime.requests(result.run_id)
    assert [said.text for said in talked_about.comments] == ["To whom?"]
    await runtime.decide(named, request.ask_id, "approve", by="mia")
    second = await bench.runtime(model)
    done = await second.work(result.run_id, team.boss)

    assert (done.status, done.answer, team.ledger["pay"]) == ("done", "all done", 1)
    assert len(await delegated(runtime, result.run_id)) == 1  # the same child


async def test_a_decision_makes_the_parent_due_and_a_worker_goes_on(bench: Bench) -> None:
    team = Team(approval="always")
    runtime, result, request = await waiting(bench, team, dialogue(*PAYS))
    assert await work_due_once(runtime, {"boss": team.boss}) == 0

    await runtime.decide(request.run_id, request.ask_id, "approve", by="mia")
    await work_due_once(runtime, {"boss": team.boss})

    assert (await runtime.result(result.run_id)).answer == "all done"


async def test_a_parent_whose_child_waits_is_on_record_as_waiting(bench: Bench) -> None:
    team = Team(approval="always")
    runtime, result, request = await waiting(bench, team, dialogue(*PAYS))

    for _ in range(2):
        assert (await runtime.result(result.run_id)).status == "waiting"
        listed = [head.run_id for head in await runtime.runs(status="waiting")]
        assert {result.run_id, request.run_id} <= set(listed)
        again = await runtime.work(result.run_id, team.boss)
        assert again.status == "waiting"

    await runtime.decide(result.run_id, request.ask_id, "approve", by="mia")
    await work_due_once(runtime, {"boss": team.boss})
    assert (await runtime.result(result.run_id)).status == "done"
    assert team.ledger["pay"] == 1


async def test_a_parent_that_waits_needs_whom_its_child_needs(bench: Bench) -> None:
    team = Team(approval="always")
    top = Agent("top", "top", tools=[team.boss.as_tool()])
    model = by_agent(
        top=[ask(("boss", {"task": "Pay."})), finish("top done")],
        boss=[ask(("helper", {"task": "Pay 5."})), finish("boss done")],
        helper=list(PAYS),
    )
    runtime = await bench.runtime(model)
    run_id = (await runtime.run(top, "Pay.")).run_id
    (request,) = await runtime.requests(run_id)
    (boss,) = (await runtime.result(run_id)).children
    family = (run_id, boss, request.run_id)

    before = await stands_of(runtime, *family)
    assert [stand.words for stand in before] == ["needs a person"] * 3
    assert [stand.asks for stand in before] == [(request.ask_id,)] * 3

    await runtime.decide(run_id, request.ask_id, "approve", by="mia")
    helper, middle, above = reversed(await stands_of(runtime, *family))
    assert (helper.needs, helper.resume) == ("worker", run_id)
    assert helper.more == f"the worker of run {boss} drives it"
    assert (middle.needs, middle.resume) == ("worker", run_id)
    assert (above.needs, above.resume, above.asks) == ("worker", "", ())

    await work_due_once(runtime, {"top": top})
    assert [stand.words for stand in await stands_of(runtime, *family)] == ["done"] * 3


async def stands_of(runtime: Any, *run_ids: str) -> list[Stand]:
    heads = [await runtime.store.head(RunId(run_id)) for run_id in run_ids]
    found = await stands(runtime, heads)
    return [found[run_id] for run_id in run_ids]


async def test_a_wake_up_that_was_lost_is_made_up_for_by_a_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = Team(approval="always")
    runtime, result, request = await waiting(bench, team, dialogue(*PAYS))

    async def lost(*args: Any) -> None: ...

    monkeypatch.setattr("fsm_agent.people.rouse", lost)
    await runtime.decide(request.run_id, request.ask_id, "approve", by="mia")
    await work_due_once(runtime, {"boss": team.boss, "helper": team.helper})

    assert (await runtime.result(result.run_id)).answer == "all done"
    assert team.ledger["pay"] == 1


async def test_a_decision_reaches_a_child_while_the_parents_other_call_runs(bench: Bench) -> None:
    team = Team(approval="always")
    both = ask(("helper", {"task": "Pay 5."}), ("wait", {}))
    runtime = await bench.runtime(dialogue(*PAYS, boss=(both, finish("ok"))))
    run_id = await runtime.start(team.boss, "Pay.")
    working = asyncio.create_task(runtime.work(run_id, team.boss))

    async def asked() -> Any:
        return await runtime.requests(run_id)

    (request,) = await until(asked)

    async def has_parked() -> bool:
        return (await runtime.store.head(RunId(request.run_id))).status == "waiting"

    await until(has_parked)
    await runtime.decide(run_id, request.ask_id, "approve", by="mia")

    await until(lambda: team.ledger["pay"])
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


async def test_two_children_with_the_same_question_must_be_told_apart(bench: Bench) -> None:
    team = Team(approval="always")
    calls = ask(("helper", {"task": "Pay 1."}), ("helper", {"task": "Pay 2."}))
    runtime = await bench.runtime(dialogue(*PAYS, boss=(calls, finish("ok"))))
    result = await runtime.run(team.boss, "Pay.")
    requests = await runtime.requests(result.run_id)
    assert len(requests) == 2

    with pytest.raises(UsageError, match="Name one"):
        await runtime.decide(result.run_id, requests[0].ask_id, "approve", by="mia")
    for request in requests:
        await runtime.decide(request.run_id, request.ask_id, "approve", by="mia")

    assert (await runtime.work(result.run_id, team.boss)).answer == "ok"
    assert team.ledger["pay"] == 2


class Pair:
    """A boss that asks to wipe while its helper, under the same id, asks to note."""

    def __init__(self, *, is_same: bool = False) -> None:
        self.ran: list[str] = []

        @tool(approval="always")
        async def wipe(disk: str) -> str:
            self.ran.append(f"wipe {disk}")
            return "wiped"

        @tool(approval="always")
        async def note(disk: str) -> str:
            self.ran.append(f"note {disk}")
            return "noted"

        helper = Agent("helper", "helper", tools=[wipe if is_same else note])
        self.boss = Agent("boss", "boss", tools=[wipe, helper.as_tool()])
        self.below = ask(("wipe" if is_same else "note", {"disk": "sda"}))

    async def waiting(self, bench: Bench) -> tuple[Runtime, str, Any, Any]:
        """The runtime, the boss's run, and the requests of the boss and of the helper."""
        both = ask(("wipe", {"disk": "sda"}), ("helper", {"task": "Note it."}))
        model = by_agent(boss=[both, finish("ok")], helper=[self.below, finish("helped")])
        runtime = await bench.runtime(model)
        result = await runtime.run(self.boss, "Go.")
        requests = {r.run_id == result.run_id: r for r in await runtime.requests(result.run_id)}
        assert {request.ask_id for request in requests.values()} == {"a4-0"}
        return runtime, result.run_id, requests[True], requests[False]


async def test_a_word_on_the_childs_request_never_decides_the_parents(bench: Bench) -> None:
    pair = Pair()
    runtime, run_id, own, below = await pair.waiting(bench)

    with pytest.raises(UsageError, match="several runs") as refused:
        await runtime.decide(run_id, "a4-0", "approve", by="mia")
    for act in (runtime.claim, runtime.release):
        with pytest.raises(UsageError, match="several runs"):
            await act(run_id, "a4-0", by="mia")
    with pytest.raises(UsageError, match="several runs"):
        await runtime.comment(run_id, "a4-0", "Which?", by="mia")
    await runtime.comment(run_id, "a4-0", "Of what?", by="mia", digest=below.digest)
    await runtime.claim(run_id, "a4-0", by="mia", digest=below.digest)
    await runtime.decide(run_id, "a4-0", "approve", by="mia", digest=below.digest)
    await runtime.work(run_id, pair.boss)

    assert own.run_id in str(refused.value)
    assert below.run_id in str(refused.value)
    assert pair.ran == ["note sda"]
    (left,) = await runtime.requests(run_id)
    assert (left.run_id, left.claimed_by, left.comments) == (run_id, "", ())
    await runtime.decide(run_id, "a4-0", "reject", by="mia")  # only one waits: it is clear
    assert (await runtime.work(run_id, pair.boss)).status == "done"
    assert pair.ran == ["note sda"]


@pytest.mark.parametrize("is_same", [False, True])
async def test_each_of_two_requests_is_decided_by_its_run_and_digest(
    bench: Bench, is_same: bool
) -> None:
    pair = Pair(is_same=is_same)
    runtime, run_id, own, below = await pair.waiting(bench)
    assert (own.digest == below.digest) == is_same

    for request, verb in ((own, "reject"), (below, "approve")):
        await runtime.decide(request.run_id, request.ask_id, verb, by="mia", digest=request.digest)
    ended = await runtime.work(run_id, pair.boss)

    assert ended.status == "done"
    assert pair.ran == ["wipe sda" if is_same else "note sda"]


async def test_a_second_word_on_the_parents_request_never_falls_on_the_childs(
    bench: Bench,
) -> None:
    pair = Pair()
    runtime, run_id, own, below = await pair.waiting(bench)
    first = await runtime.decide(
        run_id, "a4-0", "reject", by="mia", digest=own.digest, decision_id="d1"
    )

    again = await runtime.decide(run_id, "a4-0", "reject", by="mia", decision_id="d1")
    with pytest.raises(AlreadyDecided):
        await runtime.decide(run_id, "a4-0", "approve", by="leo", digest=own.digest)
    with pytest.raises(UsageError, match="several runs"):
        await runtime.decide(run_id, "a4-0", "approve", by="leo")
    with pytest.raises(DecisionStale):
        await runtime.decide(below.run_id, "a4-0", "approve", by="leo", digest=own.digest)

    assert (again.is_repeat, again.at_ms) == (True, first.at_ms)
    assert [request.run_id for request in await runtime.requests(run_id)] == [below.run_id]


# -- cancelling and dying -------------------------------------------------------------------------


async def test_cancelling_the_parent_ends_a_child_that_waits_and_its_requests(
    bench: Bench,
) -> None:
    team = Team(approval="always")
    runtime, result, request = await waiting(bench, team, dialogue(*PAYS))

    await runtime.cancel(result.run_id, by="mia", reason="enough")
    ended = await runtime.work(result.run_id, team.boss)

    assert (ended.status, ended.reason) == ("error", "cancelled")
    child = await runtime.result(request.run_id)
    assert (child.status, child.reason) == ("error", "cancelled")
    assert await runtime.requests() == []
    assert ended.spent_tokens == 15 + 15


async def test_cancelling_the_parent_ends_a_child_at_work(bench: Bench) -> None:
    team = Team()
    runtime = await bench.runtime(dialogue(ask(("wait", {}))))
    run_id = await runtime.start(team.boss, "Wait.")
    working = asyncio.create_task(runtime.work(run_id, team.boss))
    await until(lambda: team.ledger["wait"])

    await runtime.cancel(run_id, by="mia")
    result = await working

    assert result.reason == "cancelled"
    (child,) = await delegated(runtime, run_id)
    assert (await runtime.result(child.child)).reason == "cancelled"


async def test_a_parent_that_is_taken_over_goes_on_with_the_same_child(bench: Bench) -> None:
    team = Team()
    ledger = Ledger()

    @tool(effect="idempotent", timeout_s=5)
    async def put() -> str:
        if ledger.record("put") == 1:
            await asyncio.sleep(60)
        return "put"

    helper = Agent("helper", "helper", tools=[put])
    boss = Agent("boss", "boss", tools=[helper.as_tool()])
    model = dialogue(ask(("put", {})), finish("done"))
    store = await bench.store()
    first = await bench.runtime(model, store=store, lease_s=QUICK)
    run_id = await first.start(boss, "Put.")
    working = asyncio.create_task(first.work(run_id, boss))
    await until(lambda: ledger["put"])
    await die(store, working)
    second = await bench.runtime(model, lease_s=QUICK)

    result = await take_over(second, run_id, boss)

    assert (result.status, ledger["put"]) == ("done", 2)
    assert len(await delegated(second, run_id)) == 1
    assert team.ledger == {}


async def test_stopping_the_process_gives_both_back(bench: Bench) -> None:
    team = Team()
    runtime = await bench.runtime(dialogue(ask(("wait", {}))))
    run_id = await runtime.start(team.boss, "Wait.")
    working = asyncio.create_task(runtime.work(run_id, team.boss))
    await until(lambda: team.ledger["wait"])

    working.cancel()
    with suppress(asyncio.CancelledError):
        await working

    (child,) = await delegated(runtime, run_id)
    for each in (run_id, child.child):
        with suppress(RunBusy):
            claim = await runtime.store.claim(RunId(each), owner="x", nonce="n" + each, term_ms=500)
            assert claim.lease.owner == "x"


async def test_children_may_have_children(bench: Bench) -> None:
    team = Team(approval="always")
    top = Agent("top", "top", tools=[team.boss.as_tool()])
    model = by_agent(
        top=[ask(("boss", {"task": "Pay."})), finish("top done")],
        boss=[ask(("helper", {"task": "Pay 5."})), finish("boss done")],
        helper=list(PAYS),
    )
    runtime = await bench.runtime(model)
    result = await runtime.run(top, "Pay.")
    assert result.status == "waiting"
    (request,) = await runtime.requests(result.run_id)

    await runtime.decide(result.run_id, request.ask_id, "approve", by="mia")
    await work_due_once(runtime, {"top": top})

    assert (await runtime.result(result.run_id)).answer == "top done"
    assert team.ledger["pay"] == 1


def test_a_share_that_cannot_be_is_refused() -> None:
    with pytest.raises(BadAgent, match="share"):
        Agent("a").as_tool(share=0)


def test_limits_of_a_child_are_those_of_its_agent_but_for_tokens() -> None:
    assert replace(Limits(turns=3), tokens=5) == Limits(turns=3, tokens=5)
