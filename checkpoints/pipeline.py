"""One shared connection: the commands of a loop tick go out in one write, answers come in order.

It stands on hiredis and not on the whole client library, which costs 0.15 s to import and some
200 µs a command, and since it must know for each command whether its answer can still come.
Three rules keep callers apart: answers are matched by order alone; a caller that was cancelled
keeps its place; after any doubt (silence, a cut, nonsense) the connection is dropped, and its
answers with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import hiredis

from .shield import Answer
from .transport import Ambiguous, Arg, Reply, ReplyError, Unreachable


def pack(args: tuple[Arg, ...]) -> bytes:
    """A command as RESP."""
    packed: bytes = hiredis.pack_command(args)  # type: ignore[arg-type]  # its stub knows no rest
    return packed


class Replies:
    """A push parser of RESP2: bytes in any split give the same replies."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(
            protocolError=ValueError, replyError=_reply_error, notEnoughData=_NOT_YET
        )

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that `data` completes. Raises ValueError on what is not RESP2."""
        self._reader.feed(data)
        done: list[Reply] = []
        while (reply := self._reader.gets()) is not _NOT_YET:
            done.append(reply)
        return done


_NOT_YET = object()


def _reply_error(text: str) -> ReplyError:
    code, _, rest = text.partition(" ")
    return ReplyError(code, rest)


class Wire(asyncio.Protocol):
    """A connection and the commands on it that wait for their answers."""

    def __init__(self, patience_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_closed = False
        self.on_push: Callable[[Reply], None] | None = None  # hears what nobody asked for
        self._patience_s = patience_s
        self._transport: asyncio.Transport | None = None
        self._replies = Replies()
        self._waiting: deque[asyncio.Future[Reply]] = deque()
        self._out: list[bytes] = []
        self._heard = 0.0  # loop time of the last byte, or of the first command after a pause
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, args: tuple[Arg, ...]) -> asyncio.Future[Reply]:
        """Send a command, together with those of the same tick. The future may be cancelled.

        Raises Unreachable on a closed connection, and what `pack` raises, with nothing sent and
        nobody waiting: a place in the queue without a command would shift every later answer.
        """
        packed = pack(args)
        if self.is_closed:
            raise Unreachable("the server closed the connection at once")
        future = Answer(loop=self.loop)
        if not self._waiting:
            self._heard = self.loop.time()
            if self._watch is None:
                self._watch = self.loop.call_later(self._patience_s, self._look)
        self._waiting.append(future)
        if len(self._waiting) == 1 and self._transport is not None:
            # Alone on the line: nothing to share a write with, and a turn of the loop saved.
            self._transport.write(packed)
            return future
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out.append(packed)
        return future

    def _flush(self) -> None:
        if self._transport is not None and self._out and not self.is_closed:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        try:
            replies = self._replies.feed(data)
        except ValueError as error:
            self.drop(f"unreadable answer: {error}")
            return
        for reply in replies:
            if self.on_push and isinstance(reply, list) and reply and reply[0] == b"pmessage":
                self.on_push(reply)
                continue
            if not self._waiting:
                self.drop("an answer that nobody asked for")
                return
            future = self._waiting.popleft()
            if future.done():
                continue
            if isinstance(reply, ReplyError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def _look(self) -> None:
        # One timer for the connection and none for a command: it moves with the bytes, so a long
        # answer that keeps coming is not cut.
        self._watch = None
        if not self._waiting or self.is_closed:
            return
        left_s = self._heard + self._patience_s - self.loop.time()
        if left_s <= 0:
            self.drop(f"no answer for {self._patience_s:g} s")
            return
        self._watch = self.loop.call_later(left_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop(str(exc) if exc else "the server closed the connection")

    def drop(self, reason: str) -> None:
        """Close at once: every waiting command becomes ambiguous."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_exception(Ambiguous(reason))


Dial = Callable[[], Awaitable[Wire]]


class Line:
    """A Transport over one Wire at a time; a dropped one is replaced at the next call."""

    is_ours = True

    def __init__(self, dial: Dial, address: str) -> None:
        self.address = address
        self._dial = dial
        self._wire: Wire | None = None
        self._dialling: asyncio.Task[Wire] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._wire is not None and not self._wire.is_closed

    async def call(self, *args: Arg, patience_s: float | None = None) -> Reply:
        """Send a command once (see Transport). Who gives up after `patience_s` keeps its place."""
        wire = self._wire
        if wire is None or wire.is_closed or wire.loop is not asyncio.get_running_loop():
            wire = await self._connected()
        if patience_s is None:
            return await wire.send(args)
        try:
            async with asyncio.timeout(patience_s):
                return await wire.send(args)
        except TimeoutError as error:
            raise Ambiguous(f"no answer for {patience_s:.2g} s") from error

    async def chain(self, *commands: tuple[Arg, ...]) -> list[Reply | ReplyError]:
        """Send commands on one connection, one behind the other (see Transport)."""
        wire = self._wire
        if wire is None or wire.is_closed or wire.loop is not asyncio.get_running_loop():
            wire = await self._connected()
        answers = [wire.send(args) for args in commands]
        replies: list[Reply | ReplyError] = []
        try:
            for answer in answers:
                try:
                    replies.append(await answer)
                except ReplyError as error:
                    replies.append(error)
        finally:
            for answer in answers[len(replies) :]:
                answer.add_done_callback(seen)
        return replies

    async def _connected(self) -> Wire:
        """A live wire. All callers share one attempt, and its failure."""
        task = self._dialling
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._dialling = asyncio.ensure_future(self._dial())
            task.add_done_callback(seen)
        # Shielded: the attempt is everybody's, a cancelled caller must not end it for the others.
        try:
            self._wire = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by aclose, and not the caller
                raise Unreachable("the store was closed") from None
            raise
        return self._wire

    def drop(self, reason: str) -> None:
        """Replace the connection at the next call, for example since its server was demoted."""
        if self._wire is not None:
            self._wire.drop(reason)

    async def aclose(self) -> None:
        """Close the connection; what waits becomes ambiguous."""
        if self._dialling is not None and not self._dialling.done():
            self._dialling.cancel()
        self.drop("the store was closed")


def seen(task: asyncio.Future[Any]) -> None:
    """Look at how `task` ended. Each waiting caller gets its exception; without a look, asyncio
    would complain of one that nobody fetched when all callers were cancelled."""
    if not task.cancelled():
        task.exception()


__all__ = ["Ambiguous", "Line", "Replies", "Unreachable", "Wire", "pack", "seen"]
