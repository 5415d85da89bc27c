"""What ends a run that does not end by itself: budgets, broken replies, and models that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from checkpoints.model import RunId
from fsm_agent import Agent, Limits, tool
from fsm_agent.errors import MissingSetting, ProviderError
from fsm_agent.llm.model import Reply, RequestedCall, StepRequest
from fsm_agent.run.content import AssistantMessage, NoteMessage, Usage
from fsm_agent.run.delta import Began, Finalising, ModelFailed, Replied
from tests.conftest import (
    USAGE,
    Bench,
    Ledger,
    ManualClock,
    ScriptedModel,
    ask,
    broken,
    finish,
    results,
    think,
    turns,
)


@tool(effect="read")
async def look(q: str = "") -> str:
    return f"found {q}"


@tool(effect="read")
async def fail(q: str = "") -> str:
    raise RuntimeError(f"no {q}")


AGENT = Agent("desk", tools=[look, fail], max_tokens=100)


def endless(name: str = "look") -> ScriptedModel:
    """Always one more call, with other arguments."""

    def answer(request: StepRequest) -> Reply:
        return ask((name, {"q": str(len(request.messages))}))

    return ScriptedModel(answer)


def thinking() -> ScriptedModel:
    return ScriptedModel(lambda request: think(f"thought {len(request.messages)}"))


def obedient(model: ScriptedModel, text: str = "what I have") -> ScriptedModel:
    """The same model, which finishes once it is told to: no tools are offered then."""
    before = model.answer

    def answer(request: StepRequest) -> Any:
        return before(request) if request.tools else finish(text)

    return ScriptedModel(answer)


# -- budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(turns=3), "turns"),
        (Limits(tool_calls=3), "tool_calls"),
        (Limits(tokens=3_000), "tokens"),
    ],
)
async def test_a_budget_forces_a_finish_that_keeps_what_was_found(
    bench: Bench, limits: Limits, why: str
) -> None:
    runtime = await bench.runtime(model := obedient(endless()))

    result = await runtime.run(AGENT, "Go.", limits=limits)

    assert (result.status, result.answer) == ("done", "what I have")
    (begun,) = [
        delta
        for event in await runtime.history(result.run_id)
        for delta in event.record.deltas
        if isinstance(delta, Finalising)
    ]
    assert begun.why == why
    last = model.requests[-1]
    assert last.tools == ()
    assert last.protocol
    assert last.protocol.allowed == ("FINISH",)
    assert result.spent_tokens <= limits.tokens


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(turns=3, on_exhausted="error"), "turns"),
        (Limits(tool_calls=3, on_exhausted="error"), "tool_calls"),
        (Limits(tokens=600, on_exhausted="error"), "tokens"),
    ],
)
async def test_a_budget_can_be_an_error_with_its_own_reason(
    bench: Bench, limits: Limits, why: str
) -> None:
    runtime = await bench.runtime(endless())

    result = await runtime.run(AGENT, "Go.", limits=limits)

    assert (result.status, result.reason, result.answer) == ("error", why, None)


async def test_a_model_that_will_not_finish_gets_a_bounded_number_of_turns(bench: Bench) -> None:
    runtime = await bench.runtime(model := endless())

    result = await runtime.run(AGENT, "Go.", limits=Limits(turns=2, final_turns=2))

    assert result.status == "done"
    assert not result.is_completed
    assert result.answer
    assert "limit on turns" in result.answer
    assert len(model.requests) == 4
    spoken = (await bench.run_of(result.run_id)).messages
    assert all(
        m.text.strip() or m.calls or m.label for m in spoken if isinstance(m, AssistantMessage)
    )


async def test_calls_beyond_the_budget_of_one_batch_are_answered_and_not_made(
    bench: Bench, ledger: Ledger
) -> None:
    @tool
    async def pay(n: int) -> str:
        ledger.record("pay")
        return "paid"

    calls = [("pay", {"n": n}) for n in range(6)]
    runtime = await bench.runtime(model := turns(ask(*calls), finish()))

    await runtime.run(Agent("a", tools=[pay]), "Go.", limits=Limits(tool_calls=4))

    assert ledger["pay"] == 4
    told = results(model.requests[-1])
    assert [status for _, status, _ in told] == ["success"] * 4 + ["error"] * 2
    assert "limit of 4 tool calls" in told[-1][2]


async def test_the_token_budget_stops_before_the_next_paid_call(bench: Bench) -> None:
    async def answer(request: StepRequest) -> Reply:
        return Reply(label="THINK", text=f"{len(request.messages)}", usage=Usage(900, 100))

    runtime = await bench.runtime(model := ScriptedModel(answer))
    limits = Limits(tokens=3_100, on_exhausted="error")

    result = await runtime.run(AGENT, "Go.", limits=limits)

    assert (result.reason, len(model.requests)) == ("tokens", 3)
    assert result.spent_tokens == 3_000
    begun = [
        delta
        for event in await runtime.history(result.run_id)
        for delta in event.record.deltas
        if isinstance(delta, Began)
    ]
    assert len(begun) == 3
    assert all(delta.reserve_tokens > 100 for delta in begun)


async def test_a_limit_below_one_call_asks_no_model(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(finish()))

    result = await runtime.run(AGENT, "Go.", limits=Limits(tokens=10))

    assert (result.status, result.reason, model.requests) == ("error", "tokens", [])


async def test_waiting_for_a_person_is_no_working_time(bench: Bench) -> None:
    @tool(approval="always")
    async def send() -> str:
        return "sent"

    agent = Agent("a", tools=[send])
    runtime = await bench.runtime(turns(ask(("send", {})), finish()))
    limits = Limits(wall_s=0.1, on_exhausted="error")
    result = await runtime.run(agent, "Go.", limits=limits)
    await asyncio.sleep(0.15)
    (request,) = await runtime.requests(result.run_id)
    await runtime.decide(result.run_id, request.ask_id, "approve", by="mia")

    result = await runtime.work(result.run_id, agent)

    assert result.status == "done"


async def test_working_time_ends_a_run(bench: Bench) -> None:
    clock = ManualClock()

    async def answer(request: StepRequest) -> Reply:
        clock.advance(40)
        return think(f"{len(request.messages)}")

    runtime = await bench.runtime(ScriptedModel(answer), clock=clock)
    limits = Limits(wall_s=30.0, on_exhausted="error")

    result = await runtime.run(AGENT, "Go.", limits=limits)

    assert (result.status, result.reason, result.turns) == ("error", "wall_time", 1)


async def test_turns_in_which_every_call_fails_end_the_run(bench: Bench) -> None:
    runtime = await bench.runtime(endless("fail"))

    result = await runtime.run(AGENT, "Go.", limits=Limits(errors=3))

    assert (result.status, result.reason, result.turns) == ("error", "errors", 3)


async def test_the_same_step_again_and_again_is_warned_of_and_ends(bench: Bench) -> None:
    model = ScriptedModel(lambda request: ask(("look", {"q": "same"})))
    runtime = await bench.runtime(model)

    result = await runtime.run(AGENT, "Go.", limits=Limits(on_exhausted="error"))

    assert (result.status, result.reason, result.turns) == ("error", "loop", 3)
    notes = [m.text for m in model.requests[-1].messages if isinstance(m, NoteMessage)]
    assert any("2 times in a row" in text for text in notes)


async def test_two_steps_in_turn_are_a_loop_and_different_ones_are_none(bench: Bench) -> None:
    def answer(request: StepRequest) -> Reply:
        spoken = sum(isinstance(m, AssistantMessage) for m in request.messages)
        return ask(("look", {"q": "ab"[spoken % 2]}))

    alternating = await bench.runtime(ScriptedModel(answer))
    different = await bench.runtime(thinking())
    limits = Limits(turns=12, on_exhausted="error")

    assert (await alternating.run(AGENT, "Go.", limits=limits)).reason == "loop"
    assert (await different.run(AGENT, "Go.", limits=limits)).reason == "turns"


# -- the protocol ---------------------------------------------------------------------------------


async def test_a_broken_reply_is_corrected_and_the_draft_stays_as_context(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(broken(text="half a thought"), finish("whole")))

    result = await runtime.run(AGENT, "Go.")

    assert (result.answer, result.is_completed) == ("whole", True)
    second = model.requests[1].messages
    assert second[1] == AssistantMessage(None, "half a thought")
    assert isinstance(second[2], NoteMessage)
    assert "``FINISH``" in second[2].text


async def test_calls_of_a_broken_reply_are_void(bench: Bench, ledger: Ledger) -> None:
    @tool
    async def pay() -> str:
        ledger.record("pay")
        return "paid"

    bad = Reply(
        label="FINISH", text="x", usage=USAGE, violation="label_with_tools",
        calls=(RequestedCall("pay", {}, "{}"),),
    )  # fmt: skip
    runtime = await bench.runtime(turns(bad, finish()))

    result = await runtime.run(Agent("a", tools=[pay]), "Go.")

    assert (result.status, ledger["pay"]) == ("done", 0)


@pytest.mark.parametrize(("may_rescue", "status"), [(True, "done"), (False, "error")])
async def test_repair_is_bounded_and_a_whole_text_may_be_rescued(
    bench: Bench, may_rescue: bool, status: str
) -> None:
    model = ScriptedModel(lambda request: broken(text="the answer is 42"))
    runtime = await bench.runtime(model)
    agent = Agent("a", may_rescue=may_rescue)

    result = await runtime.run(agent, "Go.", limits=Limits(repairs=2))

    assert (result.status, len(model.requests)) == (status, 3)
    if may_rescue:
        assert (result.answer, result.is_completed) == ("the answer is 42", False)
    else:
        assert result.reason == "repairs"


@pytest.mark.parametrize("violation", ["empty_completion", "refusal", "truncated"])
async def test_a_model_that_only_breaks_the_protocol_ends_and_nothing_empty_is_said(
    bench: Bench, violation: str
) -> None:
    runtime = await bench.runtime(ScriptedModel(lambda request: broken(violation, "")))

    result = await runtime.run(AGENT, "Go.", limits=Limits(repairs=1))
    looping = await runtime.run(AGENT, "Go.")  # the same three times is a loop before that

    assert (result.status, result.reason) == ("error", "repairs")
    assert (looping.status, looping.is_completed) == ("done", False)
    assert looping.answer
    messages = (await bench.run_of(result.run_id)).messages
    assert not [m for m in messages if isinstance(m, AssistantMessage)]


async def test_repairs_in_a_row_are_counted_and_a_good_reply_clears_them(bench: Bench) -> None:
    replies = [broken(text=f"b{n}") if n % 2 else think(f"t{n}") for n in range(10)]
    runtime = await bench.runtime(turns(*replies, finish()))

    result = await runtime.run(AGENT, "Go.", limits=Limits(repairs=1))

    assert result.status == "done"


async def test_a_native_agent_answers_with_its_text_and_sees_no_labels(bench: Bench) -> None:
    def answer(request: StepRequest) -> Reply:
        assert request.protocol is None
        if results(request):
            return Reply(label=None, text="plain answer", usage=USAGE)
        return Reply(
            label=None, text="", usage=USAGE, calls=(RequestedCall("look", {"q": "a"}, "{}"),)
        )

    runtime = await bench.runtime(ScriptedModel(answer))

    result = await runtime.run(Agent("native", tools=[look], protocol=None), "Go.")

    assert (result.answer, result.is_completed) == ("plain answer", True)


# -- models that fail -----------------------------------------------------------------------------


def failing(times: int, error: Any) -> ScriptedModel:
    """Fails so often, then answers; counts attempts, as an endpoint would."""
    left = times

    def answer(request: StepRequest) -> Any:
        nonlocal left
        left -= 1
        return error() if left >= 0 else finish()

    return ScriptedModel(answer)


def overloaded(**more: Any) -> ProviderError:
    return ProviderError("overloaded", "busy", is_retryable=True, status=503, **more)


async def test_a_retryable_failure_is_tried_again_after_longer_and_longer_waits(
    bench: Bench,
) -> None:
    clock = ManualClock()
    runtime = await bench.runtime(failing(4, overloaded), clock=clock, retry_base_s=0.5)

    result = await runtime.run(AGENT, "Go.")

    assert result.status == "done"
    assert len(clock.slept) == 4
    for number, waited in enumerate(clock.slept):
        assert 0.25 * 2**number - 0.1 <= waited <= 0.5 * 2**number
    run = await bench.run_of(result.run_id)
    assert (run.attempts, run.failures) == (5, 0)
    assert run.spent_tokens == USAGE.total_tokens  # what was refused costs nothing


async def test_the_engines_clock_says_nothing_about_the_lease(bench: Bench) -> None:
    """A lease is kept by the machine's steady clock; the engine may be given another one."""

    async def slowly(request: StepRequest) -> Reply:
        await asyncio.sleep(0.15)
        return finish()

    runtime = await bench.runtime(ScriptedModel(slowly), clock=ManualClock(), lease_s=0.3)

    assert (await runtime.run(AGENT, "Go.")).status == "done"


