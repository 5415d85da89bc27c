"""What lies between a process and its store: a real socket that does what networks and servers do.

It stands in the process that it serves, on a Unix socket, and passes one request after the other.
So connections, time-outs, repeats and op ids of the store's own client are what meets the faults.

Left out, since nothing here can make them: MOVED, ASK, TRYAGAIN, CLUSTERDOWN (this server is no
cluster), MASTERDOWN (no replica); a read that is late or comes twice changes nothing; `renew` is
sent by the clock and not by the run, so that its number means nothing (what lasts meets it).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha1
from pathlib import Path

import hiredis

from checkpoints import scripts
from checkpoints.pipeline import Replies, pack
from fsm_agent.testing.faults import ERROR_LINES, NETWORK, Fault

from .case import WIRE, Strike

Command = tuple[bytes, ...]

_UNNUMBERED = frozenset({"renew", "TIME", "EVAL"})
_READS = frozenset({"head", "due", "HGETALL", "HMGET", "HGET", "XRANGE", "LRANGE", "ZRANGE"})
_OF_WRITES = frozenset(
    {Fault.READONLY, Fault.OOM, Fault.NOREPLICAS, Fault.DISK_FULL}
    | {Fault.LATE_REQUEST, Fault.DUPLICATE_REQUEST}
)
_OF_ALL = (NETWORK - _OF_WRITES) | {
    *(Fault.CANCELLED_AWAIT, Fault.LOADING, Fault.BUSY, Fault.NOAUTH, Fault.NOPERM),
}
# A process that was cancelled or killed sends nothing more: these do not last.
_ONCE = frozenset({Fault.CANCELLED_AWAIT, Fault.LATE_REQUEST, Fault.DUPLICATE_REQUEST})


def faults_of(point: str) -> list[tuple[Fault, bool]]:
    """The faults that can meet this request: once, and (True) from it on."""
    name = point.removeprefix(WIRE).partition("#")[0]
    faults = set(_OF_ALL)
    if name not in _READS:
        faults |= _OF_WRITES
    if name in scripts.NAMES:
        faults.add(Fault.NOSCRIPT)
    ordered = [fault for fault in Fault if fault in faults]
    once = [(fault, False) for fault in ordered]
    return once + [(fault, True) for fault in ordered if fault not in _ONCE]


class Network:
    """The way to a store's socket, on a socket of its own. It may be struck once it is armed."""

    def __init__(
        self,
        target: Path,
        folder: Path,
        number: int,
        *,
        strike: Strike | None = None,
        on_cancel: Callable[[], object],
    ) -> None:
        self.socket = folder / f"{number}.sock"
        self._target, self._strike, self._on_cancel = target, strike, on_cancel
        self._trace = os.open(
            folder / f"wire-{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )
        self._late, self._hit = folder / "late", folder / f"hit-{number}"
        self._counts: Counter[str] = Counter()
        self._is_armed = self._is_struck = False
        self._has_late = self._late.exists()  # of the process before
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def arm(self) -> None:
        """From here on requests are counted and may be struck: the store is open."""
        self._is_armed = True

    def disarm(self) -> None:
        """From here on everything passes: what comes is no part of the run."""
        self._is_armed = False

    async def __aenter__(self) -> Network:
        self._server = await asyncio.start_unix_server(self._serve, self.socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        up = await _Upstream.to(self._target)
        try:
            with suppress(OSError, EOFError, asyncio.CancelledError):
                async for command in _commands(reader):
                    if not await self._pass(command, reader, writer, up):
                        break
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            up.cut()

    async def _pass(
        self,
        command: Command,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up: _Upstream,
    ) -> bool:
        """Let one request through, or do to it what is to be done. False: the line is cut."""
        name = name_of(command)
        fault = self._fault_for(name, command)
        brings_late = self._has_late and name == "commit"
        if brings_late:
            await self._deliver_late()
        is_open = await self._play(fault, command, reader, writer, up)
        if brings_late:
            self._has_late = False
            await self._deliver_late()  # and once more, when its time is long over
        return is_open

    def _fault_for(self, name: str, command: Command) -> Fault | None:
        if not self._is_armed:
            return None
        point = ""
        if name not in _UNNUMBERED and command[0] != b"EVAL":
            self._counts[name] += 1
            point = f"{WIRE}{name}#{self._counts[name]}"
            os.write(self._trace, f"{point}\n".encode())
        strike = self._strike
        if strike is None or (self._is_struck and not strike.lasts):
            return None
        if not self._is_struck and point != strike.point:
            return None
        if not self._is_struck:
            self._hit.touch()
        self._is_struck = True
        if strike.fault is Fault.NOSCRIPT and command[0] != b"EVALSHA":
            return None
        return strike.fault

    async def _play(
        self,
        fault: Fault | None,
        command: Command,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up: _Upstream,
    ) -> bool:
        match fault:
            case None:
                writer.write(await up.call(command))
            case Fault.LOST_REQUEST:
                return False
            case Fault.LOST_REPLY_AFTER_APPLY:
                await up.call(command)
                return False
            case Fault.DUPLICATE_REQUEST:
                await self._apart(command)
                writer.write(await up.call(command))
            case Fault.SLOW_REPLY:
                reply = await up.call(command)
                while await reader.read(1 << 16):
                    pass  # until the sender gives up
                writer.write(reply)
                return False
            case Fault.CONN_RESET:
                await up.send(command)
                return False
            case Fault.HALF_REPLY:
                reply = await up.call(command)
                writer.write(reply[: max(1, len(reply) // 2)])
                await writer.drain()
                writer.close()
                return False
            case Fault.LATE_REQUEST:
                self._late.write_bytes(pack(command))
                os.kill(os.getpid(), signal.SIGKILL)
            case Fault.CANCELLED_AWAIT:
                await up.send(command)
                self._on_cancel()
                writer.write(await up.reply())
            case refusal:
                writer.write(f"-{ERROR_LINES[refusal]}\r\n".encode())
        return True

    async def _deliver_late(self) -> None:
        for command in _unpacked(self._late.read_bytes()):
            await self._apart(command)

    async def _apart(self, command: Command) -> None:
        """Deliver a request by a way of its own, and wait until it was applied or refused."""
        up = await _Upstream.to(self._target)
        try:
            await up.call(command)
        finally:
            up.cut()


class _Upstream:
    """A connection to the real server, with one request on it at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._replies = Replies()

    @classmethod
    async def to(cls, socket: Path) -> _Upstream:
        return cls(*await asyncio.open_unix_connection(socket))

    async def call(self, command: Command) -> bytes:
        await self.send(command)
        return await self.reply()

    async def send(self, command: Command) -> None:
        self._writer.write(pack(command))
        await self._writer.drain()

    async def reply(self) -> bytes:
        """The bytes of one reply. Raises EOFError."""
        received = b""
        while True:
            data = await self._reader.read(1 << 20)
            if not data:
                raise EOFError("the server closed the connection")
            received += data
            if self._replies.feed(data):
                return received

    def cut(self) -> None:
        self._writer.transport.abort()


async def _commands(reader: asyncio.StreamReader) -> AsyncIterator[Command]:
    parser = hiredis.Reader()
    while data := await reader.read(1 << 20):
        parser.feed(data)
        while (command := parser.gets()) is not False:
            yield tuple(command)


def _unpacked(data: bytes) -> Iterator[Command]:
    parser = hiredis.Reader()
    parser.feed(data)
    while (command := parser.gets()) is not False:
        yield tuple(command)


@cache
def _names() -> dict[bytes, str]:
    return {scripts.load(name).sha: name for name in scripts.NAMES}


def name_of(command: Command) -> str:
    """The name of the script that a request runs, or that of the command."""
    match command[0].upper():
        case b"EVALSHA":
            return _names().get(command[1], "EVALSHA")
        case b"EVAL":
            sha = sha1(command[1], usedforsecurity=False).hexdigest().encode()
            return _names().get(sha, "EVAL")
        case name:
            return name.decode(errors="replace")
