"""Forks: a new run from the entries of another one, in which nothing in doubt happens by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from checkpoints.errors import RunNotFound, StoreUnavailable
from checkpoints.model import RunId
from fsm_agent import Agent, Limits, Result, Runtime, ToolContext, keyed, pause, tool
from fsm_agent import ask as asking_people
from fsm_agent.engine.forking import whole_steps
from fsm_agent.errors import NotAllowed, UsageError
from fsm_agent.reflection.settings import Reflection
from fsm_agent.run.content import UserMessage
from fsm_agent.run.delta import Forked, Intended, Settled
from fsm_agent.run.record import Run
from fsm_agent.run.state import State
from fsm_agent.worker.local import work_due_once
from tests.conftest import (
    Bench,
    Ledger,
    ScriptedModel,
    ask,
    die,
    finish,
    results,
    turns,
    until,
)

QUICK = 0.3


class Desk:
    """Tools of each kind; what they did is counted outside the store, with the keys they sent."""

    def __init__(self, **approvals: Any) -> None:
        self.ledger, self.keys = Ledger(), list[str]()
        self.hangs = False

        @tool(effect="read")
        def look() -> str:
            self.ledger.record("look")
            return "seen"

        @tool(effect=keyed(ttl_s=600), approval=approvals.get("hold", "never"))
        async def hold(ctx: ToolContext) -> str:
            self.ledger.record("hold")
            self.keys.append(ctx.idempotency_key)
            return "held"

        @tool(approval=approvals.get("pay", "never"), timeout_s=2)
        async def pay(amount: int = 1) -> str:
            self.ledger.record("pay")
            if self.hangs:
                await asyncio.sleep(60)
            return f"paid {amount}"

        @tool
        def choose() -> Any:
            self.ledger.record("choose")
            return pause("Which one?", options=["a", "b"])

        self.agent = Agent("desk", tools=[look, hold, pay, choose])


def model_of(*names: str) -> ScriptedModel:
    """One call a turn, then the end."""
    return turns(*[ask((name, {})) for name in names], finish("all done"))


async def states(bench: Bench, run_id: str) -> list[Run]:
    """The run after each of its entries."""
    found = []
    runtime = await bench.runtime(model_of())
    for event in await runtime.history(run_id):
        found.append((await runtime.replay(run_id, at=event.seq)).run)
    return found


async def finished(bench: Bench, desk: Desk, *names: str) -> tuple[Runtime, Result]:
    runtime = await bench.runtime(model_of(*names))
    return runtime, await runtime.run(desk.agent, "Go.", requester="kim")


async def cut_off_in_pay(bench: Bench, desk: Desk) -> str:
    """A run whose worker died in the middle of `pay`."""
    desk.hangs = True
    store = await bench.store()
    runtime = await bench.runtime(model_of("pay"), store=store, lease_s=QUICK)
    run_id = await runtime.start(desk.agent, "Go.")
    working = asyncio.create_task(runtime.work(run_id, desk.agent))
    await until(lambda: desk.ledger["pay"])
    await die(store, working)
    desk.hangs = False
    return run_id


# -- where, and what is done again ----------------------------------------------------------------


async def test_a_finished_run_can_be_forked_at_each_whole_step_and_ends_alike(
    bench: Bench,
) -> None:
    desk = Desk()
    runtime, origin = await finished(bench, desk, "hold", "look")
    steps = whole_steps(await states(bench, origin.run_id))
    assert desk.ledger == {"hold": 1, "look": 1}

    for seq in steps:
        fork = await runtime.fork(origin.run_id, at=seq, new_id=f"{origin.run_id}-{seq}")
        before = desk.ledger["hold"]
        at = (await runtime.replay(origin.run_id, at=seq)).run
        held = any(m.text == "held" for m in at.messages)
        in_doubt = fork.in_doubt == ("hold",)
        result = await runtime.work(fork.run_id, desk.agent)

        if in_doubt:
            assert result.status == "waiting"
            (request,) = await runtime.requests(fork.run_id)
            await runtime.decide(fork.run_id, request.ask_id, "happened", by="mia", answer="held")
            result = await runtime.work(fork.run_id, desk.agent)
        assert (result.status, result.answer) == ("done", "all done")
        assert desk.ledger["hold"] == before + (not held and not in_doubt), seq
        assert fork.done == (("hold",) if held else ())
    assert len(set(desk.keys)) == len(desk.keys)  # each fork has keys of its own


async def test_no_fork_begins_in_a_model_call_or_after_the_end_and_the_error_says_where(
    bench: Bench,
) -> None:
    desk = Desk()
    runtime, origin = await finished(bench, desk, "look")
    history = await states(bench, origin.run_id)
    asking = next(run.seq for run in history if run.has_attempt)
    assert [run.seq for run in history if run.has_attempt] == [asking, 10]
    possible = r"Possible: 1-2, 4-9\."

    with pytest.raises(UsageError, match=f"entry {asking}: a model call is under way.*{possible}"):
        await runtime.fork(origin.run_id, at=asking, new_id="n1")
    with pytest.raises(UsageError, match=f"that entry ended the run.*{possible}"):
        await runtime.fork(origin.run_id, at=len(history), new_id="n1")
    for say in (" \n", "x" * 200_001):
        with pytest.raises(UsageError, match="a message has 1 to 200000 characters"):
            await runtime.fork(origin.run_id, at=2, new_id="n1", say=say)
    for seq in (0, -1, 99):
        with pytest.raises(UsageError, match=f"it has entries 1 to 11.*{possible}"):
            await runtime.fork(origin.run_id, at=seq, new_id="n1")
    with pytest.raises(RunNotFound):
        await runtime.fork("r-nobody", new_id="n1")
    with pytest.raises(RunNotFound):
        await runtime.store.head(RunId("n1"))


async def test_the_journal_of_a_fork_is_that_of_its_origin_and_names_it(bench: Bench) -> None:
    desk = Desk()
    runtime, origin = await finished(bench, desk, "hold", "look")
    old = await runtime.history(origin.run_id)

    fork = await runtime.fork(origin.run_id, at=8, new_id="f1", by="mia")

    new = await runtime.history(fork.run_id)
    assert [event.record for event in new[:-1]] == [event.record for event in old[:7]]
    assert new[7].record.deltas[:-1] == old[7].record.deltas
    forked = new[7].record.deltas[-1]
    assert isinstance(forked, Forked)
    assert (forked.origin, forked.at_seq, forked.by) == (origin.run_id, 8, "mia")
    assert (await runtime.replay(fork.run_id)).differences == ()
    assert len(await runtime.history(origin.run_id)) == len(old)


async def test_budgets_carry_over_and_the_time_between_counts_for_nobody(bench: Bench) -> None:
    desk = Desk()
    runtime, origin = await finished(bench, desk, "hold", "look")
    at = (await runtime.replay(origin.run_id, at=8)).run

    await runtime.fork(origin.run_id, at=8, new_id="f2")
    result = await runtime.work("f2", desk.agent)

    run = await bench.run_of("f2")
    origin_run = await bench.run_of(origin.run_id)
    assert at.spent_tokens > 0
    assert result.spent_tokens == origin_run.spent_tokens
    assert (run.turns, run.tool_calls) == (origin_run.turns, origin_run.tool_calls)
    assert run.waited_ms >= (await runtime.store.head(RunId("f2"))).created_ms - at.updated_ms


async def test_a_fork_that_has_spent_everything_finishes_as_its_origin_would(bench: Bench) -> None:
    desk = Desk()
    runtime = await bench.runtime(model_of("look", "look", "look"))
    origin = await runtime.run(desk.agent, "Go.", limits=Limits(turns=2, final_turns=1))
    steps = whole_steps(await states(bench, origin.run_id))

    await runtime.fork(origin.run_id, at=steps[-1], new_id="f3")
    result = await runtime.work("f3", desk.agent)

    assert (result.status, result.reason) == (origin.status, origin.reason)


async def test_the_same_fork_again_is_the_same_run_and_another_one_is_refused(
    bench: Bench,
) -> None:
    desk = Desk()
    runtime, origin = await finished(bench, desk, "look")

    unnamed = [await runtime.fork(origin.run_id, at=4) for _ in range(2)]
    assert len({fork.run_id for fork in unnamed}) == 2
    first = await runtime.fork(origin.run_id, at=4, new_id="f4", by="mia")
    again = await runtime.fork(origin.run_id, at=4, new_id="f4", by="leo")
    await runtime.work("f4", desk.agent)
    after = await runtime.fork(origin.run_id, at=4, new_id="f4")

    assert (first.is_new, again.is_new, after.is_new) == (True, False, False)
    assert replace(first, is_new=False) == again == after
    for other in ({"at": 5}, {"at": 4, "say": "hurry"}):
        with pytest.raises(UsageError, match="'f4' exists already, and it is not this fork"):
            await runtime.fork(origin.run_id, new_id="f4", **other)
    with pytest.raises(UsageError, match="exists already"):
        await runtime.fork(origin.run_id, at=4, new_id=origin.run_id)


async def test_forks_made_at_once_under_one_id_are_one_run(bench: Bench) -> None:
    desk = Desk()
    runtime, origin = await finished(bench, desk, "look")
    others = [await bench.runtime(model_of()) for _ in range(3)]

    made = await asyncio.gather(
        *(each.fork(origin.run_id, at=5, new_id="f5") for each in [runtime, *others] * 4)
    )

    assert sum(fork.is_new for fork in made) == 1
    assert len(await runtime.history("f5")) == 5


async def test_a_fork_waits_for_somebody_unless_it_is_put_up_for_workers(bench: Bench) -> None:
    desk = Desk()
    runtime, origin = await finished(bench, desk, "look")

    await runtime.fork(origin.run_id, at=1, new_id="f6")
    assert await work_due_once(runtime, {"desk": desk.agent}) == 0
    assert (await runtime.store.head(RunId("f6"))).status == "sleeping"

    await runtime.fork(origin.run_id, at=1, new_id="f7", is_due=True)
    assert await work_due_once(runtime, {"desk": desk.agent}) == 1
    assert (await runtime.result("f7")).status == "done"


# -- what is in doubt, asked, agreed --------------------------------------------------------------


@pytest.mark.parametrize("verb", ["happened", "rerun", "fail"])
async def test_a_call_under_way_in_the_origin_is_in_doubt_in_the_fork(
    bench: Bench, verb: Any
) -> None:
    desk = Desk()
    origin = await cut_off_in_pay(bench, desk)
    runtime = await bench.runtime(model := model_of("pay"))

    fork = await runtime.fork(origin, new_id=f"d-{verb}")
    waits = await runtime.work(fork.run_id, desk.agent)

    assert (fork.in_doubt, fork.may_happen_again, waits.status) == (("pay",), (), "waiting")
    (request,) = await runtime.requests(fork.run_id)
    assert f"It was started in run {origin}" in request.question.reason
    assert request.question.kind == "in_doubt"
    if verb == "rerun":
        await until(lambda: _is_unlocked(runtime, request.unlock_ms), limit_s=30)
    said = "it was paid" if verb == "happened" else None
    await runtime.decide(fork.run_id, request.ask_id, verb, by="mia", answer=said)
    assert (await runtime.work(fork.run_id, desk.agent)).status == "done"
    assert desk.ledger["pay"] == (2 if verb == "rerun" else 1)
    keys = [d.key for e in await runtime.history(fork.run_id) for d in e.record.deltas
            if isinstance(d, Intended)]  # fmt: skip
    assert len(set(keys)) == (2 if verb == "rerun" else 1)
    told = {"happened": "it was paid", "rerun": "paid 1", "fail": "It is not known whether"}[verb]
    assert results(model.requests[-1])[0][2].startswith(told)


async def _is_unlocked(runtime: Runtime, unlock_ms: int) -> bool:
    return await runtime.store.now_ms() >= unlock_ms


async def test_a_keyed_call_under_way_in_the_origin_is_never_sent_under_a_new_key_unasked(
    bench: Bench,
) -> None:
    desk = Desk()
    runtime, origin = await finished(bench, desk, "hold")
    history = await states(bench, origin.run_id)
    started = next(r.seq for r in history if any(c.phase == "started" for c in r.calls))

    fork = await runtime.fork(origin.run_id, at=started, new_id="d2")

    assert fork.in_doubt == ("hold",)
    assert (await runtime.work("d2", desk.agent)).status == "waiting"
    assert desk.ledger["hold"] == 1


async def test_a_read_that_was_under_way_simply_runs_again(bench: Bench) -> None:
    desk = Desk()
    runtime, origin = await finished(bench, desk, "look")
    history = await states(bench, origin.run_id)
    started = next(r.seq for r in history if any(c.phase == "started" for c in r.calls))

    fork = await runtime.fork(origin.run_id, at=started, new_id="d3")

    assert (fork.in_doubt, fork.done) == ((), ())
    assert (await runtime.work("d3", desk.agent)).status == "done"
    assert desk.ledger["look"] == 2


async def test_a_request_is_asked_anew_and_each_run_has_its_own_decision(bench: Bench) -> None:
    desk = Desk(pay="always")
    runtime = await bench.runtime(model_of("pay"))
    origin = await runtime.run(desk.agent, "Go.")
    (asked,) = await runtime.requests(origin.run_id)

    fork = await runtime.fork(origin.run_id, new_id="a1")
    assert fork.asked_again == ("pay",)
    assert await runtime.requests("a1") == []
    assert (await runtime.work("a1", desk.agent)).status == "waiting"
    (anew,) = await runtime.requests("a1")
    await runtime.decide(origin.run_id, asked.ask_id, "approve", by="mia")
    assert (await runtime.work(origin.run_id, desk.agent)).status == "done"
    assert desk.ledger == {"pay": 1}

    assert (anew.question.kind, anew.digest) == ("approval", asked.digest)
    assert (await runtime.work("a1", desk.agent)).status == "waiting"
    await runtime.decide("a1", anew.ask_id, "reject", by="leo")
    assert (await runtime.work("a1", desk.agent)).status == "done"
    assert desk.ledger == {"pay": 1}


async def test_an_approval_counts_for_the_run_that_asked_and_not_for_its_fork(
    bench: Bench,
) -> None:
    """The prefix ends between the decision and the start."""
    desk = Desk(pay="always")
    runtime = await bench.runtime(model_of("pay"))
    origin = await runtime.run(desk.agent, "Go.")
    (asked,) = await runtime.requests(origin.run_id)
    await runtime.decide(origin.run_id, asked.ask_id, "approve", by="mia")
    await runtime.work(origin.run_id, desk.agent)
    history = await states(bench, origin.run_id)
    approved = [r.seq for r in history if any(c.phase == "open" and c.is_approved for c in r.calls)]
    assert approved

    for seq in approved:
        fork = await runtime.fork(origin.run_id, at=seq, new_id=f"a2-{seq}")
        assert fork.asked_again == ("pay",)
        assert (await runtime.work(fork.run_id, desk.agent)).status == "waiting"
        (request,) = await runtime.requests(fork.run_id)
        assert request.question.reason.startswith(f"mia let it run in {origin.run_id}")
    assert desk.ledger == {"pay": 1}


async def test_a_standing_consent_holds_in_its_own_run_only(bench: Bench) -> None:
    desk = Desk(pay="always")
    runtime = await bench.runtime(model_of("pay", "pay"))
    origin = await runtime.run(desk.agent, "Go.")
    (asked,) = await runtime.requests(origin.run_id)
    await runtime.decide(origin.run_id, asked.ask_id, "approve", by="mia", is_standing=True)
    assert (await runtime.work(origin.run_id, desk.agent)).status == "done"
    assert desk.ledger == {"pay": 2}
    between = next(r.seq for r in await states(bench, origin.run_id) if r.turns == 1 and
                   r.state is State.REFLECT)  # fmt: skip

    await runtime.fork(origin.run_id, at=between, new_id="a3")

    assert await runtime.consents("a3") == []
    assert (await runtime.work("a3", desk.agent)).status == "waiting"
    assert desk.ledger == {"pay": 2}


async def test_a_question_that_a_tool_asked_is_asked_again_and_the_tool_does_not_run_again(
    bench: Bench,
) -> None:
    desk = Desk()
    runtime = await bench.runtime(model := model_of("choose"))
    origin = await runtime.run(desk.agent, "Go.")

    fork = await runtime.fork(origin.run_id, new_id="q1")
    assert (fork.in_doubt, fork.asked_again) == ((), ("choose",))
    assert (await runtime.work("q1", desk.agent)).status == "waiting"

    (request,) = await runtime.requests("q1")
    assert (request.question.kind, request.question.reason) == ("question", "Which one?")
    await runtime.decide("q1", request.ask_id, "answer", by="mia", answer="b")
    assert (await runtime.work("q1", desk.agent)).status == "done"
    assert results(model.requests[-1]) == [("choose", "success", "b")]
    assert desk.ledger == {"choose": 1}


# -- going on differently, families ---------------------------------------------------------------


async def test_words_are_heard_before_the_next_model_call(bench: Bench) -> None:
    desk = Desk()
    _, origin = await finished(bench, desk, "look")
    other = await bench.runtime(model := model_of("look"))
    steps = whole_steps(await states(bench, origin.run_id))

    for seq in steps:
        model.requests.clear()
        await other.fork(origin.run_id, at=seq, new_id=f"s-{seq}", say="But \ud800 hurry.")
        assert (await other.work(f"s-{seq}", desk.agent)).status == "done"
        said = [m.text for m in model.requests[-1].messages if isinstance(m, UserMessage)]
        assert said == ["Go.", "But \ufffd hurry."], seq
        with_calls = [m for m in model.requests[-1].messages if hasattr(m, "call_id")]
        assert len(with_calls) == 1, seq


async def test_a_fork_of_a_fork_knows_the_one_it_came_from(bench: Bench) -> None:
    desk = Desk()
    origin = await cut_off_in_pay(bench, desk)
    runtime = await bench.runtime(model_of("pay"))

    await runtime.fork(origin, new_id="g1")
    await runtime.fork("g1", new_id="g2", say="again")
    waits = await runtime.work("g2", desk.agent)
    await runtime.fork("g2", new_id="g3")

    assert waits.status == "waiting"
    assert (await bench.run_of("g2")).origin == "g1"
    assert (await runtime.work("g3", desk.agent)).status == "waiting"
    (request,) = await runtime.requests("g3")
    assert f"It was started in run {origin}" in request.question.reason
    assert desk.ledger == {"pay": 1}


@pytest.mark.parametrize("verb", ["happened", "rerun"])
async def test_a_call_that_a_child_run_works_on_is_in_doubt_and_the_child_is_left_alone(
    bench: Bench, verb: Any
) -> None:
    desk = Desk(pay="always")
    helper = Agent("helper", tools=desk.agent.registry, limits=Limits(wall_s=1.0))
    boss = Agent("boss", tools=[helper.as_tool(share=0.4)])

    def answer(request: Any) -> Any:
        spoken = sum(hasattr(m, "calls") for m in request.messages)
        if any(t.name == "helper" for t in request.tools):
            return [ask(("helper", {"task": "pay"})), finish("all done")][min(spoken, 1)]
        return [ask(("pay", {})), finish("child done")][min(spoken, 1)]

    runtime = await bench.runtime(ScriptedModel(answer))
    origin = await runtime.run(boss, "Go.")
    (child,) = origin.children

    fork = await runtime.fork(origin.run_id, new_id=f"c-{verb}")
    waits = await runtime.work(fork.run_id, boss)

    assert (fork.in_doubt, waits.children) == (("helper",), ())
    (request,) = [r for r in await runtime.requests(fork.run_id) if r.run_id == fork.run_id]
    if verb == "rerun":
        await until(lambda: _is_unlocked(runtime, request.unlock_ms), limit_s=30)
    said = "paid by hand" if verb == "happened" else None
    await runtime.decide(fork.run_id, request.ask_id, verb, by="mia", answer=said)
    result = await runtime.work(fork.run_id, boss)
    if verb == "happened":
        assert result.status == "done"
    else:
        (anew,) = result.children
        assert anew != child
        assert (await bench.run_of(anew)).parent == fork.run_id
    assert (await runtime.store.head(RunId(child))).status == "waiting"
    assert desk.ledger == {}


async def test_a_fork_of_a_child_run_stands_alone(bench: Bench) -> None:
    desk = Desk(pay="always")
    boss = Agent("boss", tools=[desk.agent.as_tool(name="helper")])

    def answer(request: Any) -> Any:
        spoken = sum(hasattr(m, "calls") for m in request.messages)
        if any(t.name == "helper" for t in request.tools):
            return [ask(("helper", {"task": "pay"})), finish("all done")][min(spoken, 1)]
        return [ask(("pay", {})), finish("child done")][min(spoken, 1)]

    runtime = await bench.runtime(ScriptedModel(answer))
    origin = await runtime.run(boss, "Go.")
    (child,) = origin.children

    await runtime.fork(child, new_id="k1")
    assert (await runtime.work("k1", desk.agent)).status == "waiting"

    (request,) = await runtime.requests("k1")
    assert (request.question.parent, (await bench.run_of("k1")).parent) == ("", "")
    await runtime.decide("k1", request.ask_id, "approve", by="mia")
    assert (await runtime.work("k1", desk.agent)).status == "done"
    assert (await runtime.result(origin.run_id)).children == (child,)
    assert (await runtime.store.head(RunId(child))).status == "waiting"


async def test_a_run_that_ended_in_error_or_was_cancelled_can_go_on_as_a_fork(
    bench: Bench,
) -> None:
    desk = Desk(pay="always")
    runtime = await bench.runtime(model_of("pay"))
    origin = await runtime.run(desk.agent, "Go.")
    await runtime.cancel(origin.run_id, by="leo")
    assert (await runtime.work(origin.run_id, desk.agent)).status == "error"

    await runtime.fork(origin.run_id, new_id="e1")
    assert (await runtime.work("e1", desk.agent)).status == "waiting"
    (request,) = await runtime.requests("e1")
    await runtime.decide("e1", request.ask_id, "approve", by="mia")

    assert (await runtime.work("e1", desk.agent)).status == "done"


async def test_whole_outputs_come_along(bench: Bench) -> None:
    @tool(effect="read", max_output_chars=100)
    def long() -> str:
        return "x" * 5000

    runtime = await bench.runtime(model_of("long"))
    origin = await runtime.run(Agent("desk", tools=[long]), "Go.")

    await runtime.fork(origin.run_id, new_id="b1")

    blobs = [d.blob for e in await runtime.history("b1") for d in e.record.deltas
             if isinstance(d, Settled)]  # fmt: skip
    assert [await runtime.store.get_blob(RunId("b1"), blob) for blob in blobs] == [b"x" * 5000]


class Outputs:
    """A finished run with two outputs that are kept as blobs, and ways to fork it."""

    def __init__(self, runtime: Runtime, agent: Agent, run_id: str) -> None:
        self.runtime, self.agent, self.run_id = runtime, agent, run_id

    @classmethod
    async def of(cls, bench: Bench) -> Outputs:
        sizes = iter((5000, 6000))

        @tool(effect="read", max_output_chars=100)
        def long() -> str:
            return "x" * next(sizes)

        agent = Agent("desk", tools=[long])
        runtime = await bench.runtime(model_of("long", "long"))
        return cls(runtime, agent, (await runtime.run(agent, "Go.")).run_id)

    async def kept_by(self, run_id: str) -> list[int]:
        """Sizes of what the run has of them."""
        deltas = [d for e in await self.runtime.history(self.run_id) for d in e.record.deltas]
        names = [d.blob for d in deltas if isinstance(d, Settled)]
        blobs = [await self.runtime.store.get_blob(RunId(run_id), name) for name in names]
        return [len(blob) for blob in blobs if blob]


async def test_a_worker_that_claims_a_fork_at_once_finds_its_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = await Outputs.of(bench)
    runtime, found = outputs.runtime, []
    create = runtime.store.create

    async def claimed_at_once(run_id: RunId, **options: Any) -> bool:
        is_new = await create(run_id, **options)
        found.append(await outputs.kept_by(run_id))
        await work_due_once(runtime, {"desk": outputs.agent})
        return is_new

    monkeypatch.setattr(runtime.store, "create", claimed_at_once, raising=False)
    await runtime.fork(outputs.run_id, new_id="b2", is_due=True)

    assert found == [[5000, 6000]]
    assert (await runtime.result("b2")).answer == "all done"


@pytest.mark.parametrize("before", ["put_blob", "create"])
async def test_who_dies_while_forking_leaves_no_run_without_its_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    outputs = await Outputs.of(bench)
    runtime, calls = outputs.runtime, Ledger()
    call = getattr(runtime.store, before)

    async def dies(*args: Any, **options: Any) -> Any:
        if calls.record("call") == {"put_blob": 2, "create": 1}[before]:
            raise StoreUnavailable("this process is dead", applied=False)
        return await call(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(runtime.store, before, dies, raising=False)
        with pytest.raises(StoreUnavailable):
            await runtime.fork(outputs.run_id, new_id="b3", is_due=True)
    with pytest.raises(RunNotFound):
        await runtime.store.head(RunId("b3"))
    assert await runtime.store.due() == []

    await runtime.fork(outputs.run_id, new_id="b3", is_due=True)

    assert await outputs.kept_by("b3") == [5000, 6000]


async def test_a_fork_under_an_id_that_is_taken_leaves_that_run_as_it_is(bench: Bench) -> None:
    outputs = await Outputs.of(bench)
    other = await outputs.runtime.start(outputs.agent, "Something else.")

    with pytest.raises(UsageError, match="exists already, and it is not this fork"):
        await outputs.runtime.fork(outputs.run_id, new_id=other)

    assert await outputs.kept_by(other) == []


async def test_a_long_run_is_forked_in_one_step(bench: Bench) -> None:
    desk = Desk()
    desk.agent.reflection = Reflection(may_repeat=("look",))
    runtime = await bench.runtime(model_of(*["look"] * 60))
    limits = Limits(turns=100)
    origin = await runtime.run(desk.agent, "Go.", limits=limits)
    assert origin.status == "done"

    await runtime.fork(origin.run_id, new_id="l1")

    replayed = await runtime.replay("l1")
    assert (replayed.differences, replayed.last_seq > 350) == ((), True)
    assert (await runtime.work("l1", desk.agent)).answer == "all done"


async def test_who_forks_a_run_has_started_it_and_may_not_approve_what_follows(
    bench: Bench,
) -> None:
    desk = Desk(pay=asking_people(not_requester=True))
    runtime = await bench.runtime(model_of("pay"))
    origin = await runtime.run(desk.agent, "Go.", requester="kim")
    assert origin.status == "waiting"

    await runtime.fork(origin.run_id, new_id="f1", by="leo", say="Pay more.")
    await runtime.work("f1", desk.agent)
    (request,) = await runtime.requests("f1")

    with pytest.raises(NotAllowed):
        await runtime.decide("f1", request.ask_id, "approve", by="Leo ")
    await runtime.decide("f1", request.ask_id, "approve", by="kim")
    assert (await runtime.work("f1", desk.agent)).status == "done"
    assert desk.ledger["pay"] == 1