async def test_a_broken_stream_is_billed_with_its_reserve_and_its_text_is_no_state(
    bench: Bench,
) -> None:
    def error() -> ProviderError:
        return ProviderError(
            "connection_dropped", "cut", is_retryable=True, partial_text="half an ans"
        )

    runtime = await bench.runtime(failing(1, error))

    result = await runtime.run(AGENT, "Go.")

    run = await bench.run_of(result.run_id)
    assert run.spent_tokens > USAGE.total_tokens + 100
    assert "half an ans" not in str(run.messages)


async def test_an_outage_parks_the_run_and_ends_it_never(bench: Bench) -> None:
    clock = ManualClock()
    runtime = await bench.runtime(
        model := failing(5, overloaded), clock=clock, park_after_s=99.0, outage_retry_s=900.0
    )
    run_id = await runtime.start(AGENT, "Go.", limits=Limits(failures=3))

    with pytest.raises(ProviderError, match="busy"):
        await runtime.work(run_id, AGENT)

    head = await runtime.store.head(RunId(run_id))
    assert len(model.requests) == 3
    assert (head.status, head.lease_until_ms) == ("sleeping", 0)
    assert head.due_ms is not None  # a worker looks again by itself, much later
    assert head.due_ms > head.updated_ms + 800_000
    for tries in (4, 5):  # a person who resumes gets one try at once, and no more
        with pytest.raises(ProviderError, match="busy"):
            await runtime.work(run_id, AGENT)
        assert len(model.requests) == tries
    assert (await runtime.work(run_id, AGENT)).status == "done"


