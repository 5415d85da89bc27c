"""Whatever a server sends: a typed outcome, bounded memory, linear time, and nothing left open."""

from __future__ import annotations

import asyncio
import base64
import gc
import random
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm_agent.errors import ProviderError
from fsm_agent.labels.protocol import DEFAULT
from fsm_agent.llm import connections
from fsm_agent.llm.client import OpenAIModel
from fsm_agent.llm.limits import Limits
from fsm_agent.llm.model import Reply as ModelReply
from fsm_agent.llm.model import StepRequest
from fsm_agent.run.content import UserMessage
from fsm_agent.testing.model_server import ModelServer
from fsm_agent.testing.script import Raw, Reply, Request
from tests.unit.test_llm_kit import DONE, chunk, part_of_call, read

FRAGMENTS = (
    b"data: ", b"data:", b"\n", b"\n\n", b"\r\n", b"\r", b": ping\n\n", b"event: error\n",
    b"[DONE]",
    b'{"choices":[{"index":0,"delta":{"content":"', b'"}}]}', b"``FINISH``\\n", b"``THINK``",
    b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"look","arguments":"',
    b'{"error":', b'"finish_reason":"stop"', b"null", b"<think>", b"</think>", b"<|im_end|>",
    b"\xef\xbb\xbf", b"\xff", b"\xf0\x9f", b"\\ud83d", b"{", b"}", b"[", b"]", b'"', b"\x00",
)  # fmt: skip
streams = st.lists(
    st.sampled_from(FRAGMENTS) | st.binary(max_size=12) | st.just(chunk(content="``FINISH``\nok")),
    max_size=40,
)


@settings(max_examples=1500, deadline=None)
@given(pieces=streams, is_live=st.booleans(), is_native=st.booleans())
def test_any_bytes_end_in_a_reply_or_a_typed_failure_and_nothing_stays_shown_of_a_bad_one(
    pieces: list[bytes], is_live: bool, is_native: bool
) -> None:
    protocol = None if is_native else DEFAULT
    found = read(pieces, protocol=protocol, is_live=is_live)

    whole = read([b"".join(pieces)], protocol=protocol, is_live=is_live)
    assert found.outcome == whole.outcome
    if found.error is not None or (found.reply is not None and found.reply.violation):
        assert found.shown("body") == ""


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pieces=streams, ends_in=st.sampled_from(["_drop", "_hang", ""]))
def test_any_bytes_over_http_end_in_time_and_leave_no_connection(
    pieces: list[bytes], ends_in: str
) -> None:
    items: list[dict[str, Any]] = [{"_sse_b64": _base64(piece)} for piece in pieces]
    items += [{ends_in: True}] if ends_in else []

    async def run() -> None:
        limits = Limits(first_s=0.3, idle_s=0.2, idle_answer_s=0.2, trailer_s=0.1)
        async with ModelServer(_always(Raw(chunks=items))) as server:
            model = OpenAIModel("m", server.base_url, limits=limits)
            try:
                async with asyncio.timeout(60):
                    assert isinstance(await model.step(_step(), lambda piece: None), ModelReply)
            except ProviderError as error:
                assert error.kind
            await model.aclose()
            await server.wait_for(lambda: server.open_connections == 0)

    asyncio.run(run())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _always(answer: Any) -> Callable[[Request], Any]:
    async def give(_: Request) -> Any:
        return answer

    return give


def _step(**fields: Any) -> StepRequest:
    given: dict[str, Any] = {"instructions": "", "messages": (UserMessage("go"),)}
    return StepRequest(**(given | {"protocol": DEFAULT} | fields))


# --- size


def _seconds(reads: list[bytes], **options: Any) -> float:
    best = 1e9
    for _ in range(2 if sum(map(len, reads)) < 20_000_000 else 1):
        gc.collect()
        started = time.process_time()
        found = read(reads, max_chars=1 << 30, **options)
        best = min(best, time.process_time() - started)
        assert found.reply is not None, found.error
    return best


