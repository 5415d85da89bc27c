"""Prints what reading a model's stream costs: `python -m benchmarks.streams [--quick]`.

CPU a chunk, end to end and for whole replies, beside two readers of the same bytes in the same
run: the SDK's own iterator, and the floor (raw httpx2 and msgspec: no label, no limits, no checks).
Then many streams open at once in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import httpx2
import msgspec
from openai import AsyncOpenAI

from fsm_agent.labels.protocol import DEFAULT
from fsm_agent.llm.client import OpenAIModel
from fsm_agent.llm.limits import Limits
from fsm_agent.llm.model import StepRequest
from fsm_agent.run.content import UserMessage

Reader = Callable[[str, str], Awaitable[object]]  # base URL, plan


def plan(chunks: int, at_once: int = 1, pause_ms: float = 0.3) -> str:
    """What the server below should send: it stands where the model's name does."""
    return f"{chunks},{at_once},{pause_ms}"


def step_of(model: str) -> StepRequest:
    return StepRequest(
        instructions="", messages=(UserMessage("go"),), protocol=DEFAULT, model=model
    )


class OurReader:
    """The model's client, live, as the engine uses it."""

    def __init__(self) -> None:
        limits = Limits(whole_s=3600, idle_s=300, idle_answer_s=300, max_reply_chars=1 << 30)
        self._model = OpenAIModel(is_live=True, limits=limits)

    async def __call__(self, url: str, what: str) -> object:
        os.environ["OPENAI_BASE_URL"] = url
        pieces: list[object] = []
        reply = await self._model.step(step_of(what), pieces.append)
        assert reply.label == "FINISH"
        assert reply.violation is None
        return reply

    async def aclose(self) -> None:
        await self._model.aclose()


class SdkReader:
    """The SDK's own iterator."""

    def __init__(self) -> None:
        self._client: AsyncOpenAI | None = None

    async def __call__(self, url: str, what: str) -> object:
        self._client = self._client or AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        stream = await self._client.chat.completions.create(
            model=what, messages=[{"role": "user", "content": "go"}], stream=True
        )
        texts = []
        async for chunk in stream:
            texts += [choice.delta.content or "" for choice in chunk.choices]
        return "".join(texts)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


class FloorReader:
    """httpx2 and msgspec, and nothing else."""

    def __init__(self) -> None:
        self._client = httpx2.AsyncClient(timeout=None)
        self._decoder = msgspec.json.Decoder(_Chunk)

    async def __call__(self, url: str, what: str) -> object:
        body = {"model": what, "messages": [], "stream": True}
        texts: list[str] = []
        rest = b""
        target = f"{url}/chat/completions"
        async with self._client.stream("POST", target, json=body) as response:
            async for data in response.aiter_bytes():
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    if event != b"data: [DONE]":
                        for choice in self._decoder.decode(event[6:]).choices:
                            texts.append(choice.delta.content or "")
        return "".join(texts)

    async def aclose(self) -> None:
        await self._client.aclose()


# --- the server, in a process of its own ---------------------------------------------------------

_EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1760000000,'
    b'"model":"m","system_fingerprint":"fp_1","choices":[{"index":0,"delta":{"content":"%s"},'
    b'"logprobs":null,"finish_reason":%s}]}\n\n'
)


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = msgspec.json.decode(await reader.readexactly(length))
            await _send(writer, body["model"])
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _send(writer: asyncio.StreamWriter, what: str) -> None:
    chunks, at_once, pause_ms = (float(part) for part in what.split(","))
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    writer.write(_frame(_EVENT % (b"``FINISH``\\n", b"null")))
    batch = _frame(_EVENT % (b" some words", b"null") * int(at_once))
    for _ in range(int(chunks / at_once)):
        writer.write(batch)
        await writer.drain()
        await asyncio.sleep(pause_ms / 1000)
    writer.write(_frame(_EVENT % (b"", b'"stop"') + b"data: [DONE]\n\n") + b"0\r\n\r\n")
    await writer.drain()


async def _serve() -> None:
    server = await asyncio.start_server(_serve_one, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# --- measuring -----------------------------------------------------------------------------------


async def cpu_us(reader: Reader, url: str, what: str, chunks: int) -> float:
    """CPU of this process for each chunk of one reply, in microseconds."""
    gc.collect()
    before = time.process_time()
    await reader(url, what)
    return (time.process_time() - before) / chunks * 1e6


async def bench_chunks(url: str, rounds: int, chunks: int) -> None:
    readers = {"ours": OurReader(), "sdk": SdkReader(), "floor": FloorReader()}
    print("\nCPU a chunk, µs (median of rounds, readers in turn)")
    print(f"{'':34}{'ours':>8}{'SDK':>8}{'floor':>8}{'SDK/ours':>10}{'ours/floor':>12}")
    for reader in readers.values():
        await reader(url, plan(10))
    cases = {
        "one chunk a write": plan(chunks),
        "16 chunks a write": plan(chunks, 16, 1.0),
        "as fast as it goes": plan(chunks, 1, 0.0),
    }
    for name, what in cases.items():
        found: dict[str, list[float]] = {key: [] for key in readers}
        for _ in range(rounds):
            for key, reader in readers.items():
                found[key].append(await cpu_us(reader, url, what, chunks))
        ours, sdk, floor = (statistics.median(found[key]) for key in ("ours", "sdk", "floor"))
        print(f"{name:34}{ours:8.1f}{sdk:8.1f}{floor:8.1f}{sdk / ours:10.1f}{ours / floor:12.2f}")
    print("\nThe same for long replies: CPU a chunk must not grow")
    for size in (chunks, 4 * chunks, 16 * chunks):
        us = await cpu_us(readers["ours"], url, plan(size, 16, 0.0), size)
        print(f"{size:>10} chunks{us:10.1f} µs")
    for reader in readers.values():
        await reader.aclose()


async def bench_many(url: str, streams: int, chunks: int) -> None:
    """`streams` replies at once, each of `chunks` chunks over about ten seconds."""
    what = plan(chunks, 1, 10_000 / chunks)
    print(f"\n{streams} streams open at once, {chunks} chunks each over 10 s")
    for name, reader in (("ours", OurReader()), ("sdk", SdkReader()), ("floor", FloorReader())):
        if isinstance(reader, FloorReader):
            limits = httpx2.Limits(max_connections=None)
            reader._client = httpx2.AsyncClient(timeout=None, limits=limits)
        await reader(url, plan(2))
        gc.collect()
        before, cpu, wall = _resident_bytes(), time.process_time(), time.perf_counter()
        running = [asyncio.create_task(reader(url, what)) for _ in range(streams)]  # type: ignore[arg-type]
        await asyncio.sleep(7)
        resident = _resident_bytes() - before
        results = await asyncio.gather(*running, return_exceptions=True)
        failed = sum(isinstance(result, BaseException) for result in results)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(
            f"{name:6} wall {wall:5.1f} s   CPU {cpu:5.1f} s"
            f"   {streams * chunks / wall:7.0f} chunks/s"
            f"   {resident / streams / 1024:6.1f} KiB a stream   {failed} failed"
        )
        await reader.aclose()
        await asyncio.sleep(0.5)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and streams")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(_serve())
        return
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.streams", "--serve"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        asyncio.run(bench_chunks(url, *((3, 800) if given.quick else (7, 2_000))))
        asyncio.run(bench_many(url, *((200, 10) if given.quick else (1_000, 20))))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
