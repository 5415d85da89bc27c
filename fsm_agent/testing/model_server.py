"""A model server for tests: OpenAI's HTTP API on loopback, answering from a script.

::

    async with ModelServer(script) as server:
        client = AsyncOpenAI(base_url=server.base_url, api_key="any")

It is a real server, so that the client under test meets real sockets: bytes that come in
pieces, connections that break, silence. What came is on record in `server.requests`.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import importlib
import json
import logging
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import h11

from fsm_agent.testing.answering import Answering, BadHistory
from fsm_agent.testing.script import (
    AnswerFunction,
    JsonObject,
    Raw,
    Request,
    Script,
    Unmatched,
    body_fault,
    dumps,
    error_body,
    item_bytes,
)

log = logging.getLogger(__name__)

__all__ = ["BadHistory", "Exchange", "ModelServer", "load_script", "main"]

_CHAT = "/v1/chat/completions"
_SECRET_HEADERS = {"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"}
_READ_BYTES = 65_536


@dataclass(slots=True)
class Exchange:
    """One chat request and what became of it. The server goes on writing until `is_over`."""

    request: Request
    status: int | None = None
    """None until the response has begun."""
    sent_writes: int = 0
    """Pieces of the body that went out."""
    is_over: bool = False
    is_complete: bool = False
    """Whether the response ended as HTTP wants it, which a scripted drop does not."""
    disconnected: bool = False
    """Whether the client went away before the response was over."""
    error: Exception | None = None
    """Why there was no scripted answer: Unmatched, BadHistory, or a mistake in the script."""

    on_change: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    @property
    def body(self) -> JsonObject:
        return self.request.body

    @property
    def headers(self) -> Mapping[str, str]:
        return self.request.headers

    @property
    def received_at(self) -> float:
        """Unix time in seconds."""
        return self.request.received_at

    def began(self, status: int) -> None:
        self.status = status
        self.on_change()

    def wrote(self) -> None:
        self.sent_writes += 1
        self.on_change()

    def completed(self) -> None:
        self.is_complete = True
        self.on_change()

    def ended(self) -> None:
        self.is_over = True
        self.on_change()


class ModelServer:
    """A scripted model on 127.0.0.1, in this event loop, a thread or a process of its own.

    `async with server` runs it in the caller's loop, `with server.in_thread()` in a thread, and
    `python -m fsm_agent.testing.model_server` in a process. One object serves once at a time and
    keeps its record from start to start. On the way out, idle connections and hanging responses
    are closed at once, and the others have `close_grace_s` seconds to end.

    `script`     a Script, or `async def answer(request) -> Reply` (or any other Answer)
    `api_key`    the key that clients must send, as a bearer token; without it, any or none goes
    `models`     the names that GET /v1/models lists; chat requests may name any other, too
    `strict`     refuse a history that OpenAI refuses: calls without results, results without calls
    `port`       0 takes a free one
    """

    def __init__(
        self,
        script: Script | AnswerFunction,
        *,
        api_key: str | None = None,
        models: Sequence[str] = ("test-model",),
        strict: bool = True,
        port: int = 0,
        close_grace_s: float = 1.0,
    ) -> None:
        self.models = tuple(models)
        self.requests: list[Exchange] = []
        self.peak_streams = 0
        """The most responses that were open at once."""
        self._api_key = api_key
        self._answering = Answering(script, strict=strict)
        self._port = port
        self._close_grace_s = close_grace_s
        self._changes = _Changes()
        self._address: tuple[str, int] | None = None
        self._open: set[int] = set()
        # Tasks without a TaskGroup: fixtures enter and leave a server in two different tasks,
        # which a TaskGroup cannot. `_close` waits for each of them instead.
        self._connections: dict[asyncio.Task[None], _Link] = {}
        self._listener: asyncio.Server | None = None
        self._closing = asyncio.Event()

    @property
    def script(self) -> Script | AnswerFunction:
        return self._answering.script

    @property
    def base_url(self) -> str:
        """What the client calls base_url. Raises RuntimeError while the server does not run."""
        if self._address is None:
            raise RuntimeError("the model server does not run: use `async with` or in_thread().")
        host, port = self._address
        return f"http://{host}:{port}/v1"

    @property
    def open_streams(self) -> int:
        """How many responses are being sent, streams or not."""
        return len(self._open)

    @property
    def open_connections(self) -> int:
        """How many connections stand, idle ones included."""
        return len(self._connections)

    @property
    def unmatched(self) -> list[Exchange]:
        """The requests that no rule answered. Their clients got status 400."""
        return [each for each in self.requests if isinstance(each.error, Unmatched)]

    @property
    def errors(self) -> list[Exchange]:
        """The requests that got no scripted answer: the unmatched, and all else in `error`."""
        return [each for each in self.requests if each.error is not None]

    async def wait_for_requests(self, count: int, *, timeout_s: float = 10.0) -> list[Exchange]:
        """The record, once it has that many requests. Raises TimeoutError."""
        await self.wait_for(lambda: len(self.requests) >= count, timeout_s=timeout_s)
        return list(self.requests)

    async def wait_until_idle(self, *, timeout_s: float = 10.0) -> None:
        """Return once no response is open. Raises TimeoutError."""
        await self.wait_for(lambda: not self.open_streams, timeout_s=timeout_s)

    async def wait_for(self, holds: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
        """Return once `holds()`, which is asked after each change of the record.

        Goes in any loop, also while the server runs in a thread. Raises TimeoutError.
        """
        try:
            await self._changes.until(holds, timeout_s)
        except TimeoutError as error:
            raise self._waited_in_vain(timeout_s) from error

    def block_until(self, holds: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
        """`wait_for` for code without a loop, while the server runs in a thread."""
        if not self._changes.block_until(holds, timeout_s):
            raise self._waited_in_vain(timeout_s)

    def _waited_in_vain(self, timeout_s: float) -> TimeoutError:
        return TimeoutError(
            f"waited {timeout_s:g} s in vain. The model server had {len(self.requests)} requests: "
            f"{len(self.errors)} ended in an error, {self.open_streams} are still open."
        )

    # --- running

    async def __aenter__(self) -> Self:
        if self._address is not None:
            raise RuntimeError("this model server runs already.")
        self._closing = asyncio.Event()
        self._listener = await asyncio.start_server(
            self._connected, "127.0.0.1", self._port, backlog=4096
        )
        self._address = self._listener.sockets[0].getsockname()[:2]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        self._address = None
        self._closing.set()
        await self._close_connections()
        await self._listener.wait_closed()

    async def _close_connections(self) -> None:
        for task, link in self._connections.items():
            if not link.is_busy:
                task.cancel()
        tasks = list(self._connections)
        if tasks:
            await asyncio.wait(tasks, timeout=self._close_grace_s)
        for task, link in self._connections.items():
            link.cut()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def in_thread(self) -> Iterator[Self]:
        """Run in a thread with its own loop, for clients that block."""
        started = threading.Event()
        failures: list[BaseException] = []
        stops: list[Callable[[], object]] = []

        async def serve() -> None:
            loop, stop = asyncio.get_running_loop(), asyncio.Event()
            async with self:
                stops.append(lambda: loop.call_soon_threadsafe(stop.set))
                started.set()
                await stop.wait()

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                failures.append(error)
            finally:
                started.set()

        thread = threading.Thread(target=run, name="model-server", daemon=True)
        thread.start()
        started.wait()
        try:
            if failures:
                raise failures[0]
            yield self
        finally:
            for stop in stops:
                stop()
            thread.join()

    # --- connections

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(reader, writer)
        task = asyncio.get_running_loop().create_task(self._serve(link))
        self._connections[task] = link
        task.add_done_callback(self._disconnected)

    def _disconnected(self, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        self._changes.announce()
        if not task.cancelled() and (error := task.exception()):
            log.error("a connection of the model server failed", exc_info=error)

    async def _serve(self, link: _Link) -> None:
        async with link.open():
            while not self._closing.is_set():
                try:
                    incoming = await link.receive()
                except h11.RemoteProtocolError as error:
                    await link.refuse(error)
                    return
                if incoming is None:
                    return
                link.is_busy = True
                await self._answer(link, *incoming)
                link.is_busy = False
                if not link.may_go_on():
                    return

    async def _answer(self, link: _Link, head: h11.Request, content: bytes) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        path = head.target.decode("latin-1").partition("?")[0]
        try:
            self._check_key(headers)
            if path != _CHAT:
                await _play(self._listed(head.method, path), link, _unrecorded(), self._closing)
                return
            body = _parsed(head.method, content)
        except _Refused as refused:
            await _play(refused.response, link, _unrecorded(), self._closing)
            return
        exchange = self._recorded(headers, path, body)
        try:
            await self._answer_chat(exchange, link)
        finally:
            self._open.discard(exchange.request.number)
            exchange.ended()

    def _check_key(self, headers: Mapping[str, str]) -> None:
        if self._api_key is None:
            return
        given = headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._api_key}".encode()):
            raise _Refused(401, "Incorrect API key provided.", code="invalid_api_key")

    def _listed(self, method: bytes, path: str) -> Raw:
        """The answer to all but chat. Raises _Refused."""
        models = {name: _model_json(name) for name in self.models}
        if path != "/v1/models" and path.removeprefix("/v1/models/") not in models:
            raise _Refused(404, f"Invalid URL ({method.decode()} {path})", code="not_found")
        if method != b"GET":
            raise _Refused(405, f"Not allowed to {method.decode()} on {path}. Use GET.")
        if path == "/v1/models":
            return Raw(body={"object": "list", "data": list(models.values())})
        return Raw(body=models[path.removeprefix("/v1/models/")])

    def _recorded(self, headers: Mapping[str, str], path: str, body: JsonObject) -> Exchange:
        request = Request(
            body=body,
            headers={key: text for key, text in headers.items() if key not in _SECRET_HEADERS},
            path=path,
            number=len(self.requests) + 1,
            received_at=time.time(),
        )
        exchange = Exchange(request, on_change=self._changes.announce)
        self.requests.append(exchange)
        self._open.add(request.number)
        self.peak_streams = max(self.peak_streams, self.open_streams)
        self._changes.announce()
        return exchange

    async def _answer_chat(self, exchange: Exchange, link: _Link) -> None:
        async def respond() -> None:
            response = await self._response(exchange)
            try:
                await _play(response, link, exchange, self._closing)
            except (ValueError, TypeError, KeyError, h11.LocalProtocolError) as error:
                exchange.error = error
                log.exception("the answer to request %d cannot be sent", exchange.request.number)
                link.cut()

        await link.while_connected(respond())
        exchange.disconnected = link.is_lost and not exchange.is_complete

    # --- the script

    async def _response(self, exchange: Exchange) -> Raw:
        """The script's answer, or an error that says why there is none."""
        response, exchange.error = await self._answering.answer(exchange.request)
        return response


