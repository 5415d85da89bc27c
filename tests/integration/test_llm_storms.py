"""Refusals, broken streams and odd models through the whole machine: real client, store, server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from checkpoints.model import RunId
from fsm_agent import Agent, Limits, Runtime, tool
from fsm_agent.errors import ProviderError
from fsm_agent.labels.protocol import DEFAULT
from fsm_agent.llm.client import OpenAIModel
from fsm_agent.llm.limits import Limits as ReplyLimits
from fsm_agent.llm.profiles import Profile
from fsm_agent.run.delta import Began, Hinted, ModelFailed, Replied, Signed
from fsm_agent.run.event import EntryEvent, Event, LiveEvent
from fsm_agent.testing.model_server import ModelServer
from fsm_agent.testing.script import HttpError, Raw, Reply, Request, call
from tests.conftest import Bench, ManualClock, until


@tool(effect="read")
async def look(q: str = "") -> str:
    """Look something up."""
    return f"found {q}"


AGENT = Agent("a", tools=[look])
NATIVE = Agent("n", tools=[look], protocol=None)
GOOD = Reply("42", label="FINISH")
Answer = Callable[[Request], Awaitable[Any]]


def in_turn(*answers: Any) -> Answer:
    """The answers one after the other, the last one for ever."""
    left = list(answers)

    async def answer(_: Request) -> Any:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


def by_turns(*answers: Any) -> Answer:
    """The nth answer to a conversation in which the model has spoken n times."""

    async def answer(request: Request) -> Any:
        return answers[min(request.turns, len(answers) - 1)]

    return answer


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


DONE = {"_done": True}


def unlabelled(text: str, **delta: Any) -> Raw:
    return Raw(chunks=[chunk(content=text, **delta), chunk("stop"), DONE])


async def runtime_of(bench: Bench, server: ModelServer, **options: Any) -> Runtime:
    of_model = {key: options.pop(key) for key in ("is_live", "limits", "profile") if key in options}
    model = OpenAIModel("m", server.base_url, **of_model)
    bench._stack.push_async_callback(model.aclose)
    return await bench.runtime(model, **options)  # type: ignore[arg-type]


def has_sent(server: ModelServer, writes: int) -> bool:
    return bool(server.requests) and server.requests[0].sent_writes >= writes


async def deltas_of(runtime: Runtime, run_id: str, kind: type) -> list[Any]:
    history: Sequence[EntryEvent] = await runtime.history(run_id)
    return [d for event in history for d in event.record.deltas if isinstance(d, kind)]


# --- storms

STORM = (
    HttpError(429, "Rate limit reached. Please try again in 10ms."),
    HttpError(503, "overloaded"),
    HttpError(500, "boom"),
    HttpError(529, "Overloaded"),
    Raw(status=502, body="<html>Bad gateway</html>"),
    Raw(chunks=[{"error": {"message": "Overloaded", "type": "overloaded_error"}}]),
    Raw(chunks=[chunk(content="``FINISH``\nIt "), {"_drop": True}]),
)


@pytest.mark.parametrize("agent", [AGENT, NATIVE], ids=["labels", "native"])
async def test_a_storm_of_refusals_is_outlasted_and_each_attempt_is_on_record(
    bench: Bench, agent: Agent
) -> None:
    clock = ManualClock()
    good = GOOD if agent is AGENT else Reply("42")
    async with ModelServer(in_turn(*STORM, good)) as server:
        runtime = await runtime_of(bench, server, clock=clock, park_after_s=1e9)

        result = await runtime.run(agent, "Go.")

    assert (result.status, result.answer, result.turns) == ("done", "42", 1)
    assert len(server.requests) == len(STORM) + 1
    began = await deltas_of(runtime, result.run_id, Began)
    assert [each.attempt for each in began] == list(range(1, len(STORM) + 2))
    assert all(each.reserve_tokens > 0 for each in began)
    failed = await deltas_of(runtime, result.run_id, ModelFailed)
    kinds = ["rate_limited", "overloaded", "server_error", "overloaded", "server_error"]
    assert [each.kind for each in failed] == [*kinds, "stream_error", "connection_dropped"]
    # Refusals cost nothing; a stream that broke may have been billed, so its reserve counts.
    assert [each.is_billed for each in failed] == [False] * 5 + [True] * 2
    (replied,) = await deltas_of(runtime, result.run_id, Replied)
    reserves = began[5].reserve_tokens + began[6].reserve_tokens
    assert result.spent_tokens == replied.usage.total_tokens + reserves


async def test_the_wait_is_the_one_that_the_provider_asks_for(bench: Bench) -> None:
    clock = ManualClock()
    refusals = (HttpError(429, "slow down", retry_after_s=3), HttpError(429, "try again in 1m2s"))
    async with ModelServer(in_turn(*refusals, GOOD)) as server:
        runtime = await runtime_of(bench, server, clock=clock, park_after_s=1e9)

        await runtime.run(AGENT, "Go.")

    assert [round(each) for each in clock.slept] == [3, 62]


async def test_a_long_wait_parks_the_run_and_any_worker_goes_on_later(bench: Bench) -> None:
    async with ModelServer(in_turn(HttpError(429, "later", retry_after_s=0.6), GOOD)) as server:
        runtime = await runtime_of(bench, server, park_after_s=0.05)
        parked = await runtime.run(AGENT, "Go.")
        head = await runtime.store.head(RunId(parked.run_id))
        assert (parked.status, head.lease_until_ms) == ("sleeping", 0)
        (failed,) = await deltas_of(runtime, parked.run_id, ModelFailed)
        assert head.due_ms == failed.retry_at_ms
        assert (await runtime.work(parked.run_id, AGENT)).status == "sleeping"  # too early
        assert len(server.requests) == 1

        await until(lambda: _is_due(runtime, parked.run_id))
        other = await runtime_of(bench, server, park_after_s=0.05)
        result = await other.work(parked.run_id, AGENT)

    assert (result.status, result.answer) == ("done", "42")
    (replied,) = await deltas_of(other, result.run_id, Replied)
    assert result.spent_tokens == replied.usage.total_tokens


async def _is_due(runtime: Runtime, run_id: str) -> bool:
    head = await runtime.store.head(RunId(run_id))
    return head.due_ms is not None and await runtime.store.now_ms() >= head.due_ms


async def test_a_storm_that_does_not_end_parks_the_run_with_its_reason(bench: Bench) -> None:
    async with ModelServer(in_turn(HttpError(503, "busy"))) as server:
        runtime = await runtime_of(bench, server, clock=ManualClock(), park_after_s=1e9)
        run_id = await runtime.start(AGENT, "Go.", limits=Limits(failures=4))

        with pytest.raises(ProviderError, match="busy"):
            await runtime.work(run_id, AGENT)

        assert len(server.requests) == 4
        assert (await runtime.result(run_id)).status == "sleeping"


async def test_many_runs_in_one_storm_all_come_through(bench: Bench) -> None:
    tries: dict[str, int] = {}

    async def answer(request: Request) -> Any:
        tries[request.last_user] = tries.get(request.last_user, 0) + 1
        return HttpError(429, "busy") if tries[request.last_user] <= 2 else GOOD

    async with ModelServer(answer) as server:
        runtime = await runtime_of(bench, server)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(runtime.run(AGENT, f"task {n}")) for n in range(30)]

    assert {task.result().status for task in running} == {"done"}
    assert set(tries.values()) == {3}


# --- rows of engine.md that take more than one reply


async def test_row_16_a_live_answer_is_taken_back_before_the_retry(bench: Bench) -> None:
    heard: list[Event] = []
    bad = Raw(
        chunks=[
            chunk(content="``FINISH``\nIt is "),
            chunk(content="done."),
            chunk(
                tool_calls=[{"index": 0, "id": "x", "function": {"name": "look", "arguments": ""}}]
            ),
            chunk("tool_calls"),
            DONE,
        ]
    )
    async with ModelServer(in_turn(bad, GOOD)) as server:
        runtime = await runtime_of(bench, server, is_live=True, on_event=heard.append)

        result = await runtime.run(AGENT, "Go.")

    live = [(e.channel, e.text, e.attempt) for e in heard if isinstance(e, LiveEvent)]
    body = [each for each in live if each[0] != "thinking"]
    assert body == [
        ("body", "It is ", 1),
        ("body", "done.", 1),
        ("retracted", "It is done.", 1),
        ("body", "42", 2),
    ]
    assert result.answer == "42"


async def test_row_17_a_whole_answer_without_a_label_is_rescued_after_the_repairs(
    bench: Bench,
) -> None:
    async with ModelServer(in_turn(unlabelled("The capital is Oslo."))) as server:
        runtime = await runtime_of(bench, server)

        result = await runtime.run(AGENT, "Go.", limits=Limits(repairs=2))

    assert (result.status, result.answer) == ("done", "The capital is Oslo.")
    assert len(server.requests) <= 4


SIGNED = [{"type": "reasoning.text", "text": "hm", "index": 0, "signature": "sig-1"}]
THOUGHT = {"google": {"thought_signature": "sig-2"}}


@pytest.mark.parametrize("agent", [AGENT, NATIVE], ids=["labels", "native"])
@pytest.mark.parametrize("has_profile", [True, False], ids=["known", "learnt"])
async def test_row_23_what_the_provider_signed_goes_back_with_the_results(
    bench: Bench, agent: Agent, has_profile: bool
) -> None:
    asked = {"index": 0, "id": "p", "function": {"name": "look", "arguments": "{}"}}
    pieces = [{**SIGNED[0], "text": "h", "signature": None}, {**SIGNED[0], "text": "m"}]
    calls = Raw(
        chunks=[
            chunk(reasoning_details=pieces[:1]),
            chunk(reasoning_details=pieces[1:]),
            chunk(content="``TOOL``\n" if agent is AGENT else ""),
            chunk(tool_calls=[asked | {"extra_content": THOUGHT}]),
            chunk("tool_calls"),
            DONE,
        ]
    )

    async def answer(request: Request) -> Any:
        if not request.turns:
            return calls
        if "reasoning_details" not in request.messages[2]:
            return HttpError(400, "Function call is missing a thought_signature.")
        return GOOD if agent is AGENT else Reply("42")

    profile = Profile(replays_signatures=has_profile)
    async with ModelServer(answer) as server:
        runtime = await runtime_of(bench, server, profile=profile)
        result = await runtime.run(agent, "Go.")

    assert (result.status, result.answer) == ("done", "42")
    message = server.requests[-1].body["messages"][2]
    assert message["reasoning_details"] == SIGNED
    assert message["tool_calls"][0]["extra_content"] == THOUGHT
    assert len(await deltas_of(runtime, result.run_id, Signed)) == 1
    assert len(server.requests) == (2 if has_profile else 3)


async def test_row_23_reasoning_goes_back_to_a_provider_that_wants_it(bench: Bench) -> None:
    calls = Reply(tool_calls=[call("look")], label="TOOL", thinking="hm")
    profile = Profile(echoes_reasoning=True)
    async with ModelServer(by_turns(calls, GOOD)) as server:
        runtime = await runtime_of(bench, server, profile=profile)
        await runtime.run(AGENT, "Go.")

    assert server.requests[-1].body["messages"][2]["reasoning_content"] == "hm"


async def test_row_26_an_answer_cut_short_is_asked_for_again_and_never_the_result(
    bench: Bench,
) -> None:
    cut = Raw(chunks=[chunk(content="``FINISH``\nIt is"), chunk("length"), DONE])
    async with ModelServer(in_turn(cut, GOOD)) as server:
        runtime = await runtime_of(bench, server)
        result = await runtime.run(AGENT, "Go.")

    assert result.answer == "42"
    assert (await deltas_of(runtime, result.run_id, Replied))[0].violation == "truncated"


async def test_row_27_an_empty_answer_gets_one_nudge_a_repair(bench: Bench) -> None:
    empty = Raw(chunks=[chunk(content="``FINISH``\n"), chunk("stop"), DONE])
    async with ModelServer(in_turn(empty, GOOD)) as server:
        runtime = await runtime_of(bench, server)
        result = await runtime.run(AGENT, "Go.")

    assert result.answer == "42"
    assert len(await deltas_of(runtime, result.run_id, Hinted)) == 1
    contents = [message["content"] for message in server.requests[-1].body["messages"]]
    assert "" not in contents


@pytest.mark.parametrize("text", ["", "The same again."])
async def test_row_28_the_same_thought_again_and_again_is_no_progress(
    bench: Bench, text: str
) -> None:
    async with ModelServer(in_turn(Reply(text, label="THINK"))) as server:
        runtime = await runtime_of(bench, server)
        result = await runtime.run(AGENT, "Go.")

    assert (result.is_completed, result.turns < 12) == (False, True)


@pytest.mark.parametrize(
    "begun", ["", "``TOOL``\nI look", "``FINISH``\nIt is"], ids=["before", "tool", "answer"]
)
async def test_row_29_a_silent_stream_is_a_timeout_and_its_text_is_no_answer(
    bench: Bench, begun: str
) -> None:
    limits = ReplyLimits(first_s=0.3, idle_s=0.3, idle_answer_s=0.3)
    first = [chunk(content=begun)] if begun else []
    async with ModelServer(in_turn(Raw(chunks=[*first, {"_hang": True}]), GOOD)) as server:
        runtime = await runtime_of(bench, server, limits=limits)
        result = await runtime.run(AGENT, "Go.")

    assert result.answer == "42"
    assert [each.kind for each in await deltas_of(runtime, result.run_id, ModelFailed)] == [
        "timeout"
    ]


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 0, "completion_tokens": 0}])
async def test_row_31_usage_that_is_absent_or_zero_is_estimated_and_marked(
    bench: Bench, usage: dict[str, int] | None
) -> None:
    chunks = [chunk(content="``FINISH``\n42"), chunk("stop"), {"choices": [], "usage": usage}, DONE]
    async with ModelServer(in_turn(Raw(chunks=chunks))) as server:
        runtime = await runtime_of(bench, server)
        result = await runtime.run(AGENT, "Go.")

    (replied,) = await deltas_of(runtime, result.run_id, Replied)
    assert replied.usage.is_estimate
    assert result.spent_tokens == replied.usage.total_tokens > 0


async def test_row_32_two_refused_parameters_are_one_attempt(bench: Bench) -> None:
    first = HttpError(400, "Unknown parameter: stream_options")
    second = HttpError(400, "Unsupported value: 'temperature' does not support 0.2")
    agent = Agent("a", temperature=0.2)
    async with ModelServer(in_turn(first, second, GOOD)) as server:
        runtime = await runtime_of(bench, server)
        result = await runtime.run(agent, "Go.")

    assert result.status == "done"
    assert len(server.requests) == 3
    assert len(await deltas_of(runtime, result.run_id, Began)) == 1


async def test_row_48_and_49_a_model_without_tools_and_with_strict_roles_is_served(
    bench: Bench,
) -> None:
    async def answer(request: Request) -> Any:
        if request.offered:
            return HttpError(400, "registry/gemma does not support tools")
        roles = [message["role"] for message in request.messages]
        if "system" in roles:
            return HttpError(400, "System role not supported")
        if any(one == other for one, other in pairwise(roles)):
            return HttpError(500, "Conversation roles must alternate user/assistant/user/…")
        return GOOD if request.turns else Reply("hm", label="THINK")

    async with ModelServer(answer) as server:
        runtime = await runtime_of(bench, server)
        result = await runtime.run(AGENT, "Go.")

    assert (result.status, result.answer) == ("done", "42")
    last = server.requests[-1].body
    assert [message["role"] for message in last["messages"]] == ["user", "assistant", "user"]
    assert "``TOOL``" not in last["messages"][0]["content"]
    assert "``FINISH``" in last["messages"][0]["content"]
    assert DEFAULT.tool_label == "TOOL"


# --- cancellation


@pytest.mark.parametrize("at", range(6))
async def test_a_run_cancelled_at_any_chunk_leaves_no_connection_and_can_go_on(
    bench: Bench, at: int
) -> None:
    """The worker is cut off while the reply is under way; another one takes the run up."""
    words = ["<think>a", "</think>``FIN", "ISH``\nIt ", "is ", "here"]
    slow = Raw(chunks=[*(chunk(content=word) for word in words[:at]), {"_hang": True}])
    async with ModelServer(in_turn(slow, GOOD)) as server:
        runtime = await runtime_of(bench, server, lease_s=15.0)
        run_id = await runtime.start(AGENT, "Go.")
        working = asyncio.create_task(runtime.work(run_id, AGENT))
        await server.wait_for(
            lambda: bool(server.requests and server.requests[0].sent_writes >= at)
        )
        await asyncio.sleep(0.02)

        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await server.wait_for(lambda: server.open_connections == 0)
        await until(lambda: _is_free(runtime, run_id))
        result = await runtime.work(run_id, AGENT)

    assert (result.status, result.answer) == ("done", "42")
    # The attempt that was cut may have been billed: its reserve is spent.
    began = await deltas_of(runtime, run_id, Began)
    (replied,) = await deltas_of(runtime, run_id, Replied)
    assert result.spent_tokens == replied.usage.total_tokens + began[0].reserve_tokens


async def _is_free(runtime: Runtime, run_id: str) -> bool:
    return (await runtime.store.head(RunId(run_id))).lease_until_ms == 0


@pytest.mark.parametrize("at", [0, 2, 4])
async def test_a_cancel_request_while_the_model_speaks_ends_the_run_and_the_stream(
    bench: Bench, at: int
) -> None:
    slow = Raw(chunks=[*[chunk(content="``THINK``\nx")] * at, {"_hang": True}])
    async with ModelServer(in_turn(slow)) as server:
        runtime = await runtime_of(bench, server)
        run_id = await runtime.start(AGENT, "Go.")
        working = asyncio.create_task(runtime.work(run_id, AGENT))
        await server.wait_for(
            lambda: bool(server.requests and server.requests[0].sent_writes >= at)
        )

        await runtime.cancel(run_id, by="me")
        result = await working
        await server.wait_for(lambda: server.open_connections == 0)

    assert (result.status, result.reason) == ("error", "cancelled")
