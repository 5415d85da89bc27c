"""The scripted model server, met by the real openai client and by bare sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
import httpx2
import pytest
from openai import (
    APIConnectionError,
    APIError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    OpenAI,
    RateLimitError,
)

from fsm_agent.testing.model_server import BadHistory, ModelServer, load_script
from fsm_agent.testing.script import (
    Attempts,
    Drop,
    Hang,
    HttpError,
    Raw,
    Reply,
    Request,
    Script,
    StreamError,
    ToolCall,
    Unmatched,
    Usage,
    attempts_in,
    call,
    item_bytes,
    otherwise,
    when,
)

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases" / "stream"
TOOLS = [
    {"type": "function", "function": {"name": "lookup_order", "parameters": {"type": "object"}}}
]


def client_of(server: ModelServer, *, api_key: str = "any", **options: Any) -> AsyncOpenAI:
    options.setdefault("max_retries", 0)
    return AsyncOpenAI(base_url=server.base_url, api_key=api_key, **options)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@dataclass
class Heard:
    """A stream as the SDK reads it."""

    text: str = ""
    thinking: str = ""
    finish_reason: str | None = None
    usage: Any = None
    chunks: int = 0


async def hear(
    client: AsyncOpenAI, text: str = "hello", *, into: Heard | None = None, **options: Any
) -> Heard:
    heard = into or Heard()
    async with await client.chat.completions.create(
        model="m", messages=[user(text)], stream=True, **options
    ) as stream:
        async for chunk in stream:
            heard.chunks += 1
            heard.usage = chunk.usage or heard.usage
            for choice in chunk.choices:
                heard.text += choice.delta.content or ""
                heard.thinking += getattr(choice.delta, "reasoning_content", None) or ""
                heard.finish_reason = choice.finish_reason or heard.finish_reason
    return heard


# --- a tour ------------------------------------------------------------------------------------


async def test_a_conversation_with_a_tool_follows_the_script():
    script = Script(
        when(user="refund").then(
            tool_calls=[call("lookup_order", order_id="A7")],
            thinking="I need the order.",
            label="TOOL",
        ),
        when(tool="lookup_order").then("The total is 42.", label="FINISH"),
    )
    async with ModelServer(script) as server, client_of(server) as client:
        messages: list[Any] = [user("I want a REFUND")]
        first = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
        asked = first.choices[0].message
        messages += [
            asked.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "42"},
        ]
        second = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)

    assert asked.content == "``TOOL``\n"
    assert asked.reasoning_content == "I need the order."
    assert first.choices[0].finish_reason == "tool_calls"
    assert json.loads(asked.tool_calls[0].function.arguments) == {"order_id": "A7"}
    assert second.choices[0].message.content == "``FINISH``\nThe total is 42."
    assert second.choices[0].finish_reason == "stop"
    assert [each.request.turns for each in server.requests] == [0, 1]
    assert server.errors == []


async def test_the_same_request_gets_the_same_answer_with_the_same_ids():
    script = Script(otherwise("ok", tool_calls=[call("a"), call("b")]))
    async with ModelServer(script) as server, client_of(server) as client:
        ask = client.chat.completions.create
        replies = [await ask(model="m", messages=[user(text)]) for text in ("x", "x", "y")]

    ids = [[each.id for each in reply.choices[0].message.tool_calls] for reply in replies]
    assert ids[0] == ids[1] != ids[2]
    assert len({*ids[0], *ids[2]}) == 4
    assert replies[0].id == replies[1].id != replies[2].id


# --- replies -----------------------------------------------------------------------------------


async def test_a_stream_comes_in_small_deltas():
    script = Script(otherwise("one two three", label="FINISH", thinking="hmm, hmm", chunk_chars=3))
    async with ModelServer(script) as server, client_of(server) as client:
        heard = await hear(client)

    assert heard.text == "``FINISH``\none two three"
    assert heard.thinking == "hmm, hmm"
    assert heard.finish_reason == "stop"
    assert heard.usage is None  # not asked for
    assert heard.chunks == 1 + 3 + 8 + 1


async def test_inline_thinking_stands_before_the_label():
    script = Script(otherwise("x", label="FINISH", thinking="hmm", thinking_as="inline"))
    async with ModelServer(script) as server, client_of(server) as client:
        heard = await hear(client)

    assert heard.text == "<think>\nhmm\n</think>\n\n``FINISH``\nx"
    assert heard.thinking == ""


async def test_parallel_calls_come_in_fragments():
    calls = [call("lookup_order", order_id="A7"), ToolCall(name="bad", arguments='{"a": ', id="c9")]
    script = Script(otherwise(tool_calls=calls, chunk_chars=4))
    async with ModelServer(script) as server, client_of(server) as client:
        fragments: dict[int, list[Any]] = {}
        async with await client.chat.completions.create(
            model="m", messages=[user("x")], stream=True
        ) as stream:
            async for chunk in stream:
                for part in chunk.choices[0].delta.tool_calls or ():
                    fragments.setdefault(part.index, []).append(part)
                finish = chunk.choices[0].finish_reason

    assert [parts[0].function.name for parts in fragments.values()] == ["lookup_order", "bad"]
    assert fragments[0][0].id.startswith("call_")
    assert fragments[1][0].id == "c9"
    assert len(fragments[0]) == 1 + 5
    arguments = ["".join(part.function.arguments for part in parts) for parts in fragments.values()]
    assert arguments == ['{"order_id": "A7"}', '{"a": ']
    assert finish == "tool_calls"


async def test_usage_is_estimated_given_or_left_out():
    given = Usage(100, 20, cached_tokens=60, reasoning_tokens=5)
    script = Script(
        when(user="estimated").then("four token text."),
        when(user="given").then("x", usage=given),
        when(user="none").then("x", usage=None),
    )
    asked = {"stream_options": {"include_usage": True}}
    async with ModelServer(script) as server, client_of(server) as client:
        estimated = await hear(client, "estimated", **asked)
        unasked = await hear(client, "given")
        none = await hear(client, "none", **asked)
        whole = await client.chat.completions.create(model="m", messages=[user("estimated")])

    assert estimated.usage.completion_tokens == 4
    assert estimated.usage.total_tokens == estimated.usage.prompt_tokens + 4
    assert unasked.usage.prompt_tokens_details.cached_tokens == 60
    assert unasked.usage.total_tokens == 120
    assert none.usage is None
    assert whole.usage.completion_tokens == 4


@pytest.mark.parametrize(("reason", "heard"), [("length", "length"), (None, None)])
async def test_the_finish_reason_is_as_scripted(reason: str | None, heard: str | None):
    script = Script(otherwise("x", finish_reason=reason))
    async with ModelServer(script) as server, client_of(server) as client:
        assert (await hear(client)).finish_reason == heard


async def test_delays_are_kept():
    script = Script(otherwise("abc", chunk_chars=1, first_byte_ms=60, between_ms=20))
    async with ModelServer(script) as server, client_of(server) as client:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        await hear(client)

        assert loop.time() - began_at >= 0.06 + 4 * 0.02


# --- conditions --------------------------------------------------------------------------------


def request(*messages: dict[str, Any], **body: Any) -> Request:
    return Request(body={"model": "small", "messages": list(messages), **body})


def called(name: str, call_id: str = "c1") -> dict[str, Any]:
    function = {"name": name, "arguments": '{"order_id": "A7"}'}
    asked = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [asked]}


TOOL_ANSWER = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Gone"}]}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (when(), True),
        (when(user="refund"), False),  # said before the model last spoke
        (when(user="hurry"), True),
        (when(tool="lookup_order"), True),
        (when(tool="lookup"), False),
        (when(tool=re.compile("lookup_.*")), True),
        (when(result="gone"), True),
        (when(tool="lookup_order", result="here"), False),
        (when(turns=1), True),
        (when(turns=0), False),
        (when(offers="lookup_order"), True),
        (when(offers="other"), False),
        (when(model="small"), True),
        (when(model="big"), False),
        (when(system="BE KIND"), True),
        (when(anywhere="refund"), True),
        (when(anywhere="A7"), True),
        (when(where=lambda request: request.is_streaming), False),
        (when(tool="lookup_order", turns=2), False),
    ],
    ids=lambda value: value.words if hasattr(value, "words") else "",
)
def test_conditions(condition: Any, holds: bool):
    asked = request(
        {"role": "developer", "content": "Be kind"},
        user("A refund, please"),
        called("lookup_order"),
        TOOL_ANSWER,
        user("Hurry up"),
        tools=TOOLS,
    )

    assert condition.holds(asked) is holds


def test_the_first_rule_that_fits_answers():
    script = Script(when(user="a").then("1"), when(user="ab").then("2"), otherwise("3"))

    replies = [script.answer(request(user(text))) for text in ("ab", "b")]

    assert [reply.text for reply in replies if isinstance(reply, Reply)] == ["1", "3"]


def test_options_beside_an_answer_that_is_no_text_are_refused():
    with pytest.raises(TypeError, match="label: these go with a text"):
        when().then(HttpError(429), label="FINISH")


async def test_a_request_that_no_rule_answers_says_what_came_and_which_rules_there_are():
    script = Script(when(user="refund").then("x"), when(tool="lookup_order", turns=1).then("y"))
    async with ModelServer(script) as server, client_of(server) as client:
        with pytest.raises(BadRequestError) as refused:
            await client.chat.completions.create(model="m", messages=[user("hello")], tools=TOOLS)

    text = refused.value.body["message"]  # type: ignore[index]
    assert "user 'hello'" in text
    assert "offers=lookup_order" in text
    assert "1. when(user='refund')" in text
    assert "2. when(tool='lookup_order', turns=1)" in text
    assert [each.body["messages"] for each in server.unmatched] == [[user("hello")]]
    assert isinstance(server.unmatched[0].error, Unmatched)


# --- functions, attempts, drift ----------------------------------------------------------------


async def test_a_function_may_be_the_script():
    async def answer(request: Request) -> Reply:
        return Reply(f"{request.last_user}, {request.number}", label="FINISH")

    async with ModelServer(answer) as server, client_of(server) as client:
        assert (await hear(client, "hi")).text == "``FINISH``\nhi, 1"
        assert (await hear(client, "hi")).text == "``FINISH``\nhi, 2"


async def test_a_script_that_raises_is_an_error_500_on_record():
    async def answer(request: Request) -> Reply:
        raise KeyError("oops")

    async with ModelServer(answer) as server, client_of(server) as client:
        with pytest.raises(InternalServerError, match="oops"):
            await hear(client)

        assert isinstance(server.errors[0].error, KeyError)
        assert server.unmatched == []


async def test_a_chunk_that_cannot_be_sent_breaks_the_connection_and_is_on_record():
    script = Script(otherwise(Raw(chunks=[{"x": object()}])))
    async with ModelServer(script) as server, client_of(server) as client:
        with pytest.raises(APIConnectionError):
            await hear(client)
        await server.wait_until_idle()

        assert isinstance(server.errors[0].error, TypeError)


async def test_attempts_go_by_order_in_each_conversation():
    attempts = Attempts([HttpError(503), HttpError(429, retry_after_s=0.01), Reply("at last")])
    script = Script(otherwise(attempts))
    async with ModelServer(script) as server, client_of(server, max_retries=2) as client:
        heard = await asyncio.gather(hear(client, "a"), hear(client, "b"))
        again = await hear(client, "a")

    assert [each.text for each in heard] == ["at last", "at last"]
    assert again.text == "at last"
    assert [each.status for each in server.requests].count(503) == 2
    assert len(server.requests) == 7


async def test_a_drifting_script_marks_each_reply():
    rule = otherwise("half a reply", thinking="hm", tool_calls=[call("f", n="{attempt}")])
    async with ModelServer(Script(rule, drifting=True)) as server, client_of(server) as client:
        ask = client.chat.completions.create
        replies = [await ask(model="m", messages=[user("x")]) for _ in range(2)]

    messages = [reply.choices[0].message for reply in replies]
    assert [attempts_in(message.content) for message in messages] == [{1}, {2}]
    assert messages[0].content == "[attempt 1] half a reply [attempt 1]"
    assert messages[0].tool_calls[0].function.arguments == '{"n": "1"}'
    assert messages[0].tool_calls[0].id != messages[1].tool_calls[0].id


# --- what goes wrong ---------------------------------------------------------------------------


async def test_an_error_status_has_openais_shape_and_the_retry_after_header():
    error = HttpError(429, "slow down", code="rate_limit_exceeded", retry_after_s=2)
    async with ModelServer(Script(otherwise(error))) as server, client_of(server) as client:
        with pytest.raises(RateLimitError) as limited:
            await hear(client)

    assert limited.value.code == "rate_limit_exceeded"
    assert limited.value.type == "rate_limit_error"
    assert limited.value.response.headers["retry-after"] == "2"


async def test_a_drop_breaks_the_stream_after_so_many_chunks():
    script = Script(otherwise("abcdef", chunk_chars=1, interruption=Drop(after_chunks=3)))
    async with ModelServer(script) as server, client_of(server) as client:
        heard = Heard()
        with pytest.raises(APIConnectionError):
            await hear(client, into=heard)
        await server.wait_until_idle()

        assert heard.text == "ab"
        assert server.requests[0].sent_writes == 3
        assert not server.requests[0].is_complete
        assert not server.requests[0].disconnected


@pytest.mark.parametrize("stream", [True, False])
async def test_a_drop_after_no_chunk_comes_before_the_response(stream: bool):
    script = Script(otherwise("x", interruption=Drop()))
    async with ModelServer(script) as server, client_of(server) as client:
        with pytest.raises(APIConnectionError):
            await client.chat.completions.create(model="m", messages=[user("x")], stream=stream)

        assert server.requests[0].status is None


async def test_an_error_event_ends_the_stream():
    script = Script(otherwise("abc", interruption=StreamError("overloaded", after_chunks=2)))
    async with ModelServer(script) as server, client_of(server) as client:
        with pytest.raises(APIError, match="overloaded"):
            await hear(client)

        assert server.requests[0].status == 200


@pytest.mark.parametrize("after_chunks", [0, 2])
async def test_the_server_sees_a_client_that_cancels(after_chunks: int):
    script = Script(otherwise("abc", chunk_chars=1, interruption=Hang(after_chunks=after_chunks)))
    async with ModelServer(script) as server, client_of(server) as client:
        hearing = asyncio.create_task(hear(client))
        await server.wait_for_requests(1)
        await server.wait_for(lambda: server.requests[0].sent_writes == after_chunks)
        assert server.open_streams == 1

        hearing.cancel()
        await server.wait_until_idle()

        assert server.requests[0].disconnected
        await server.wait_for(lambda: server.open_connections == 0)


async def test_a_server_that_closes_does_not_wait_for_a_hang():
    loop = asyncio.get_running_loop()
    server = ModelServer(Script(otherwise(interruption=Hang(after_chunks=1))), close_grace_s=30)
    async with contextlib.AsyncExitStack() as later:
        async with server:
            client = await later.enter_async_context(client_of(server))
            hearing = asyncio.create_task(hear(client))
            await server.wait_for(lambda: bool(server.requests and server.requests[0].sent_writes))
            began_at = loop.time()

        assert loop.time() - began_at < 5
        with pytest.raises((APIConnectionError, httpx2.HTTPError)):
            await hearing
    assert not server.requests[0].disconnected


async def test_a_server_that_closes_lets_a_reply_end():
    script = Script(otherwise("abc", chunk_chars=1, between_ms=30))
    async with contextlib.AsyncExitStack() as later:
        async with ModelServer(script) as server:
            client = await later.enter_async_context(client_of(server))
            hearing = asyncio.create_task(hear(client))
            await server.wait_for_requests(1)

        assert (await hearing).text == "abc"


async def test_a_closed_server_leaves_a_client_that_reads_nothing():
    script = Script(otherwise(Raw(chunks=[{"_repeat": 10_000, "item": {"_sse": "x" * 10_000}}])))
    content = json.dumps({"model": "m", "messages": [user("x")]}).encode()
    async with contextlib.AsyncExitStack() as later:
        async with ModelServer(script, close_grace_s=0.05) as server:
            _, writer = await later.enter_async_context(_socket_to(server))
            writer.write(_posted(content))
            await server.wait_for_requests(1)

        assert server.open_connections == 0


async def test_waiting_in_vain_tells_what_there_was():
    async with ModelServer(Script()) as server:
        with pytest.raises(TimeoutError, match="had 0 requests"):
            await server.wait_for_requests(1, timeout_s=0.01)


# --- HTTP --------------------------------------------------------------------------------------


async def test_the_models_are_listed():
    async with ModelServer(Script(), models=["a", "b"]) as server, client_of(server) as client:
        assert [model.id async for model in client.models.list()] == ["a", "b"]
        assert (await client.models.retrieve("b")).id == "b"
        with pytest.raises(NotFoundError):
            await client.models.retrieve("c")


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/v1/completions", b"{}", 404),
        ("GET", "/v1/chat/completions", b"", 405),
        ("POST", "/v1/models", b"{}", 405),
        ("POST", "/v1/chat/completions", b'{"model": ', 400),
        ("POST", "/v1/chat/completions", b"\xff\xfe\x00", 400),
        ("POST", "/v1/chat/completions", b"[" * 100_000, 400),
        ("POST", "/v1/chat/completions", b"[]", 400),
        ("POST", "/v1/chat/completions", b'{"messages": []}', 400),
        ("POST", "/v1/chat/completions", b'{"messages": [1]}', 400),
        ("POST", "/v1/chat/completions", b'{"messages": [{"role": "user", "content": [1]}]}', 400),
        (
            "POST",
            "/v1/chat/completions",
            b'{"messages": [{"role": "a", "content": {"a": 1}}]}',
            400,
        ),
        ("POST", "/v1/chat/completions", b'{"messages": [{"role": "a", "tool_calls": [1]}]}', 400),
        ("POST", "/v1/chat/completions", b'{"messages": [{"role": "user"}], "tools": 1}', 400),
    ],
)
async def test_a_request_that_is_none_is_refused_in_openais_shape(
    method: str, path: str, content: bytes, status: int
):
    async with ModelServer(Script(otherwise("x"))) as server, httpx2.AsyncClient() as client:
        url = server.base_url.removesuffix("/v1") + path
        for _ in range(2):  # the connection stays usable
            response = await client.request(method, url, content=content)

        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert server.open_connections == 1
        assert server.requests == []


async def test_what_is_no_http_is_refused():
    async with ModelServer(Script()) as server, _socket_to(server) as (reader, writer):
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")

        assert (await reader.read()).startswith(b"HTTP/1.1 400")


async def test_a_key_that_is_required_is_checked_and_not_recorded():
    async with ModelServer(Script(otherwise("x")), api_key="sk-right") as server:
        async with client_of(server, api_key="sk-right") as client:
            await hear(client)
        async with client_of(server, api_key="sk-wrong") as client:
            with pytest.raises(AuthenticationError) as refused:
                await hear(client)

        assert refused.value.code == "invalid_api_key"
        assert len(server.requests) == 1
        assert "sk-right" not in repr(server.requests[0])
        assert server.requests[0].headers["content-type"] == "application/json"


BROKEN_HISTORIES = [
    [user("x"), called("f")],
    [user("x"), called("f"), user("y"), TOOL_ANSWER],
    [user("x"), TOOL_ANSWER],
    [user("x"), called("f"), TOOL_ANSWER, TOOL_ANSWER],
    [user("x"), called("f", "c2"), TOOL_ANSWER],
]


@pytest.mark.parametrize("messages", BROKEN_HISTORIES)
async def test_a_history_that_openai_refuses_is_refused(messages: list[Any]):
    async with ModelServer(Script(otherwise("x"))) as server, client_of(server) as client:
        with pytest.raises(BadRequestError):
            await client.chat.completions.create(model="m", messages=messages)

        assert isinstance(server.errors[0].error, BadHistory)


@pytest.mark.parametrize("messages", BROKEN_HISTORIES)
async def test_a_lenient_server_takes_any_history(messages: list[Any]):
    script = Script(otherwise("x"))
    async with ModelServer(script, strict=False) as server, client_of(server) as client:
        await client.chat.completions.create(model="m", messages=messages)

        assert server.errors == []


async def test_a_connection_is_kept_for_the_next_request():
    async with ModelServer(Script(otherwise("x"))) as server, client_of(server) as client:
        for number in range(5):
            assert (await hear(client, f"{number}")).text == "x"

        assert server.open_connections == 1


async def test_requests_sent_ahead_are_answered_in_order():
    async def echo(request: Request) -> Reply:
        return Reply(request.last_user, first_byte_ms=20)

    async with ModelServer(echo) as server, _socket_to(server) as (reader, writer):
        for text in ("first", "second", "third"):
            writer.write(_posted(json.dumps({"model": "m", "messages": [user(text)]}).encode()))
        answers = []
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(re.search(rb"content-length: (\d+)", head, re.I)[1])
            answers.append(json.loads(await reader.readexactly(size)))

    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts == ["first", "second", "third"]


async def test_a_thousand_streams_at_once():
    script = Script(otherwise("abc", chunk_chars=1, between_ms=200))
    content = json.dumps({"model": "m", "messages": [user("x")], "stream": True}).encode()

    async def one(server: ModelServer) -> bytes:
        async with asyncio.timeout(60), _socket_to(server) as (reader, writer):
            return b"".join([piece async for piece in _pieces_from(reader, writer, content)])

    async with ModelServer(script) as server, asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(one(server)) for _ in range(1000)]

    assert all(stream.result().endswith(b"data: [DONE]\n\n") for stream in streams)
    assert server.peak_streams == 1000
    assert server.open_streams == 0


# --- threads and processes ---------------------------------------------------------------------


def test_a_server_in_a_thread_serves_a_client_that_blocks():
    with ModelServer(Script(otherwise("x"))).in_thread() as server:
        with OpenAI(base_url=server.base_url, api_key="any") as client:
            reply = client.chat.completions.create(model="m", messages=[user("x")])
        server.block_until(lambda: server.open_connections == 0)

    assert reply.choices[0].message.content == "x"
    with pytest.raises(RuntimeError, match="does not run"):
        _ = server.base_url


async def test_a_server_in_a_thread_can_be_waited_for_in_another_loop():
    with ModelServer(Script(otherwise(interruption=Hang()))).in_thread() as server:
        async with client_of(server) as client:
            hearing = asyncio.create_task(hear(client))
            await server.wait_for_requests(1)
            hearing.cancel()
            await server.wait_until_idle()

            assert server.requests[0].disconnected


def test_a_thread_that_cannot_listen_raises_in_the_caller():
    with ModelServer(Script()).in_thread() as server:
        port = int(server.base_url.removesuffix("/v1").rpartition(":")[2])
        with pytest.raises(OSError), ModelServer(Script(), port=port).in_thread():
            pass


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(Script(otherwise("x"))) as running:
        yield running


async def test_a_server_may_be_a_fixture(server: ModelServer):
    async with client_of(server) as client:
        assert (await hear(client)).text == "x"


def test_a_server_can_be_started_again_and_keeps_its_record():
    server = ModelServer(Script(otherwise("x")))
    for _ in range(2):
        with server.in_thread(), OpenAI(base_url=server.base_url, api_key="any") as client:
            client.chat.completions.create(model="m", messages=[user("x")])

    assert [each.request.number for each in server.requests] == [1, 2]


@pytest.fixture
def script_file(tmp_path: Path) -> Path:
    path = tmp_path / "scripts.py"
    path.write_text(
        "from fsm_agent.testing.script import Script, when\n"
        'demo = Script(when(user="hi").then("hello", label="FINISH"))\n'
        "number = 1\n"
    )
    return path


def test_the_server_runs_as_a_process(script_file: Path):
    command = [sys.executable, "-W", "error", "-m", "fsm_agent.testing.model_server"]
    with subprocess.Popen(
        [*command, f"{script_file}:demo", "--api-key-env", "MODEL_KEY"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"MODEL_KEY": "sk-1"},
    ) as process:
        base_url = process.stdout.readline().strip()
        with OpenAI(base_url=base_url, api_key="sk-1", max_retries=0) as client:
            reply = client.chat.completions.create(model="m", messages=[user("hi")])
            with pytest.raises(BadRequestError):
                client.chat.completions.create(model="m", messages=[user("other")])
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{base_url}/models")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)

    assert process.returncode == 0
    assert reply.choices[0].message.content == "``FINISH``\nhello"
    assert "no rule of this script answers" in errors


@pytest.mark.parametrize("name", ["number", "missing"])
def test_a_name_that_is_no_script_is_refused(script_file: Path, name: str):
    with pytest.raises(ValueError, match=f"'{name}' in .* is"):
        load_script(f"{script_file}:{name}")


def test_the_import_is_light():
    heavy = {"openai", "redis", "pytest", "pydantic", "msgspec"}
    probe = f"import sys, fsm_agent.testing.model_server; print({heavy} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT)

    assert run.stdout == "set()\n", run.stderr


# --- the corpus --------------------------------------------------------------------------------


def load_cases(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            yield json.loads(line)


def script_of(case: dict[str, Any]) -> Script:
    """A script that answers as the server of this case did."""
    if case.get("attempts"):
        return Script(otherwise(Attempts([Raw.of(each) for each in case["attempts"]])))
    return Script(otherwise(Raw(chunks=case["chunks"])))


def _responses(case: dict[str, Any]) -> list[dict[str, Any]]:
    return case.get("attempts") or [{"status": 200, "chunks": case["chunks"]}]


def _wanted(response: dict[str, Any]) -> tuple[list[bytes], str]:
    """The writes that a response is made of, and how it ends."""
    if "chunks" not in response:
        body = response["body"]
        if body is None:
            return [], "end"
        return [(body if isinstance(body, str) else _compact(body)).encode()], "end"
    writes: list[bytes] = []
    for item in response["chunks"]:
        match item:
            case {"_hang": True}:
                return writes, "hang"
            case {"_drop": True}:
                return writes, "drop"
            case {"_delay_ms": _}:
                pass
            case {"_repeat": times, "item": repeated}:
                writes += [_written(repeated)] * times
            case _:
                writes.append(_written(item))
    return writes, "end"


def _written(item: dict[str, Any]) -> bytes:
    if "_done" in item:
        return b"data: [DONE]\n\n"
    if "_sse" in item or "_sse_b64" in item:
        return item_bytes(item) or b""
    return b"data: " + _compact(item).encode() + b"\n\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _posted(content: bytes) -> bytes:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@contextlib.asynccontextmanager
async def _socket_to(
    server: ModelServer,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = server.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _pieces_from(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes
) -> AsyncIterator[bytes]:
    """The chunks of one response's body, as they were framed. Raises h11.RemoteProtocolError."""
    writer.write(_posted(content))
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    http.send(h11.EndOfMessage())
    piece = b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(1 << 20))
        elif isinstance(event, h11.Data):
            piece += event.data
            if event.chunk_end:
                yield piece
                piece = b""
        elif isinstance(event, h11.EndOfMessage):
            if piece:
                yield piece
            return


ALL_CASES = [case for path in sorted(CASES.glob("*.jsonl")) for case in load_cases(path)]


def test_the_corpus_is_here():
    assert len(ALL_CASES) >= 263


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case["id"])
async def test_each_case_arrives_byte_by_byte(case: dict[str, Any]):
    content = json.dumps({"model": "m", "messages": [user("x")], "stream": True}).encode()
    async with ModelServer(script_of(case)) as server:
        for number, response in enumerate(_responses(case)):
            writes, ending = _wanted(response)
            async with _socket_to(server) as (reader, writer):
                pieces: list[bytes] = []
                how = "end"
                try:
                    async for piece in _pieces_from(reader, writer, content):
                        pieces.append(piece)
                        if ending == "hang" and len(pieces) == len(writes):
                            how = "hang" if server.open_streams else "end"
                            break
                except h11.RemoteProtocolError:
                    how = "drop"
            await server.wait_until_idle()

            assert pieces == [write for write in writes if write]
            assert how == ending
            assert server.requests[number].status == response.get("status", 200)
            assert server.requests[number].disconnected == (ending == "hang")
