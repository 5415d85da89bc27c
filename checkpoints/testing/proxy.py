"""A proxy on a Unix socket that does to the next matching request what networks do."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Literal

Fault = Literal[
    "lost_request",  # closed, and never forwarded
    "lost_reply",  # forwarded, applied, and closed instead of answered
    "half_reply",  # closed after the first bytes of the answer
    "silence",  # forwarded, and never answered
    "twice",  # forwarded, and once more over another connection
    "late_request",  # closed, and kept until `deliver`
    "error",  # answered with `error_line`, and never forwarded
]


class FaultProxy:
    """Forwards everything but the next `times` requests that contain `marker`."""

    def __init__(self, target: Path, socket: Path) -> None:
        self.socket = socket
        self.hits = 0
        self._target = target
        self._marker = b""
        self._fault: Fault | None = None
        self._times = 0
        self._error = b""
        self._late: list[bytes] = []
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    def inject(self, fault: Fault, marker: bytes, *, times: int = 1, error: str = "") -> None:
        """Arm a fault."""
        self._fault, self._marker, self._times = fault, marker, times
        self._error = b"-%s\r\n" % error.encode()

    async def deliver(self) -> None:
        """Forward what `late_request` kept, and wait until it is applied."""
        for data in self._late:
            await self._forward_apart(data)
        self._late.clear()

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_unix_server(self._serve, self.socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        answer = _Answers(writer)
        try:
            with suppress(OSError, asyncio.CancelledError):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(answer.pump(up_reader))
                    await self._requests(reader, writer, up_writer, answer)
                    raise asyncio.CancelledError
        finally:
            self._pumps.discard(task)
            writer.transport.abort()
            up_writer.transport.abort()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up: asyncio.StreamWriter,
        answer: _Answers,
    ) -> None:
        while data := await reader.read(1 << 20):
            fault = self._take(data)
            match fault:
                case None:
                    up.write(data)
                case "lost_request":
                    return
                case "late_request":
                    self._late.append(data)
                    return
                case "error":
                    writer.write(self._error)
                case "twice":
                    await self._forward_apart(data)
                    up.write(data)
                case "lost_reply":
                    await self._forward_apart(data)
                    return
                case "half_reply":
                    answer.limit = 3
                    up.write(data)
                case "silence":
                    answer.limit = -1
                    up.write(data)

    def _take(self, data: bytes) -> Fault | None:
        if not self._times or self._marker not in data:
            return None
        self._times -= 1
        self.hits += 1
        return self._fault

    async def _forward_apart(self, data: bytes) -> None:
        reader, writer = await asyncio.open_unix_connection(self._target)
        writer.write(data)
        await reader.read(1 << 20)
        writer.transport.abort()


class _Answers:
    """What goes back to the client: all, the first `limit` bytes and a cut, or (-1) nothing."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.limit: int | None = None
        self._writer = writer

    async def pump(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 20):
            if self.limit is None:
                self._writer.write(data)
            elif self.limit >= 0:
                self._writer.write(data[: self.limit])
                await self._writer.drain()
                self._writer.transport.close()
                return