async def test_a_failure_that_no_repeat_would_mend_ends_the_run_at_once(bench: Bench) -> None:
    error = ProviderError("bad_request", "no such parameter", is_retryable=False, status=400)
    runtime = await bench.runtime(model := failing(99, lambda: error))

    result = await runtime.run(AGENT, "Go.")

    assert (result.status, result.reason, len(model.requests)) == ("error", "model", 1)
    assert result.message == "no such parameter"


@pytest.mark.parametrize(("wish", "wait_ms"), [(30.0, 30_000), (1e30, 86_400_000)])
async def test_a_long_wait_that_the_provider_wishes_holds_no_worker(
    bench: Bench, wish: float, wait_ms: int
) -> None:
    runtime = await bench.runtime(model := failing(1, lambda: overloaded(retry_after_s=wish)))

    result = await runtime.run(AGENT, "Go.")

    assert result.status == "sleeping"
    head = await runtime.store.head(RunId(result.run_id))
    assert head.due_ms is not None
    assert abs(head.due_ms - await runtime.store.now_ms() - wait_ms) < 2_000
    assert (await runtime.work(result.run_id, AGENT)).status == "sleeping"  # a wake-up too early
    assert len(model.requests) == 1
    assert (await runtime.store.head(RunId(result.run_id))).due_ms == head.due_ms