KINDS: dict[str, Callable[[int], list[bytes]]] = {
    "answer": lambda n: [chunk(content="``FINISH``\n"), *[chunk(content="word ")] * n],
    "lines": lambda n: [chunk(content="``FINISH``\n"), *[chunk(content="- a\n")] * n],
    "ticks": lambda n: [chunk(content="``FINISH``\n"), *[chunk(content="`x\n")] * n],
    "tags": lambda n: [chunk(content="``FINISH``\n"), *[chunk(content="a <")] * n],
    "tokens": lambda n: [chunk(content="``FINISH``\nx"), *[chunk(content="<|end|>")] * n],
    "draft": lambda n: [chunk(content="no label here "), *[chunk(content="word <")] * n],
    "thinking": lambda n: [chunk(content="<think>"), *[chunk(content="hm <")] * n],
    "inner block": lambda n: [
        chunk(content="``FINISH``\n<think>"), *[chunk(content="hm <")] * n
    ],
    "reasoning": lambda n: [chunk(reasoning="hm ")] * n,
    "details": lambda n: [
        chunk(reasoning_details=[{"type": "reasoning.text", "text": "hm ", "index": 0}])
    ] * n,
    "arguments": lambda n: [
        chunk(tool_calls=[part_of_call("look", '{"a":"', index=0, id="x")]),
        *[chunk(tool_calls=[part_of_call(None, "word ", index=0)])] * n,
    ],
    "named arguments": lambda n: [
        chunk(tool_calls=[part_of_call("look", '{"a":"', index=0, id="x")]),
        *[chunk(tool_calls=[part_of_call("look", "word ", index=0, id="x")])] * n,
    ],
    "blank": lambda n: [b"\n"] * n,
    "comments": lambda n: [b": ping\n\n"] * n,
    "one line in bytes": lambda n: [b'data: {"x":"', *[b"y" * 50] * n, b'"}\n\n'],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_thousand_chunks_take_linear_time(kind: str) -> None:
    end = [chunk("stop"), DONE]

    most = 100_000 if kind in ("answer", "thinking", "arguments") else 24_000
    small = _seconds([*KINDS[kind](most // 8), *end])
    large = _seconds([*KINDS[kind](most), *end])

    assert large < small * 8 * 2.5


@pytest.mark.parametrize("kind", ["answer", "thinking", "draft"])
def test_fifty_megabytes_take_linear_time(kind: str) -> None:
    lead = {"answer": "``FINISH``\n", "thinking": "<think>", "draft": "x" * 70}[kind]
    text = "some words and a <tag> or `code`\n" * 30

    def body(megabytes: int) -> list[bytes]:
        count = megabytes * 1_000_000 // len(text)
        return [chunk(content=lead), *[chunk(content=text)] * count, chunk("stop"), DONE]

    assert _seconds(body(50)) < _seconds(body(10)) * 5 * 2.5


async def test_fifty_megabytes_over_http_stop_at_the_limit_with_bounded_memory() -> None:
    item = {"choices": [{"index": 0, "delta": {"content": "``FINISH``\n" + "x" * 10_000}}]}
    async with ModelServer(_always(Raw(chunks=[{"_repeat": 5_000, "item": item}]))) as server:
        model = OpenAIModel("m", server.base_url, limits=Limits(max_reply_chars=1_000_000))
        with pytest.raises(ProviderError, match="1000000 characters"):
            await model.step(_step(), lambda piece: None)
        await server.wait_for(lambda: server.open_connections == 0)
        await model.aclose()


@pytest.mark.parametrize(
    "endless",
    [b"data: " + b"x" * 65_536, b"x" * 65_536, b"data: x\n" * 8_192, b"\n" * 65_536, b": x\n"],
    ids=["one line", "no stream", "one event", "blank lines", "comments"],
)
def test_memory_is_bounded_whatever_comes(endless: bytes) -> None:
    tracemalloc.start()
    try:
        found = read((endless for _ in range(300)), max_chars=1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found.error is not None
    assert peak < 64 << 20


def test_many_calls_and_details_are_bounded() -> None:
    calls = [
        chunk(tool_calls=[part_of_call("look", "{}", index=n, id=f"c{n}")]) for n in range(2000)
    ]

    found = read([chunk(content="``TOOL``\n"), *calls, chunk("tool_calls"), DONE])

    assert found.reply is not None
    assert len(found.reply.calls) <= 128


# --- connections


async def test_six_hundred_streams_start_at_once_on_one_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starting, most = 0, 0
    enter, leave = connections.Start.__aenter__, connections.Start.give_back

    async def counted_enter(self: connections.Start) -> connections.Start:
        nonlocal starting, most
        await enter(self)
        starting += 1
        most = max(most, starting)
        return self

    def counted_leave(self: connections.Start) -> None:
        nonlocal starting
        starting -= self._is_held
        leave(self)

    monkeypatch.setattr(connections.Start, "__aenter__", counted_enter)
    monkeypatch.setattr(connections.Start, "give_back", counted_leave)
    gate = asyncio.Event()

    async def answer(request: Request) -> Reply:
        await gate.wait()  # the headers come late, as from a server that reads a long prompt first
        return Reply(request.last_user, label="FINISH")

    async with ModelServer(answer) as server:
        model = OpenAIModel("m", server.base_url, limits=Limits(connect_s=5.0))
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(
                    model.step(_step(messages=(UserMessage(f"u{n}"),)), lambda piece: None)
                )
                for n in range(600)
            ]
            await server.wait_for_requests(600, timeout_s=60)
            gate.set()
        await model.aclose()

    assert [task.result().text for task in running] == [f"u{n}" for n in range(600)]
    assert most <= connections.MAX_STARTING
    assert server.peak_streams == 600


@pytest.mark.parametrize("at", range(7))
async def test_a_step_cancelled_at_any_chunk_leaves_no_open_connection(at: int) -> None:
    words = ["<think>", "a</think>", "``FIN", "ISH``", "\nIt", " is", " so"]
    items = [{"choices": [{"delta": {"content": word}}]} for word in words[:at]]
    async with ModelServer(_always(Raw(chunks=[*items, {"_hang": True}]))) as server:
        model = OpenAIModel("m", server.base_url, is_live=True)
        pieces: list[Any] = []
        task = asyncio.create_task(model.step(_step(), pieces.append))
        await server.wait_for(
            lambda: bool(server.requests) and server.requests[0].sent_writes >= at
        )
        await asyncio.sleep(0.01)

        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await server.wait_for(lambda: server.open_connections == 0)
        await model.aclose()
    shown = [piece.text for piece in pieces if piece.channel == "body"]
    taken_back = [piece.text for piece in pieces if piece.channel == "retracted"]
    assert "".join(shown) == "".join(taken_back)


async def test_cancelled_starts_give_their_places_back() -> None:
    gate = asyncio.Event()

    async def answer(_: Request) -> Reply:
        await gate.wait()
        return Reply("ok", label="FINISH")

    async with ModelServer(answer) as server:
        model = OpenAIModel("m", server.base_url)
        tasks = [asyncio.create_task(model.step(_step(), lambda piece: None)) for _ in range(120)]
        await asyncio.sleep(random.random() / 20)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        gate.set()

        reply = await model.step(_step(), lambda piece: None)
        await model.aclose()

    assert reply.text == "ok"


def test_a_model_serves_one_event_loop_after_the_other_and_leaks_no_sockets() -> None:
    with ModelServer(_always(Reply("ok", label="FINISH"))).in_thread() as server:
        model = OpenAIModel("m", server.base_url)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of the loop that died unclosed
            for _ in range(3):
                assert asyncio.run(model.step(_step(), lambda piece: None)).text == "ok"
            gc.collect()
        server.block_until(lambda: server.open_connections <= 1)
        asyncio.run(model.aclose())


async def test_another_key_or_endpoint_closes_what_the_former_one_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ModelServer(_always(Reply("ok", label="FINISH"))) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        model = OpenAIModel("m")
        for key in ("one", "two", "three"):
            monkeypatch.setenv("OPENAI_API_KEY", key)
            await model.step(_step(), lambda piece: None)

        await server.wait_for(lambda: server.open_connections == 1)
        await model.aclose()
        await server.wait_for(lambda: server.open_connections == 0)
