"""The client against a model server on loopback: keys, limits, changes, what it leaves behind."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fsm_agent.errors import MissingSetting, ProviderError
from fsm_agent.labels.protocol import DEFAULT, LabelProtocol
from fsm_agent.llm.client import OpenAIModel, is_loopback
from fsm_agent.llm.limits import Limits
from fsm_agent.llm.model import Piece, StepRequest, ToolSpec
from fsm_agent.run.content import UserMessage
from fsm_agent.testing.model_server import ModelServer
from fsm_agent.testing.script import Hang, HttpError, Raw, Reply, Request, call

TOOLS = (ToolSpec("look", "Look it up.", {"type": "object", "properties": {}}),)
Answer = Callable[[Request], Awaitable[Any]]


def step_of(**fields: Any) -> StepRequest:
    given: dict[str, Any] = {
        "instructions": "Answer.",
        "messages": (UserMessage("hi"),),
        "protocol": DEFAULT,
    }
    return StepRequest(**(given | fields))


def always(*answers: Any) -> Answer:
    """The answers in turn, the last one for ever."""
    left = list(answers)

    async def answer(_: Request) -> Any:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


def chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
DONE = {"_done": True}


@pytest.fixture
def bare_env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "FSM_AGENT_MODEL"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


# --- settings ------------------------------------------------------------------------------------


async def test_without_a_key_the_error_says_what_to_set(bare_env: pytest.MonkeyPatch) -> None:
    model = OpenAIModel("m")

    with pytest.raises(MissingSetting, match=r"Set OPENAI_API_KEY, or set OPENAI_BASE_URL") as told:
        await model.step(step_of(), lambda piece: None)
    assert "\n" not in str(told.value)


async def test_without_a_model_the_error_says_what_to_set(bare_env: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingSetting, match="FSM_AGENT_MODEL"):
        await OpenAIModel(api_key="sk-x").step(step_of(), lambda piece: None)


async def test_the_environment_is_read_at_each_step_and_loopback_needs_no_key(
    bare_env: pytest.MonkeyPatch,
) -> None:
    model = OpenAIModel()
    async with ModelServer(always(Reply("yes", label="FINISH"))) as server:
        bare_env.setenv("OPENAI_BASE_URL", server.base_url)
        bare_env.setenv("FSM_AGENT_MODEL", "from-env")

        reply = await model.step(step_of(), lambda piece: None)
        await model.aclose()

    assert reply.text == "yes"
    assert server.requests[0].body["model"] == "from-env"


async def test_a_wrong_key_is_one_clear_line_without_the_key() -> None:
    async with ModelServer(always(Reply("yes")), api_key="right") as server:
        model = OpenAIModel("m", server.base_url, "sk-wrong-key")

        with pytest.raises(ProviderError, match="refused the API key") as told:
            await model.step(step_of(), lambda piece: None)
        await model.aclose()

    assert (told.value.kind, told.value.is_retryable, told.value.status) == ("auth", False, 401)
    assert "sk-wrong-key" not in str(told.value)
    assert "\n" not in str(told.value)


async def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    model = OpenAIModel("m", url)

    with pytest.raises(ProviderError, match="no model server at") as told:
        await model.step(step_of(), lambda piece: None)
    await model.aclose()

    assert (told.value.kind, told.value.is_retryable) == ("unreachable", True)
    assert url in str(told.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:1/v1", True),
        ("http://localhost:1", True),
        ("http://[::1]:1/v1", True),
        ("http://localhost.evil.com", False),
        ("http://10.0.0.1", False),
        ("", False),
    ],
)
def test_only_this_machine_is_loopback(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected


def test_importing_the_client_does_not_import_the_sdk() -> None:
    code = "import sys, fsm_agent.llm.client; sys.exit('openai' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- limits --------------------------------------------------------------------------------------


async def seconds_until_timeout(limits: Limits, *chunks: dict[str, Any]) -> float:
    async with ModelServer(always(Raw(chunks=chunks))) as server:
        model = OpenAIModel("m", server.base_url, limits=limits)
        started = time.monotonic()
        with pytest.raises(ProviderError) as told:
            await model.step(step_of(), lambda piece: None)
        seconds = time.monotonic() - started
        await server.wait_until_idle()
        await model.aclose()
    assert (told.value.kind, told.value.is_retryable) == ("timeout", True)
    return seconds


async def test_silence_before_the_first_chunk_has_its_own_limit() -> None:
    limits = Limits(first_s=0.4, idle_s=20)

    assert await seconds_until_timeout(limits, {"_hang": True}) < 3


async def test_silence_between_chunks_has_its_own_limit() -> None:
    limits = Limits(first_s=20, idle_s=0.4)

    assert await seconds_until_timeout(limits, chunk(content="``THI"), {"_hang": True}) < 3


async def test_silence_inside_an_answer_has_its_own_limit() -> None:
    limits = Limits(first_s=20, idle_s=20, idle_answer_s=0.4)
    chunks = (chunk(content="``FINISH``\nThe answer is"), {"_hang": True})

    assert await seconds_until_timeout(limits, *chunks) < 3


async def test_a_reply_that_goes_on_for_ever_has_its_own_limit() -> None:
    limits = Limits(whole_s=0.6)
    slow = {"_repeat": 10_000, "item": {"_delay_ms": 20}}
    chunks = ({"_repeat": 60, "item": chunk(content="``THINK``\nword ")}, slow)

    assert await seconds_until_timeout(limits, *chunks) < 3


async def test_keep_alive_comments_are_silence() -> None:
    limits = Limits(first_s=0.5)
    beats = [{"_sse": ": keep-alive\n\n"}, {"_delay_ms": 30}] * 200

    assert await seconds_until_timeout(limits, *beats) < 3


async def test_a_reply_beyond_the_size_limit_is_a_typed_failure() -> None:
    endless = {"_repeat": 100_000, "item": chunk(content="``FINISH``\n" + "x" * 1000)}
    async with ModelServer(always(Raw(chunks=[endless]))) as server:
        model = OpenAIModel("m", server.base_url, limits=Limits(max_reply_chars=50_000))

        with pytest.raises(ProviderError, match="50000 characters") as told:
            await model.step(step_of(), lambda piece: None)
        await server.wait_until_idle()
        await model.aclose()

    assert (told.value.kind, told.value.is_retryable) == ("malformed_stream", False)


# --- what is left behind -------------------------------------------------------------------------


@pytest.mark.parametrize("after_chunks", [0, 2])
async def test_a_cancelled_step_leaves_no_open_connection(after_chunks: int) -> None:
    hanging = Reply("one two three", label="THINK", interruption=Hang(after_chunks=after_chunks))
    async with ModelServer(always(hanging)) as server:
        model = OpenAIModel("m", server.base_url)
        task = asyncio.create_task(model.step(step_of(), lambda piece: None))
        await server.wait_for_requests(1)
        await asyncio.sleep(0.05)

        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await server.wait_for(lambda: server.open_connections == 0)
        await model.aclose()


async def test_an_outer_timeout_stays_the_callers() -> None:
    async with ModelServer(always(Reply("x", interruption=Hang()))) as server:
        model = OpenAIModel("m", server.base_url)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await model.step(step_of(), lambda piece: None)
        await model.aclose()


async def test_a_connection_serves_one_step_after_the_other() -> None:
    async with ModelServer(always(Reply("yes", label="FINISH"))) as server:
        model = OpenAIModel("m", server.base_url)
        for _ in range(3):
            await model.step(step_of(), lambda piece: None)

        assert server.open_connections == 1
        await model.aclose()


async def test_many_steps_at_once_do_not_mix() -> None:
    async def answer(request: Request) -> Reply:
        return Reply(f"for {request.last_user}", label="FINISH", chunk_chars=2)

    async with ModelServer(answer) as server:
        model = OpenAIModel("m", server.base_url)
        requests = [step_of(messages=(UserMessage(f"u{number}"),)) for number in range(40)]
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(model.step(request, lambda piece: None)) for request in requests
            ]
        await model.aclose()

    assert [task.result().text for task in running] == [f"for u{number}" for number in range(40)]


async def test_a_step_never_asks_a_paid_question_twice() -> None:
    async with ModelServer(always(HttpError(500, "boom"))) as server:
        model = OpenAIModel("m", server.base_url)

        with pytest.raises(ProviderError, match="500: boom") as told:
            await model.step(step_of(), lambda piece: None)
        await model.aclose()

    assert (told.value.kind, told.value.is_retryable) == ("server_error", True)
    assert len(server.requests) == 1


# --- changes after refusals ----------------------------------------------------------------------


async def test_two_refused_fields_are_dropped_one_by_one_and_remembered() -> None:
    answers = (
        HttpError(400, "Unknown parameter: stream_options"),
        HttpError(400, "'temperature' does not support 0.2 with this model"),
        Reply("yes", label="FINISH"),
    )
    async with ModelServer(always(*answers)) as server:
        model = OpenAIModel("m", server.base_url)
        for _ in range(2):
            await model.step(step_of(temperature=0.2), lambda piece: None)
        await model.aclose()

    sent = [request.body for request in server.requests]
    assert ["stream_options" in body for body in sent] == [True, False, False, False]
    assert ["temperature" in body for body in sent] == [True, True, False, False]


async def test_what_one_model_refuses_is_still_sent_to_another() -> None:
    async def answer(request: Request) -> Any:
        if request.model == "old" and "stream_options" in request.body:
            return HttpError(400, "Unknown parameter: stream_options")
        return Reply("yes", label="FINISH")

    async with ModelServer(answer) as server:
        model = OpenAIModel("old", server.base_url)
        await model.step(step_of(), lambda piece: None)
        await model.step(step_of(model="new"), lambda piece: None)
        await model.aclose()

    assert "stream_options" in server.requests[-1].body


async def test_a_rate_limit_that_speaks_of_a_toolbox_changes_nothing() -> None:
    refusal = HttpError(429, "the toolbox tier: tools are not supported", retry_after_s=3)
    async with ModelServer(always(refusal)) as server:
        model = OpenAIModel("m", server.base_url)

        with pytest.raises(ProviderError) as told:
            await model.step(step_of(tools=TOOLS), lambda piece: None)
        await model.aclose()

    assert (told.value.kind, told.value.retry_after_s) == ("rate_limited", 3.0)
    assert len(server.requests) == 1


# --- live text -----------------------------------------------------------------------------------


async def pieces_of(*chunks: dict[str, Any], is_live: bool, **fields: Any) -> list[Piece]:
    pieces: list[Piece] = []
    async with ModelServer(always(Raw(chunks=chunks))) as server:
        model = OpenAIModel("m", server.base_url, is_live=is_live)
        await model.step(step_of(**fields), pieces.append)
        await model.aclose()
    return pieces


ANSWER_WITH_CALL = (
    chunk(content="``FINISH``\nIt is "),
    chunk(content="done."),
    chunk(tool_calls=[{"index": 0, "id": "x", "function": {"name": "look", "arguments": "{}"}}]),
    STOP,
    DONE,
)


async def test_an_answer_is_shown_once_when_it_holds() -> None:
    chunks = (chunk(content="``FINISH``\nIt is "), chunk(content="done."), STOP, DONE)

    assert await pieces_of(*chunks, is_live=False) == [Piece("body", "It is done.")]


async def test_a_live_answer_is_shown_as_it_comes() -> None:
    chunks = (chunk(content="``FINISH``\nIt is "), chunk(content="done."), STOP, DONE)

    pieces = await pieces_of(*chunks, is_live=True)

    assert pieces == [Piece("body", "It is "), Piece("body", "done.")]


async def test_an_answer_with_calls_is_never_shown() -> None:
    assert await pieces_of(*ANSWER_WITH_CALL, is_live=False, tools=TOOLS) == []


async def test_a_live_answer_with_calls_is_taken_back() -> None:
    pieces = await pieces_of(*ANSWER_WITH_CALL, is_live=True, tools=TOOLS)

    assert pieces[-1] == Piece("retracted", "It is done.")


async def test_what_is_not_for_the_user_is_thinking() -> None:
    chunks = (
        chunk(reasoning_content="hm "),
        chunk(content="<think>so</think>``THINK``\nlook first"),
        STOP,
        DONE,
    )

    pieces = await pieces_of(*chunks, is_live=False)

    assert {piece.channel for piece in pieces} == {"thinking"}
    assert "".join(piece.text for piece in pieces) == "hm solook first"


async def test_a_dropped_live_answer_is_taken_back_and_kept_as_partial_text() -> None:
    pieces: list[Piece] = []
    chunks = (chunk(content="``FINISH``\nIt is "), {"_drop": True})
    async with ModelServer(always(Raw(chunks=chunks))) as server:
        model = OpenAIModel("m", server.base_url, is_live=True)
        with pytest.raises(ProviderError) as told:
            await model.step(step_of(), pieces.append)
        await model.aclose()

    assert (told.value.kind, told.value.partial_text) == ("connection_dropped", "It is ")
    assert pieces == [Piece("body", "It is "), Piece("retracted", "It is ")]


# --- policies of the protocol --------------------------------------------------------------------


async def test_bare_calls_count_as_the_tool_label_where_that_is_allowed() -> None:
    protocol = LabelProtocol(
        allowed=("TOOL", "FINISH"),
        terminal=frozenset({"FINISH"}),
        final=frozenset({"FINISH"}),
        tool_label="TOOL",
        accept_bare_calls=True,
    )
    async with ModelServer(always(Reply(tool_calls=[call("look")]))) as server:
        model = OpenAIModel("m", server.base_url)
        request = step_of(protocol=protocol, tools=TOOLS)

        reply = await model.step(request, lambda piece: None)
        await model.aclose()

    assert (reply.label, reply.violation, len(reply.calls)) == ("TOOL", None, 1)


@pytest.mark.parametrize("is_live", [False, True])
async def test_without_a_protocol_text_answers(is_live: bool) -> None:
    pieces: list[Piece] = []
    async with ModelServer(always(Reply("Four.", thinking="2+2", thinking_as="inline"))) as server:
        model = OpenAIModel("m", server.base_url, is_live=is_live)
        reply = await model.step(step_of(protocol=None), pieces.append)
        await model.aclose()

    assert (reply.label, reply.text, reply.violation) == (None, "Four.", None)
    assert reply.thinking.strip() == "2+2"
    assert "".join(piece.text for piece in pieces if piece.channel == "body") == "Four."


async def test_without_a_protocol_calls_act_and_the_text_beside_them_is_thinking() -> None:
    pieces: list[Piece] = []
    async with ModelServer(always(Reply("I look.", tool_calls=[call("look", q=1)]))) as server:
        model = OpenAIModel("m", server.base_url)
        reply = await model.step(step_of(protocol=None, tools=TOOLS), pieces.append)
        await model.aclose()

    assert [(each.name, each.arguments) for each in reply.calls] == [("look", {"q": 1})]
    assert reply.violation is None
    assert {piece.channel for piece in pieces} == {"thinking"}


async def test_usage_is_the_servers_or_none() -> None:
    async with ModelServer(always(Reply("x", label="FINISH", usage=None))) as server:
        model = OpenAIModel("m", server.base_url)
        reply = await model.step(step_of(), lambda piece: None)
        await model.aclose()

    assert reply.usage is None