async def test_a_wish_in_the_past_is_no_wait(bench: Bench) -> None:
    runtime = await bench.runtime(failing(1, lambda: overloaded(retry_after_s=-5.0)))

    assert (await runtime.run(AGENT, "Go.")).status == "done"


@pytest.mark.parametrize(
    "error",
    [
        ProviderError("auth", "wrong key", is_retryable=False, status=401),
        ProviderError("quota", "no credit", is_retryable=False, status=429),
        ProviderError("not_found", "no such model", is_retryable=False, status=404),
        ProviderError("unreachable", "connection refused", is_retryable=True),
        MissingSetting("OPENAI_API_KEY is not set"),
    ],
    ids=lambda error: getattr(error, "kind", "missing"),
)
async def test_what_only_an_operator_can_mend_parks_the_run_with_nothing_lost(
    bench: Bench, error: Exception
) -> None:
    runtime = await bench.runtime(model := failing(1, lambda: error))
    run_id = await runtime.start(AGENT, "Go.")

    with pytest.raises(type(error), match=str(error)):
        await runtime.work(run_id, AGENT)

    head = await runtime.store.head(RunId(run_id))
    assert (head.status, head.due_ms, head.lease_until_ms) == ("sleeping", None, 0)
    result = await runtime.work(run_id, AGENT)
    assert (result.status, result.spent_tokens) == ("done", USAGE.total_tokens)
    assert len(model.requests) == 2