def _model_json(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "fsm-agent"}


def _parsed(method: bytes, content: bytes) -> JsonObject:
    """The body of a chat request. Raises _Refused."""
    if method != b"POST":
        raise _Refused(405, f"Not allowed to {method.decode()} on {_CHAT}. Use POST.")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(body, dict):
        raise _Refused(400, "The body of your request must be a JSON object.")
    if fault := body_fault(body):
        raise _Refused(400, fault)
    return body


class _Refused(Exception):
    """A request that does not come as far as the script."""

    def __init__(self, status: int, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        body = error_body(message, type="invalid_request_error", code=code)
        self.response = Raw(status=status, body=body)


# --- one response --------------------------------------------------------------------------------


class _Cut(Exception):
    """The script wants the connection broken here."""


async def _play(response: Raw, link: _Link, exchange: Exchange, closing: asyncio.Event) -> None:
    """Send the response, item by item. A drop or a hang ends with a closed connection."""
    try:
        async for _ in _wire(response.before_head, closing):
            raise ValueError("before_head may hold delays, a hang or a drop, and no bytes.")
        await link.send(_head(response))
        exchange.began(response.status)
        async for piece in _pieces(response, closing):
            await link.send(h11.Data(data=piece))
            exchange.wrote()
        await link.send(h11.EndOfMessage())
    except _Cut:
        link.cut()
        return
    exchange.completed()


def _unrecorded() -> Exchange:
    """For a response that is not about chat."""
    return Exchange(Request(body={}))


def _head(response: Raw) -> h11.Response:
    headers = {"content-type": _content_type(response)}
    headers |= {name.lower(): value for name, value in response.headers.items()}
    if response.chunks is None:
        headers.setdefault("content-length", str(len(_body_bytes(response.body))))
    return h11.Response(status_code=response.status, headers=list(headers.items()))


def _content_type(response: Raw) -> str:
    if response.chunks is not None:
        return "text/event-stream; charset=utf-8"
    return "text/plain; charset=utf-8" if isinstance(response.body, str) else "application/json"


def _body_bytes(body: bytes | str | JsonObject | list[Any] | None) -> bytes:
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else dumps(body)).encode()


