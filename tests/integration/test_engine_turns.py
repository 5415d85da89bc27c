"""Whole runs on a real store: what a turn costs, in which order things land, and what ends them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from checkpoints.errors import CorruptEntry, RunBusy, RunClosed, RunExists, RunNotFound
from checkpoints.model import RunId
from fsm_agent import Agent, Limits, ToolContext, keyed, tool
from fsm_agent.errors import BadAgent, UsageError
from fsm_agent.llm.model import Reply, RequestedCall, StepRequest
from fsm_agent.run.content import AssistantMessage, NoteMessage, ToolMessage, UserMessage
from fsm_agent.run.delta import Intended, Settled
from fsm_agent.run.event import EntryEvent, LiveEvent
from fsm_agent.run.state import State, Trigger
from tests.conftest import (
    USAGE,
    Bench,
    Ledger,
    ScriptedModel,
    ask,
    finish,
    results,
    think,
    turns,
    until,
)


@tool(effect="read")
async def look(q: str = "") -> str:
    """Look something up."""
    return f"found {q}"


PLAIN = Agent("plain", tools=[look])


async def test_a_run_without_tools_is_two_commits(bench: Bench) -> None:
    store = await bench.store()
    runtime = await bench.runtime(turns(finish("42")), store=store)

    result = await runtime.run(PLAIN, "What is it?")

    assert (result.status, result.answer, result.is_completed) == ("done", "42", True)
    assert [[r.trigger for r in records] for records in store.records()] == [
        [Trigger.OBSERVED, Trigger.BEGAN],
        [Trigger.ANSWERED],
    ]


async def test_a_plain_turn_is_two_round_trips_with_its_effect_ledger(bench: Bench) -> None:
    store = await bench.store()
    replies = [ask(("look", {"q": str(n)})) for n in range(4)]
    runtime = await bench.runtime(turns(*replies, finish()), store=store)

    await runtime.run(PLAIN, "Go.")

    triggers = [[r.trigger.value for r in records] for records in store.records()]
    assert (
        triggers[1:-1]
        == [
            ["calls", "progressed"],
            ["progressed", "acted", "continued", "observed", "began"],
        ]
        * 4
    )
    assert len(triggers) == 2 * 4 + 2


async def test_the_intent_is_on_record_before_the_tool_runs(bench: Bench) -> None:
    store = await bench.store()
    seen: list[int] = []

    @tool
    async def pay(ctx: ToolContext) -> str:
        intents = [
            delta
            for records in store.records()
            for record in records
            for delta in record.deltas
            if isinstance(delta, Intended) and delta.call_id == ctx.call_id
        ]
        seen.append(len(intents))
        assert intents[0].key == ctx.idempotency_key
        return "paid"

    runtime = await bench.runtime(turns(ask(("pay", {})), finish()), store=store)
    await runtime.run(Agent("a", tools=[pay]), "Go.")

    assert seen == [1]


async def test_results_are_committed_one_by_one_as_they_land_and_shown_in_call_order(
    bench: Bench,
) -> None:
    gates = {name: asyncio.Event() for name in "abc"}

    @tool(effect="read")
    async def wait(name: str) -> str:
        await gates[name].wait()
        return name.upper()

    model = turns(ask(*(("wait", {"name": name}) for name in "abc")), finish())
    store = await bench.store()
    runtime = await bench.runtime(model, store=store)
    run_id = await runtime.start(Agent("a", tools=[wait]), "Go.")
    working = asyncio.create_task(runtime.work(run_id, Agent("a", tools=[wait])))

    for landed, name in enumerate("cab", 1):
        await until(lambda: len(model.requests) == 1)
        gates[name].set()
        if landed < 3:
            await until(lambda: bench.has_settled(run_id, landed))  # noqa: B023
    await working

    assert [call_id[-1] for call_id, _ in await bench.settled(run_id)] == ["2", "0", "1"]
    assert [text for _, _, text in results(model.requests[-1])] == ["A", "B", "C"]


async def test_results_that_land_together_are_an_entry_each(bench: Bench) -> None:
    store = await bench.store()
    runtime = await bench.runtime(
        turns(ask(*(("look", {"q": str(n)}) for n in range(5))), finish()), store=store
    )

    await runtime.run(PLAIN, "Go.")

    settled = [
        sum(isinstance(d, Settled) for d in record.deltas)
        for records in store.records()
        for record in records
    ]
    assert max(settled) == 1
    assert sum(settled) == 5


async def test_no_more_calls_run_at_once_than_the_agent_allows_and_none_is_dropped(
    bench: Bench,
) -> None:
    running, most = 0, 0

    @tool(effect="read")
    async def slow(n: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return str(n)

    model = turns(ask(*(("slow", {"n": n}) for n in range(12))), finish())
    runtime = await bench.runtime(model)

    await runtime.run(Agent("a", tools=[slow], parallel_calls=3), "Go.")

    assert most == 3
    assert [text for _, _, text in results(model.requests[-1])] == [str(n) for n in range(12)]


async def test_a_tools_own_limit_holds_while_others_run_beside_it(bench: Bench) -> None:
    running: list[str] = []
    together: set[tuple[str, ...]] = set()

    def make(name: str, concurrency: int | None) -> Any:
        async def body(n: int) -> str:
            running.append(name)
            together.add(tuple(sorted(running)))
            await asyncio.sleep(0.01)
            running.remove(name)
            return f"{name}{n}"

        return tool(effect="read", name=name, concurrency=concurrency)(body)

    agent = Agent("a", tools=[make("one", 1), make("many", None)])
    calls = [("one", {"n": n}) for n in range(3)] + [("many", {"n": n}) for n in range(3)]
    runtime = await bench.runtime(turns(ask(*calls), finish()))

    await runtime.run(agent, "Go.")

    assert max(names.count("one") for names in together) == 1
    assert max(names.count("many") for names in together) == 3


async def test_identical_harmless_calls_run_once_and_effects_never_merge(
    bench: Bench, ledger: Ledger
) -> None:
    @tool(effect="read")
    def read() -> str:
        return str(ledger.record("read"))

    @tool
    def pay() -> str:
        return str(ledger.record("pay"))

    model = turns(ask(("read", {}), ("read", {}), ("pay", {}), ("pay", {})), finish())
    runtime = await bench.runtime(model)

    await runtime.run(Agent("a", tools=[read, pay]), "Go.")

    assert ledger == {"read": 1, "pay": 2}
    statuses = [(name, status) for name, status, _ in results(model.requests[-1])]
    assert statuses == [
        ("read", "success"), ("read", "duplicate"), ("pay", "success"), ("pay", "success"),
    ]  # fmt: skip


async def test_what_cannot_be_called_is_answered_in_words_and_the_rest_runs(bench: Bench) -> None:
    def answer(request: StepRequest) -> Reply:
        if results(request):
            return finish()
        calls = (
            RequestedCall("lok", {}, "{}"),
            RequestedCall("look", {"q": [1]}, "{}"),
            RequestedCall("look", {"quest": "x"}, "{}"),
            RequestedCall("look", None, '{"q": ', "the JSON ends too early"),
            RequestedCall("look", {"q": float("nan")}, "{}"),
            RequestedCall("look", {"q": "ok", "_secret": 1}, "{}"),
            RequestedCall("look\ud800", {}, "{\ud800"),
        )
        return Reply(label="TOOL", text="", calls=calls, usage=USAGE, violation="invalid_arguments")

    model = ScriptedModel(answer)
    runtime = await bench.runtime(model)

    result = await runtime.run(PLAIN, "Go.")

    assert result.status == "done"
    told = results(model.requests[-1])
    assert [status for _, status, _ in told] == ["error"] * 5 + ["success", "error"]
    assert "Did you mean 'look'?" in told[0][2]
    assert "`q`" in told[1][2]
    assert "`quest` is not known" in told[2][2]
    assert "the JSON ends too early" in told[3][2]
    assert "nan is not a JSON number" in told[4][2]
    assert told[5][2] == "found ok"


async def test_fifty_calls_with_the_same_provider_id_get_ids_of_their_own(bench: Bench) -> None:
    calls = tuple(
        RequestedCall("look", {"q": str(n)}, "{}", provider_id="call_1") for n in range(50)
    )
    model = turns(Reply(label="TOOL", text="", calls=calls, usage=USAGE), finish())
    runtime = await bench.runtime(model)

    await runtime.run(PLAIN, "Go.")

    ids = [m.call_id for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert len(set(ids)) == 50
    assert [text for _, _, text in results(model.requests[-1])] == [f"found {n}" for n in range(50)]


async def test_words_with_surrogates_nul_and_emoji_are_stored_and_come_back(bench: Bench) -> None:
    odd = "NUL \0 👩‍🚀 \u202e half \ud83d."

    @tool(effect="read")
    async def echo(text: str, ctx: ToolContext) -> str:
        ctx.progress(odd)
        ctx.progress(7)  # type: ignore[arg-type]
        return odd

    model = turns(
        Reply(label="TOOL", text=odd, thinking=odd, detail=odd, finish_reason=odd, usage=USAGE,
              calls=(RequestedCall("echo", {"text": odd}, odd),)),
        finish(odd),
    )  # fmt: skip
    runtime = await bench.runtime(model)

    result = await runtime.run(Agent("a", tools=[echo]), odd, requester=odd)

    clean = odd.replace("\ud83d", "\ufffd")
    assert result.answer == clean
    run = await bench.run_of(result.run_id)
    assert run.messages[0] == UserMessage(clean)


async def test_a_usage_that_is_no_count_neither_breaks_the_run_nor_refills_its_budget(
    bench: Bench,
) -> None:
    from fsm_agent.run.content import Usage

    def reply(usage: Usage) -> Reply:
        return Reply(label="THINK", text=str(usage), usage=usage)

    runtime = await bench.runtime(turns(reply(Usage(-(10**30), 2**70)), finish()))

    result = await runtime.run(PLAIN, "Go.", limits=Limits(on_exhausted="error"))

    assert (result.status, result.reason) == ("error", "tokens")
    assert result.spent_tokens > 0


async def test_events_come_after_their_commit_and_live_text_joins_to_the_answer(
    bench: Bench,
) -> None:
    store = await bench.store()
    events: list[Any] = []
    committed: list[int] = []

    def on_event(event: Any) -> None:
        events.append(event)
        committed.append(sum(len(c.bodies) for c in store.commits))

    runtime = await bench.runtime(turns(finish("42")), store=store, on_event=on_event)
    await runtime.run(PLAIN, "Go.")

    for event, entries in zip(events, committed, strict=True):
        if isinstance(event, EntryEvent):
            assert event.seq <= entries + 1
    assert [e.seq for e in events if isinstance(e, EntryEvent)] == [2, 3, 4]
    assert "".join(e.text for e in events if isinstance(e, LiveEvent)) == "42"


async def test_a_listener_that_fails_changes_nothing(bench: Bench, ledger: Ledger) -> None:
    @tool
    async def pay(ctx: ToolContext) -> str:
        ledger.record("pay")
        ctx.progress("half way")
        return "paid"

    def on_event(event: Any) -> None:
        raise RuntimeError("the watcher's own bug")

    model = turns(ask(("pay", {})), finish())
    runtime = await bench.runtime(model, on_event=on_event)

    result = await runtime.run(Agent("a", tools=[pay]), "Go.")

    assert result.status == "done"
    assert results(model.requests[-1]) == [("pay", "success", "paid")]


async def test_an_error_inside_the_block_of_a_runtime_comes_out_as_itself(bench: Bench) -> None:
    from fsm_agent import Runtime

    store = await bench.store()
    with pytest.raises(UsageError, match="the task is empty"):
        async with Runtime.open(store, model=turns(finish())) as runtime:
            await runtime.run(PLAIN, "  ")


# -- starting -------------------------------------------------------------------------------------


async def test_a_start_that_is_repeated_is_the_same_run(bench: Bench) -> None:
    runtime = await bench.runtime(turns(finish()))

    first = await runtime.start(PLAIN, "Go.", run_id="r-1")
    again = await runtime.start(PLAIN, "Go.", run_id="r-1")
    deployed = await runtime.start(Agent("plain"), "Go.", run_id="r-1")  # new code, same input
    await runtime.work(first, PLAIN)
    after = await runtime.start(PLAIN, "Go.", run_id="r-1")

    assert {first, again, deployed, after} == {"r-1"}
    assert len(await runtime.runs()) == 1
    with pytest.raises(RunExists):
        await runtime.start(PLAIN, "Something else.", run_id="r-1")


async def test_a_run_of_another_agent_is_refused_and_stays_due(bench: Bench) -> None:
    runtime = await bench.runtime(turns(finish()))
    run_id = await runtime.start(PLAIN, "Go.")

    with pytest.raises(BadAgent, match="belongs to the agent 'plain'"):
        await runtime.work(run_id, Agent("other"))

    assert list(await runtime.store.due()) == [run_id]
    assert (await runtime.work(run_id, PLAIN)).status == "done"


async def test_an_unknown_run_and_a_finished_one_are_told_apart(bench: Bench) -> None:
    runtime = await bench.runtime(turns(finish()))
    result = await runtime.run(PLAIN, "Go.")

    with pytest.raises(RunNotFound):
        await runtime.work("r-nowhere", PLAIN)
    with pytest.raises(RunClosed):
        await runtime.work(result.run_id, PLAIN)
    with pytest.raises(RunClosed):
        await runtime.say(result.run_id, "more")


async def test_two_runtimes_on_one_run_and_only_one_has_it(bench: Bench) -> None:
    gate = asyncio.Event()

    async def wait(request: StepRequest) -> Reply:
        await gate.wait()
        return finish()

    one, two = await bench.runtime(ScriptedModel(wait)), await bench.runtime(turns(finish()))
    run_id = await one.start(PLAIN, "Go.")
    working = asyncio.create_task(one.work(run_id, PLAIN))
    await until(lambda: one._deps.model.requests)  # type: ignore[attr-defined]

    with pytest.raises(RunBusy):
        await two.work(run_id, PLAIN)

    gate.set()
    assert (await working).status == "done"


# -- damage ---------------------------------------------------------------------------------------


async def test_a_corrupt_entry_is_named_nothing_changes_and_the_lease_is_given_back(
    bench: Bench,
) -> None:
    store = await bench.store()
    runtime = await bench.runtime(turns(finish()), store=store)
    run_id = await runtime.start(PLAIN, "Go.")
    entry = (await store.journal(RunId(run_id)))[0]
    key = store._of(run_id).journal
    await store._line.call("DEL", key)
    body = entry.body[:-1] + b"?"
    await store._line.call("XADD", key, "1-0", "o", "x", "h", entry.chain, "b", body)

    with pytest.raises(CorruptEntry, match="entry 1 is corrupt") as refused:
        await runtime.work(run_id, PLAIN)

    assert refused.value.seq == 1
    head = await store.head(RunId(run_id))
    assert (head.seq, head.lease_until_ms, head.status) == (1, 0, "ready")


async def test_an_entry_that_no_arrow_leads_to_is_named_by_its_number(bench: Bench) -> None:
    """Bytes that are whole, but that make no run: written by something that is not this engine."""
    from checkpoints.model import Commit
    from fsm_agent.run import codec
    from fsm_agent.run.record import Record

    store = await bench.store()
    runtime = await bench.runtime(turns(finish()), store=store)
    run_id = RunId(await runtime.start(PLAIN, "Go."))
    claim = await store.claim(run_id, owner="x", nonce="n", term_ms=10_000)
    bodies = [Record(Trigger.ACTED, 5, ()), Record(Trigger.OBSERVED, 6, ())]
    await store._store.commit(
        claim.lease,
        Commit(op="o", expected_seq=1, previous_chain=claim.head.chain, status="ready",
               bodies=tuple(codec.encode(body) for body in bodies), snapshot=b"", release=True),
    )  # fmt: skip

    for look in (runtime.work(run_id, PLAIN), runtime.history(run_id), runtime.result(run_id)):
        with pytest.raises(CorruptEntry, match="entry 2 is corrupt"):
            await look


# -- words of the user ----------------------------------------------------------------------------


async def test_what_is_said_during_a_model_call_is_observed_at_the_next_chance_and_once(
    bench: Bench,
) -> None:
    runtime = None

    async def answer(request: StepRequest) -> Reply:
        spoken = sum(isinstance(m, AssistantMessage) for m in request.messages)
        if spoken == 0:
            await runtime.say(run_id, "and quickly", by="mia")  # type: ignore[attr-defined]
        return think(str(spoken)) if spoken < 3 else finish()

    model = ScriptedModel(answer)
    runtime = await bench.runtime(model)
    run_id = await runtime.start(PLAIN, "Go.")

    await runtime.work(run_id, PLAIN)

    heard = [m.text for m in model.requests[-1].messages if isinstance(m, UserMessage)]
    assert heard == ["Go.", "and quickly"]
    assert UserMessage("and quickly") in model.requests[2].messages


async def test_empty_and_endless_words_are_refused(bench: Bench) -> None:
    runtime = await bench.runtime(turns(finish()))
    run_id = await runtime.start(PLAIN, "Go.")

    for text in ("", " \n", "x" * 200_001):
        with pytest.raises(UsageError):
            await runtime.say(run_id, text)
        with pytest.raises(UsageError):
            await runtime.start(PLAIN, text)


# -- large results --------------------------------------------------------------------------------


async def test_a_large_result_is_cut_for_the_model_and_kept_whole(bench: Bench) -> None:
    @tool(effect="read")
    def big() -> str:
        return "x" * 1_000_000

    model = turns(ask(("big", {})), finish())
    runtime = await bench.runtime(model)

    result = await runtime.run(Agent("a", tools=[big]), "Go.")

    ((_, status, text),) = results(model.requests[-1])
    assert status == "success"
    assert len(text) < 25_000
    settled = [
        delta
        for event in await runtime.history(result.run_id)
        for delta in event.record.deltas
        if isinstance(delta, Settled)
    ]
    kept = await runtime.store.get_blob(RunId(result.run_id), settled[0].blob)
    assert kept == b"x" * 1_000_000


async def test_a_result_above_every_cap_is_still_a_result(bench: Bench, ledger: Ledger) -> None:
    @tool
    def huge() -> str:
        ledger.record("huge")
        return "x" * (64 * 2**20 + 10)

    model = turns(ask(("huge", {})), finish())
    runtime = await bench.runtime(model)

    result = await runtime.run(Agent("a", tools=[huge]), "Go.")

    assert (result.status, ledger["huge"]) == ("done", 1)
    assert results(model.requests[-1])[0][1] == "success"


async def test_history_has_the_state_after_each_entry(bench: Bench) -> None:
    runtime = await bench.runtime(turns(ask(("look", {"q": "a"})), finish()))
    result = await runtime.run(PLAIN, "Go.")

    states = [event.state for event in await runtime.history(result.run_id)]

    S = State
    assert states == [
        S.OBSERVE, S.THINK, S.THINK, S.ACT, S.ACT, S.ACT, S.REFLECT, S.OBSERVE, S.THINK, S.THINK,
        S.DONE,
    ]  # fmt: skip
    assert [e.seq for e in await runtime.history(result.run_id, after=9)] == [10, 11]


async def test_watching_from_another_process_sees_each_entry_once(bench: Bench) -> None:
    runtime = await bench.runtime(turns(ask(("look", {"q": "a"})), finish()))
    watcher = await bench.runtime(turns(finish()))
    run_id = await runtime.start(PLAIN, "Go.")

    async def watch() -> list[int]:
        return [e.seq async for e in watcher.watch(run_id) if isinstance(e, EntryEvent)]

    watching = asyncio.create_task(watch())
    await runtime.work(run_id, PLAIN)

    assert await watching == list(range(1, 12))


async def test_a_keyed_tool_has_the_same_key_in_the_journal_and_in_its_hands(bench: Bench) -> None:
    keys: list[str] = []

    @tool(effect=keyed())
    async def hold(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return "held"

    agent = Agent("a", tools=[hold])
    runtime = await bench.runtime(turns(ask(("hold", {}), ("hold", {})), finish()))
    result = await runtime.run(agent, "Go.")

    intents = [
        delta.key
        for event in await runtime.history(result.run_id)
        for delta in event.record.deltas
        if isinstance(delta, Intended)
    ]
    assert keys == intents
    assert len(set(keys)) == 2  # two calls of one batch are two effects


async def test_notes_of_the_runtime_are_told_from_words_of_the_user(bench: Bench) -> None:
    model = turns(think("a"), think("a"), think("a"), finish())
    runtime = await bench.runtime(model)

    await runtime.run(PLAIN, "Go.")

    notes = [m.text for m in model.requests[-1].messages if isinstance(m, NoteMessage)]
    assert any("2 times in a row" in text for text in notes)