async def test_an_operators_failure_is_not_counted_against_the_run(bench: Bench) -> None:
    error = ProviderError("auth", "wrong key", is_retryable=False, status=401)
    runtime = await bench.runtime(failing(5, lambda: error))
    run_id = await runtime.start(AGENT, "Go.", limits=Limits(failures=2))

    for _ in range(5):
        with pytest.raises(ProviderError):
            await runtime.work(run_id, AGENT)

    assert (await runtime.work(run_id, AGENT)).status == "done"


async def test_a_bug_of_the_host_gives_the_run_back_and_loses_nothing(bench: Bench) -> None:
    runtime = await bench.runtime(failing(1, lambda: ValueError("a bug")))
    run_id = await runtime.start(AGENT, "Go.")

    with pytest.raises(ValueError, match="a bug"):
        await runtime.work(run_id, AGENT)

    head = await runtime.store.head(RunId(run_id))
    assert (head.lease_until_ms, head.due_ms) == (0, None)
    assert (await runtime.work(run_id, AGENT)).status == "done"


async def test_a_transcript_holds_one_attempt_for_each_step(bench: Bench) -> None:
    """A model that answers differently each time, and fails in between."""
    attempt = 0

    def answer(request: StepRequest) -> Any:
        nonlocal attempt
        attempt += 1
        if attempt % 2:
            return overloaded()
        return think(f"attempt {attempt}") if attempt < 8 else finish(f"attempt {attempt}")

    runtime = await bench.runtime(ScriptedModel(answer))

    result = await runtime.run(AGENT, "Go.")

    said = [
        m.text
        for m in (await bench.run_of(result.run_id)).messages
        if isinstance(m, AssistantMessage)
    ]
    assert said == ["attempt 2", "attempt 4", "attempt 6", "attempt 8"]
    kinds = [
        type(delta)
        for event in await runtime.history(result.run_id)
        for delta in event.record.deltas
        if isinstance(delta, (Replied, ModelFailed))
    ]
    assert kinds == [ModelFailed, Replied] * 4


@pytest.mark.parametrize("most", [2, 3])
async def test_twins_of_a_call_beyond_the_budget_are_answered_too(bench: Bench, most: int) -> None:
    @tool(effect="read", concurrency=1)
    async def look(x: int) -> str:
        return f"saw {x}"

    batch = [("look", {"x": x}) for x in (5, 6, 6)]
    model = turns(ask(("look", {"x": 9})), ask(*batch), finish("Done."))
    runtime = await bench.runtime(model)

    result = await runtime.run(Agent("a", tools=[look]), "Go.", limits=Limits(tool_calls=most))

    assert result.status == "done"
    assert sorted(status for _, status in await bench.settled(result.run_id)) == [
        "duplicate", *(["error"] if most == 2 else []), *["success"] * most,
    ]  # fmt: skip