async def _pieces(response: Raw, closing: asyncio.Event) -> AsyncIterator[bytes]:
    if response.chunks is None:
        if body := _body_bytes(response.body):
            yield body
        return
    async for piece in _wire(response.chunks, closing):
        yield piece


async def _wire(items: Sequence[JsonObject], closing: asyncio.Event) -> AsyncIterator[bytes]:
    """The bytes of the items, at their time. Raises _Cut where the connection is to break."""
    for item in items:
        piece = item_bytes(item)
        if piece is not None:
            yield piece
        elif "_delay_ms" in item:
            await asyncio.sleep(item["_delay_ms"] / 1000)
        elif "_repeat" in item:
            async for each in _repeated(item["item"], item["_repeat"], closing):
                yield each
        elif "_hang" in item:
            await closing.wait()
            raise _Cut
        else:
            raise _Cut


async def _repeated(item: JsonObject, times: int, closing: asyncio.Event) -> AsyncIterator[bytes]:
    piece = item_bytes(item)
    for _ in range(times):
        if piece is not None:
            yield piece
            continue
        async for each in _wire([item], closing):
            yield each


# --- one connection ------------------------------------------------------------------------------


class _Link:
    """One client's connection: HTTP/1.1 by h11, over asyncio's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        self._was_cut = False
        self.is_busy = False
        self.is_lost = False
        """Whether the client has gone."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Close the connection in the end, and take a client that goes away for no error."""
        transport = self._writer.transport
        # So that `drain` waits until the socket has it all: nothing is lost in our own buffer
        # when the connection is cut, and each write is a segment of its own.
        transport.set_write_buffer_limits(high=0)
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            yield
        except ConnectionError:
            self.is_lost = True
        finally:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()

    async def receive(self) -> tuple[h11.Request, bytes] | None:
        """The next request with its body, None once the client has said all.

        Raises h11.RemoteProtocolError for what is no HTTP.
        """
        head: h11.Request | None = None
        content = bytearray()
        while True:
            match self._http.next_event():
                case h11.NEED_DATA:
                    await self._read()
                case h11.Request() as head:
                    pass
                case h11.Data() as data:
                    content += data.data
                case h11.EndOfMessage() if head is not None:
                    return head, bytes(content)
                case _:
                    return None

    async def _read(self) -> None:
        if self._http.they_are_waiting_for_100_continue:
            await self.send(h11.InformationalResponse(status_code=100, headers=[]))
        self._http.receive_data(await self._reader.read(_READ_BYTES))

    async def send(
        self, event: h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage
    ) -> None:
        """Write it, and return when the kernel has it. Raises ConnectionError."""
        self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()
        # `drain` does not yield while the socket takes all, and a long stream would starve
        # the other streams, and our watch for the client that goes away.
        await asyncio.sleep(0)

    async def while_connected(self, responding: Awaitable[None]) -> None:
        """Await the response, or cancel it when the client goes away: then `is_lost` is true."""
        async with asyncio.TaskGroup() as tasks:
            response = tasks.create_task(self._until_lost(responding))
            watch = tasks.create_task(self._watch(response))
            response.add_done_callback(lambda _: watch.cancel())

    async def _until_lost(self, responding: Awaitable[None]) -> None:
        try:
            await responding
        except ConnectionError:
            self.is_lost = True

    async def _watch(self, response: asyncio.Task[None]) -> None:
        """Cancel the response when the client closes. What it says meanwhile is kept for later."""
        with suppress(ConnectionError):
            while data := await self._reader.read(_READ_BYTES):
                self._http.receive_data(data)
        if not self._was_cut:
            self.is_lost = True
            response.cancel()

    def cut(self) -> None:
        """Break the connection. What was sent before arrives."""
        self._was_cut = True
        self._writer.transport.abort()

    def may_go_on(self) -> bool:
        """Whether the connection can take one more request; it is made ready for it."""
        if self.is_lost or self._writer.is_closing():
            return False
        if (self._http.our_state, self._http.their_state) != (h11.DONE, h11.DONE):
            return False
        self._http.start_next_cycle()
        return True

    async def refuse(self, error: h11.RemoteProtocolError) -> None:
        """Say that this was no HTTP, where that can still be said."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = error_body(str(error), type="invalid_request_error")
        status = error.error_status_hint or 400
        response = Raw(status=status, body=body, headers={"connection": "close"})
        await _play(response, self, _unrecorded(), asyncio.Event())


class _Changes:
    """Wakes those who wait for a change, in any loop and any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], object]] = []

    def announce(self) -> None:
        with self._lock:
            wakers = list(self._wakers)
        for wake in wakers:
            with suppress(RuntimeError):  # a waiter's loop that has just closed
                wake()

    @contextmanager
    def _heard(self, wake: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self._wakers.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        with self._heard(lambda: loop.call_soon_threadsafe(changed.set)):
            async with asyncio.timeout(timeout_s):
                while not holds():
                    await changed.wait()
                    changed.clear()

    def block_until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        changed = threading.Event()
        ends_at = time.monotonic() + timeout_s
        with self._heard(changed.set):
            while not holds():
                if not changed.wait(ends_at - time.monotonic()):
                    return holds()
                changed.clear()
        return True


# --- as a process --------------------------------------------------------------------------------


def load_script(place: str) -> Script | AnswerFunction:
    """The script at `path/to/file.py:name` or `package.module:name`. Raises ValueError."""
    source, _, name = place.rpartition(":")
    if not source:
        raise ValueError(f"{place!r} names no script. Write FILE.py:NAME or MODULE:NAME.")
    is_file = source.endswith(".py")
    found = runpy.run_path(source) if is_file else vars(importlib.import_module(source))
    script = found.get(name)
    if not isinstance(script, Script) and not callable(script):
        raise ValueError(f"{name!r} in {source} is {script!r}, and no Script or function.")
    return script


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGINT or SIGTERM. The first line of stdout is the base URL."""
    parser = argparse.ArgumentParser(
        prog="python -m fsm_agent.testing.model_server",
        description="Serve a scripted model on 127.0.0.1. Print its base URL.",
    )
    parser.add_argument("script", help="the script, as FILE.py:NAME or MODULE:NAME")
    parser.add_argument("--port", type=int, default=0, help="the port (default: a free one)")
    parser.add_argument("--api-key-env", metavar="NAME", help="require the key in this variable")
    options = parser.parse_args(arguments)
    api_key = os.environ.get(options.api_key_env, "") if options.api_key_env else None
    if api_key == "":
        parser.error(f"{options.api_key_env} is not set. Put the key there.")
    try:
        script = load_script(options.script)
    except (ValueError, OSError, ImportError) as error:
        parser.error(str(error))
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    try:
        asyncio.run(_serve_until_signal(ModelServer(script, port=options.port, api_key=api_key)))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        parser.exit(1, f"{parser.prog}: cannot serve on port {options.port}: {reason}.\n")


async def _serve_until_signal(server: ModelServer) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with server:
        print(server.base_url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    main()
