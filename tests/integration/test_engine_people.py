"""A run and the people around it: approvals, questions, cancels, and every race with its mail."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import Any

import pytest

from checkpoints.errors import AlreadyDecided, AskNotFound, DecisionStale, RunClosed
from checkpoints.model import RunId
from fsm_agent import Agent, Runtime, ToolContext, ask_user, tool
from fsm_agent.errors import UsageError
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.run.content import ToolMessage, UserMessage
from fsm_agent.run.delta import Ruled
from fsm_agent.tools.effects import arguments_digest
from fsm_agent.worker.local import work_due_once
from tests.conftest import (
    Bench,
    Ledger,
    ScriptedModel,
    ask,
    finish,
    results,
    turns,
    until,
)

_mail_counts = count(1000)


class Desk:
    """An agent whose `send` needs a person and whose `look` does not."""

    def __init__(self, approval: Any = "always") -> None:
        self.sent: list[str] = []
        self.gate = asyncio.Event()

        @tool(approval=approval)
        async def send(to: str, text: str = "hello") -> str:
            self.sent.append(f"{to}: {text}")
            return f"sent to {to}"

        @tool(effect="read", timeout_s=10.0)
        async def look() -> str:
            await self.gate.wait()
            return "found"

        self.agent = Agent("desk", tools=[send, look, ask_user])


def sending(*names: str, look: bool = False) -> ScriptedModel:
    calls: list[tuple[str, dict[str, Any]]] = [("send", {"to": name}) for name in names]
    return turns(ask(*calls, *([("look", {})] if look else [])), finish())


async def waiting(bench: Bench, desk: Desk, model: ScriptedModel) -> tuple[Runtime, str, list[Any]]:
    runtime = await bench.runtime(model)
    result = await runtime.run(desk.agent, "Send it.")
    assert result.status == "waiting"
    return runtime, result.run_id, list(await runtime.requests(result.run_id))


# -- approvals ------------------------------------------------------------------------------------


async def test_nothing_runs_before_a_person_agrees_and_exactly_that_runs_after(
    bench: Bench,
) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, sending("mia"))
    assert desk.sent == []
    head = await runtime.store.head(RunId(run_id))
    assert (head.lease_until_ms, head.due_ms) == (0, None)

    await runtime.decide(run_id, request.ask_id, "approve", by="leo", digest=request.digest)
    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("done", ["mia: hello"])
    assert request.digest == arguments_digest("send", "1", request.question.arguments)


async def test_a_refusal_reaches_the_model_with_its_reason(bench: Bench) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, model := sending("mia"))

    await runtime.decide(run_id, request.ask_id, "reject", by="leo", reason="too late today")
    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("done", [])
    ((_, status, text),) = results(model.requests[-1])
    assert status == "denied"
    assert "too late today" in text


async def test_edited_arguments_are_what_runs_under_a_hash_and_key_of_their_own(
    bench: Bench,
) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, sending("mia"))

    await runtime.decide(
        run_id, request.ask_id, "edit", by="leo", arguments='{"to": "zoe"}', agent=desk.agent
    )
    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("done", ["zoe: hello"])
    (ruled,) = [
        delta
        for event in await runtime.history(run_id)
        for delta in event.record.deltas
        if isinstance(delta, Ruled)
    ]
    assert ruled.arguments == '{"text":"hello","to":"zoe"}'
    assert ruled.digest == arguments_digest("send", "1", ruled.arguments) != request.digest


class Shelf:
    """An agent whose `put` needs a person and is harmless to repeat."""

    def __init__(self) -> None:
        self.puts: list[int] = []

        @tool(effect="idempotent", approval="always")
        async def put(x: int) -> str:
            self.puts.append(x)
            return f"put {x}"

        self.agent = Agent("shelf", tools=[put])

    async def open_asks(self, runtime: Runtime, run_id: str) -> list[str]:
        return [request.ask_id for request in await runtime.requests(run_id)]


def putting(*numbers: int) -> ScriptedModel:
    return turns(ask(*(("put", {"x": x}) for x in numbers)), finish())


async def test_a_call_whose_twin_was_edited_is_asked_about_and_runs(bench: Bench) -> None:
    shelf = Shelf()
    runtime = await bench.runtime(model := putting(1, 1, 1))
    run_id = (await runtime.run(shelf.agent, "Put it.")).run_id
    (first,) = await shelf.open_asks(runtime, run_id)

    await runtime.decide(run_id, first, "edit", by="mia", arguments={"x": 2})
    waiting = await runtime.work(run_id, shelf.agent)
    (second,) = waiting.asks
    await runtime.decide(run_id, second, "approve", by="mia")
    await runtime.work(run_id, shelf.agent)

    assert shelf.puts == [2, 1]
    told = [status for _, status, _ in results(model.requests[-1])]
    assert told == ["success", "success", "duplicate"]


async def test_a_call_that_is_edited_to_what_has_run_runs_no_second_time(bench: Bench) -> None:
    shelf = Shelf()
    runtime = await bench.runtime(model := putting(1, 2))
    run_id = (await runtime.run(shelf.agent, "Put it.")).run_id
    first, second = await shelf.open_asks(runtime, run_id)

    await runtime.decide(run_id, second, "edit", by="mia", arguments={"x": 1})
    await runtime.work(run_id, shelf.agent)
    assert shelf.puts == []  # the first may yet become another one
    await runtime.decide(run_id, first, "approve", by="mia")
    await runtime.work(run_id, shelf.agent)

    assert shelf.puts == [1]
    assert [status for _, status, _ in results(model.requests[-1])] == ["success", "duplicate"]


async def test_a_refused_call_stands_for_its_twin_unless_a_person_let_that_one_run(
    bench: Bench,
) -> None:
    for edit, puts, status in ((False, [], "duplicate"), (True, [1], "success")):
        shelf = Shelf()
        runtime = await bench.runtime(model := putting(1, 2 if edit else 1))
        run_id = (await runtime.run(shelf.agent, "Put it.")).run_id
        first, *more = await shelf.open_asks(runtime, run_id)

        for second in more:
            await runtime.decide(run_id, second, "edit", by="mia", arguments={"x": 1})
        await runtime.decide(run_id, first, "reject", by="leo")
        await runtime.work(run_id, shelf.agent)

        assert shelf.puts == puts
        assert [s for _, s, _ in results(model.requests[-1])] == ["denied", status]


async def test_an_edit_that_does_not_fit_is_refused_where_the_agent_is_known_and_never_runs(
    bench: Bench,
) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, model := sending("mia"))
    with pytest.raises(UsageError, match="not known"):
        await runtime.decide(
            run_id, request.ask_id, "edit", by="leo", arguments='{"too": "x"}', agent=desk.agent
        )
    with pytest.raises(UsageError, match="JSON object"):
        await runtime.decide(run_id, request.ask_id, "edit", by="leo", arguments="[]")

    await runtime.decide(run_id, request.ask_id, "edit", by="leo", arguments='{"too": "x"}')
    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("done", [])
    ((_, status, text),) = results(model.requests[-1])
    assert status == "error"
    assert "a person changed its arguments" in text


async def test_a_person_can_answer_in_place_of_the_tool(bench: Bench) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, model := sending("mia"))

    await runtime.decide(run_id, request.ask_id, "answer", by="leo", answer="I called her.")
    await runtime.work(run_id, desk.agent)

    assert desk.sent == []
    assert "I called her." in results(model.requests[-1])[0][2]


async def test_a_rule_asks_for_some_arguments_only_and_fails_closed(bench: Bench) -> None:
    def rule(arguments: dict[str, Any]) -> bool | str:
        if arguments["to"] == "boom":
            raise RuntimeError("no such table")
        return "outside the company" if "@" in arguments["to"] else False

    desk = Desk(rule)
    model = sending("mia", "zoe@example.org", "boom")
    *_, requests = await waiting(bench, desk, model)

    assert desk.sent == ["mia: hello"]
    assert {r.question.arguments: r.question.reason for r in requests} == {
        '{"text":"hello","to":"zoe@example.org"}': "outside the company",
        '{"text":"hello","to":"boom"}': "the approval rule failed: RuntimeError: no such table",
    }


async def test_a_decision_names_what_was_shown_and_only_the_first_counts(bench: Bench) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, sending("mia"))
    with pytest.raises(DecisionStale):
        await runtime.decide(run_id, request.ask_id, "approve", by="leo", digest="0" * 64)
    with pytest.raises(AskNotFound):
        await runtime.decide(run_id, "a9-9", "approve", by="leo")
    for verb in ("happened", "rerun", "fail", "expire"):
        with pytest.raises(UsageError, match="does not fit"):
            await runtime.decide(run_id, request.ask_id, verb, by="leo")

    await runtime.decide(run_id, request.ask_id, "reject", by="leo", decision_id="click-1")
    again = await runtime.decide(run_id, request.ask_id, "reject", by="leo", decision_id="click-1")
    with pytest.raises(AlreadyDecided, match="reject by leo"):
        await runtime.decide(run_id, request.ask_id, "approve", by="zoe")

    assert again.is_repeat
    assert (await runtime.work(run_id, desk.agent)).status == "done"
    assert desk.sent == []


async def test_three_outcomes_of_one_batch_stand_in_call_order_with_their_reasons(
    bench: Bench,
) -> None:
    desk = Desk()
    runtime, run_id, requests = await waiting(bench, desk, model := sending("a", "b", "c"))
    one, two, three = requests

    # In any order, with a look in between: what is decided runs, and the rest still waits.
    await runtime.decide(run_id, three.ask_id, "approve", by="leo")
    assert (await runtime.work(run_id, desk.agent)).asks == (one.ask_id, two.ask_id)
    assert desk.sent == ["c: hello"]
    await runtime.decide(run_id, one.ask_id, "reject", by="leo", reason="no")
    await runtime.decide(run_id, two.ask_id, "answer", by="leo", answer="done by hand")
    result = await runtime.work(run_id, desk.agent)

    assert (result.status, desk.sent) == ("done", ["c: hello"])
    statuses = [status for _, status, _ in results(model.requests[-1])]
    assert statuses == ["denied", "success", "success"]
    assert len(model.requests) == 2


async def test_the_model_is_not_asked_while_one_call_of_its_batch_waits(bench: Bench) -> None:
    desk = Desk()
    desk.gate.set()
    runtime, run_id, _ = await waiting(bench, desk, model := sending("mia", look=True))

    for _ in range(3):
        assert (await runtime.work(run_id, desk.agent)).status == "waiting"

    assert len(model.requests) == 1
    seq = (await runtime.store.head(RunId(run_id))).seq
    await runtime.work(run_id, desk.agent)
    assert (await runtime.store.head(RunId(run_id))).seq == seq  # looking writes nothing


async def test_a_decision_is_taken_up_while_other_calls_still_run(bench: Bench) -> None:
    desk = Desk()
    runtime = await bench.runtime(sending("mia", look=True))
    run_id = await runtime.start(desk.agent, "Send it.")
    working = asyncio.create_task(runtime.work(run_id, desk.agent))
    (request,) = await asked(runtime, run_id)

    await runtime.decide(run_id, request.ask_id, "approve", by="leo")
    await until(lambda: desk.sent)

    assert not working.done()
    desk.gate.set()
    assert (await working).status == "done"


async def asked(runtime: Runtime, run_id: str) -> list[Any]:
    return list(await until(lambda: runtime.requests(run_id)))


# -- races of mail with what is being committed ---------------------------------------------------


async def test_a_decision_that_comes_during_a_flush_is_not_left_until_a_tool_ends(
    bench: Bench,
) -> None:
    """It is read while the engine waits for a commit, when nobody listens for mail yet."""
    desk = Desk()
    store = await bench.store()
    runtime = await bench.runtime(sending("a", "b", look=True), store=store)
    run_id = await runtime.start(desk.agent, "Send it.")
    decided = asyncio.Event()

    async def decide_second(commit: Any) -> None:
        # The commit that holds the result of the first send: before its answer is handled, the
        # second decision comes in and is read.
        if desk.sent and not decided.is_set():
            decided.set()
            (request,) = await runtime.requests(run_id)
            await runtime.decide(run_id, request.ask_id, "approve", by="leo")
            session_announce(runtime, run_id)
            await asyncio.sleep(0.03)

    store.after_commit = decide_second
    working = asyncio.create_task(runtime.work(run_id, desk.agent))
    first = (await asked(runtime, run_id))[0]
    await runtime.decide(run_id, first.ask_id, "approve", by="leo")

    await until(lambda: len(desk.sent) == 2)

    assert not working.done()
    desk.gate.set()
    assert (await working).status == "done"


def session_announce(runtime: Runtime, run_id: str) -> None:
    """Let the heartbeat say now what its next renewal would say: there is mail."""
    held = runtime._deps.heartbeat._held[RunId(run_id)]
    assert held.on_mail
    held.on_mail(next(_mail_counts))


async def test_a_decision_between_the_last_look_and_the_parking_commit_makes_the_run_due(
    bench: Bench,
) -> None:
    """No worker holds the run when the decision comes to rest, so the index must wake one."""
    desk = Desk()
    store = await bench.store()
    runtime = await bench.runtime(sending("a", "b"), store=store)
    person = await bench.runtime(sending())
    run_id = await runtime.start(desk.agent, "Send it.")
    result = await runtime.work(run_id, desk.agent)
    one, two = await runtime.requests(run_id)
    await runtime.decide(run_id, one.ask_id, "approve", by="leo")

    async def decide_second(commit: Any) -> None:
        if commit.release:
            await person.decide(run_id, two.ask_id, "approve", by="leo")

    store.before_commit = decide_second
    result = await runtime.work(run_id, desk.agent)
    assert result.status == "waiting"
    store.before_commit = None

    assert list(await runtime.store.due()) == [run_id]
    assert await work_due_once(runtime, {"desk": desk.agent}) == 1
    assert (await runtime.result(run_id)).status == "done"
    assert desk.sent == ["a: hello", "b: hello"]


async def test_a_cancel_in_the_last_wait_before_parking_is_not_lost(
    bench: Bench, ledger: Ledger
) -> None:
    """It is read while a large result is put away, and would then count as seen."""
    desk = Desk()

    @tool(effect="read")
    async def big() -> str:
        return "x" * 100_000

    agent = Agent("desk", tools=[*desk.agent.registry, big])
    store = await bench.store()
    runtime = await bench.runtime(
        turns(ask(("send", {"to": "a"}), ("big", {})), finish()), store=store
    )
    run_id = await runtime.start(agent, "Go.")
    put_blob = store._store.put_blob

    async def slow_put(*args: Any) -> str:
        await runtime.cancel(run_id, by="mia")
        session_announce(runtime, run_id)
        await asyncio.sleep(0.03)
        return await put_blob(*args)

    store.put_blob = slow_put  # type: ignore[attr-defined]
    result = await runtime.work(run_id, agent)

    assert (result.status, result.reason) == ("error", "cancelled")


async def test_two_words_about_mail_do_not_make_one_cancel_look_like_two(bench: Bench) -> None:
    """The model takes a moment to close its stream; more mail comes meanwhile."""
    closing = asyncio.Event()

    async def hang(request: StepRequest) -> Reply:
        try:
            await asyncio.sleep(60)
        finally:
            closing.set()
            await asyncio.sleep(0.05)
        return finish()

    runtime = await bench.runtime(model := ScriptedModel(hang))
    desk = Desk()
    run_id = await runtime.start(desk.agent, "Go.")
    working = asyncio.create_task(runtime.work(run_id, desk.agent))
    await until(lambda: model.requests)
    await runtime.cancel(run_id, by="mia")
    session_announce(runtime, run_id)
    await closing.wait()
    await runtime.say(run_id, "and tell me why")
    session_announce(runtime, run_id)

    result = await working

    assert (result.status, result.reason) == ("error", "cancelled")
    assert working.cancelling() == 0


async def test_a_model_that_swallows_the_interruption_leaves_no_trace_of_it(bench: Bench) -> None:
    async def stubborn(request: StepRequest) -> Reply:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return finish("too late")
        return finish()

    runtime = await bench.runtime(model := ScriptedModel(stubborn))
    desk = Desk()
    run_id = await runtime.start(desk.agent, "Go.")

    async def work() -> Any:
        async with asyncio.timeout(5):
            result = await runtime.work(run_id, desk.agent)
        task = asyncio.current_task()
        assert task
        return result, task.cancelling()

    working = asyncio.create_task(work())
    await until(lambda: model.requests)
    await runtime.cancel(run_id, by="mia")
    session_announce(runtime, run_id)
    result, cancelling = await working

    assert result.status in ("error", "done")
    assert cancelling == 0


# -- cancelling -----------------------------------------------------------------------------------


async def assert_cancelled(bench: Bench, runtime: Runtime, run_id: str) -> None:
    run = await bench.run_of(run_id)
    assert run.failure
    assert run.failure.reason == "cancelled"
    assert run.failure.message == "cancelled by mia: changed my mind"
    assert not run.has_unsettled_calls
    ids = [m.call_id for m in run.messages if isinstance(m, ToolMessage)]
    assert ids == [c.call.call_id for c in run.calls]
    assert await runtime.requests(run_id) == []
    with pytest.raises(RunClosed):
        await runtime.work(run_id, Desk().agent)


async def cancel(runtime: Runtime, run_id: str) -> None:
    assert await runtime.cancel(run_id, by="mia", reason="changed my mind")
    assert not await runtime.cancel(run_id, by="leo")


async def test_a_cancel_while_the_model_speaks_ends_the_call(bench: Bench) -> None:
    cut: list[bool] = []

    async def hang(request: StepRequest) -> Reply:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cut.append(True)
            raise
        return finish()

    runtime = await bench.runtime(model := ScriptedModel(hang))
    run_id = await runtime.start(Desk().agent, "Go.")
    working = asyncio.create_task(runtime.work(run_id, Desk().agent))
    await until(lambda: model.requests)

    await cancel(runtime, run_id)
    result = await working

    assert (result.status, cut) == ("error", [True])
    await assert_cancelled(bench, runtime, run_id)


async def test_a_cancel_while_tools_run_answers_every_call_honestly(bench: Bench) -> None:
    started, cut = Ledger(), Ledger()

    async def hang(name: str) -> str:
        started.record(name)
        try:
            await asyncio.sleep(60)
        finally:
            cut.record(name)
        return name

    @tool(effect="read")
    async def read() -> str:
        return await hang("read")

    @tool
    async def pay() -> str:
        return await hang("pay")

    @tool(effect="read")
    async def quick() -> str:
        return "quick"

    @tool(approval="always")
    async def send() -> str:
        return "sent"

    agent = Agent("desk", tools=[read, pay, quick, send])
    calls = [(name, {}) for name in ("read", "pay", "quick", "send")]
    runtime = await bench.runtime(turns(ask(*calls), finish()))
    run_id = await runtime.start(agent, "Go.")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: bench.has_settled(run_id, 1))
    await until(lambda: len(started) == 2)

    await cancel(runtime, run_id)
    result = await working

    assert result.status == "error"
    assert cut == {"read": 1, "pay": 1}
    run = await bench.run_of(run_id)
    assert [c.result.status for c in run.calls if c.result] == [
        "cancelled", "in_doubt", "success", "cancelled",
    ]  # fmt: skip
    await assert_cancelled(bench, runtime, run_id)


async def test_a_cancel_while_the_run_waits_for_a_person_closes_the_request(bench: Bench) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, sending("mia"))

    await cancel(runtime, run_id)
    assert list(await runtime.store.due()) == [run_id]
    await work_due_once(runtime, {"desk": desk.agent})

    await assert_cancelled(bench, runtime, run_id)
    with pytest.raises(RunClosed):
        await runtime.decide(run_id, request.ask_id, "approve", by="leo")
    assert desk.sent == []


async def test_a_cancel_before_anybody_works_asks_no_model(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(finish()))
    run_id = await runtime.start(Desk().agent, "Go.")

    await cancel(runtime, run_id)
    await runtime.work(run_id, Desk().agent)

    assert model.requests == []
    await assert_cancelled(bench, runtime, run_id)


async def test_a_cancel_and_a_decision_in_one_mailbox_run_nothing(bench: Bench) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, sending("mia"))
    await runtime.decide(run_id, request.ask_id, "approve", by="leo")

    await cancel(runtime, run_id)
    await runtime.work(run_id, desk.agent)

    assert desk.sent == []
    await assert_cancelled(bench, runtime, run_id)


# -- questions ------------------------------------------------------------------------------------


async def test_a_question_waits_without_a_process_and_its_answer_is_the_calls_result(
    bench: Bench,
) -> None:
    desk = Desk()
    question = {"question": "Which one?", "options": ["red", "blue"]}
    runtime = await bench.runtime(model := turns(ask(("ask_user", question)), finish()))
    result = await runtime.run(desk.agent, "Choose.")
    (request,) = await runtime.requests(result.run_id)
    assert (request.question.kind, request.question.reason) == ("question", "Which one?")
    assert request.question.options == ("red", "blue")
    with pytest.raises(UsageError, match="needs a text"):
        await runtime.decide(result.run_id, request.ask_id, "answer", by="leo")

    await runtime.decide(result.run_id, request.ask_id, "answer", by="leo", answer="blue")
    other = await bench.runtime(model)  # any process goes on
    done = await other.work(result.run_id, desk.agent)

    assert done.status == "done"
    assert results(model.requests[-1]) == [("ask_user", "success", "blue")]


async def test_a_second_question_of_a_batch_gets_a_stub_and_other_calls_run(bench: Bench) -> None:
    desk = Desk()
    desk.gate.set()
    calls = [
        ("ask_user", {"question": "Which?"}), ("look", {}), ("ask_user", {"question": "When?"}),
    ]  # fmt: skip
    runtime = await bench.runtime(model := turns(ask(*calls), finish()))

    result = await runtime.run(desk.agent, "Choose.")

    (request,) = await runtime.requests(result.run_id)
    await runtime.decide(result.run_id, request.ask_id, "answer", by="leo", answer="that one")
    await runtime.work(result.run_id, desk.agent)
    told = results(model.requests[-1])
    assert [(name, status) for name, status, _ in told] == [
        ("ask_user", "success"), ("look", "success"), ("ask_user", "duplicate"),
    ]  # fmt: skip


async def test_a_question_that_was_never_asked_keeps_no_other_from_being_asked(
    bench: Bench,
) -> None:
    desk = Desk()
    calls = [
        ("ask_user", {}), ("ask_user", {"question": "Where?"}), ("ask_user", {"question": "When?"}),
    ]  # fmt: skip
    runtime = await bench.runtime(turns(ask(*calls), finish()))

    result = await runtime.run(desk.agent, "Choose.")

    (request,) = await runtime.requests(result.run_id)
    first, asked, last = (await bench.run_of(result.run_id)).calls
    assert json.loads(request.question.arguments)["question"] == "Where?"
    assert (first.phase, asked.phase, last.phase) == ("settled", "waiting", "settled")
    assert last.result
    assert f"Call {asked.call.call_id} asks" in last.result.text


async def test_a_question_may_be_declined(bench: Bench) -> None:
    desk = Desk()
    runtime = await bench.runtime(model := turns(ask(("ask_user", {"question": "Age?"})), finish()))
    result = await runtime.run(desk.agent, "Ask.")
    (request,) = await runtime.requests(result.run_id)

    await runtime.decide(result.run_id, request.ask_id, "reject", by="leo", reason="private")
    await runtime.work(result.run_id, desk.agent)

    ((_, status, text),) = results(model.requests[-1])
    assert (status, "private" in text) == ("denied", True)


async def test_words_said_while_the_run_waits_are_observed_after_the_decision_once(
    bench: Bench,
) -> None:
    desk = Desk()
    runtime, run_id, (request,) = await waiting(bench, desk, model := sending("mia"))
    await runtime.say(run_id, "and greet her")
    await work_due_once(runtime, {"desk": desk.agent})
    assert (await runtime.result(run_id)).status == "waiting"

    await runtime.decide(run_id, request.ask_id, "approve", by="leo")
    await runtime.work(run_id, desk.agent)

    heard = [m.text for m in model.requests[-1].messages if isinstance(m, UserMessage)]
    assert heard == ["Send it.", "and greet her"]
    assert await (await bench.store()).mailbox(RunId(run_id)) == []


# -- stopping the process -------------------------------------------------------------------------


async def test_a_stopped_worker_gives_the_run_back_at_once(bench: Bench) -> None:
    desk = Desk()
    runtime = await bench.runtime(turns(ask(("look", {})), finish()))
    run_id = await runtime.start(desk.agent, "Go.")
    working = asyncio.create_task(runtime.work(run_id, desk.agent))
    await until(lambda: runtime._deps.model.requests)  # type: ignore[attr-defined]

    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    head = await runtime.store.head(RunId(run_id))
    assert head.lease_until_ms == 0
    assert list(await runtime.store.due()) == [run_id]
    desk.gate.set()
    assert (await runtime.work(run_id, desk.agent)).status == "done"
    assert (await bench.run_of(run_id)).takeovers == 0


@pytest.mark.parametrize("inside", ["model", "tool"])
async def test_a_timeout_around_the_work_is_a_timeout(bench: Bench, inside: str) -> None:
    async def hang(request: StepRequest) -> Reply:
        if inside == "tool":
            return ask(("look", {}))
        await asyncio.sleep(60)
        return finish()

    desk = Desk()
    runtime = await bench.runtime(ScriptedModel(hang))
    run_id = await runtime.start(desk.agent, "Go.")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await runtime.work(run_id, desk.agent)

    assert list(await runtime.store.due()) == [run_id]
    task = asyncio.current_task()
    assert task
    assert task.cancelling() == 0


async def test_a_sibling_that_fails_in_a_task_group_ends_the_work(bench: Bench) -> None:
    desk = Desk()
    runtime = await bench.runtime(turns(ask(("look", {})), finish()))
    run_id = await runtime.start(desk.agent, "Go.")

    async def fail() -> None:
        await until(lambda: runtime._deps.model.requests)  # type: ignore[attr-defined]
        raise ValueError("the sibling")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.work(run_id, desk.agent))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as failed:
        await both()

    assert [type(e) for e in failed.value.exceptions] == [ValueError]
    assert list(await runtime.store.due()) == [run_id]


async def test_a_stop_while_the_journal_is_read_leaves_the_run_due(bench: Bench) -> None:
    store = await bench.store()
    runtime = await bench.runtime(turns(finish()), store=store)
    run_id = await runtime.start(Desk().agent, "Go.")
    reading = asyncio.Event()

    async def slow_journal(*args: Any, **options: Any) -> Any:
        reading.set()
        await asyncio.sleep(60)

    store.journal = slow_journal  # type: ignore[attr-defined]
    working = asyncio.create_task(runtime.work(run_id, Desk().agent))
    await reading.wait()

    working.cancel()
    await asyncio.wait([working])

    assert list(await runtime.store.due()) == [run_id]


@pytest.mark.parametrize("point", range(8))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_stop_at_any_commit_leaves_a_whole_journal_and_no_effect_twice(
    bench: Bench, point: int, when: str
) -> None:
    """The process is stopped while the nth commit is on its way, or just after it."""
    sent = Ledger()

    @tool(effect="read")
    async def look() -> str:
        return "found"

    @tool
    async def send(ctx: ToolContext) -> str:
        sent.record("send")
        return "sent"

    agent = Agent("desk", tools=[look, send])
    store = await bench.store()
    model = turns(ask(("look", {}), ("send", {})), ask(("look", {})), finish("end"))
    runtime = await bench.runtime(model, store=store)
    run_id = await runtime.start(agent, "Go.")
    working = asyncio.create_task(runtime.work(run_id, agent))

    async def stop(commit: Any) -> None:
        if len(store.commits) == point + (when == "after"):
            working.cancel()
            await asyncio.sleep(0)

    setattr(store, f"{when}_commit", stop)
    await asyncio.wait([working])
    store.before_commit = store.after_commit = None
    if working.cancelled():
        await settle_all(runtime, run_id, agent)

    run = await bench.run_of(run_id)
    assert run.answer
    assert run.answer.text == "end"
    assert sent["send"] <= 1


async def settle_all(runtime: Runtime, run_id: str, agent: Agent) -> None:
    """Work on to the end; a person says of what is in doubt that it happened."""
    while (await runtime.store.head(RunId(run_id))).status not in ("done", "error"):
        result = await runtime.work(run_id, agent)
        for request in await runtime.requests(run_id):
            assert request.question.kind == "in_doubt"
            await runtime.decide(run_id, request.ask_id, "happened", by="mia", answer="sent")
        del result


async def test_the_worker_skips_what_it_cannot_serve_and_goes_on(bench: Bench) -> None:
    desk, store = Desk(), await bench.store()

    def answer(request: StepRequest) -> Reply:
        if request.messages[0].text == "Break.":
            raise RuntimeError("a bug of the host")
        return finish()

    runtime = await bench.runtime(ScriptedModel(answer), store=store)
    stranger = await runtime.start(Agent("stranger"), "Go.")
    broken = await runtime.start(desk.agent, "Break.")
    good = await runtime.start(desk.agent, "Go.")
    ended: list[str] = []

    done = await work_due_once(
        runtime, {"desk": desk.agent}, on_result=lambda result: ended.append(result.run_id)
    )

    assert (done, ended) == (1, [good])
    assert (await store.head(RunId(broken))).lease_until_ms == 0
    assert list(await store.due()) == [stranger]
