"""Live text on its way to watchers in other processes: coalesced, and never in the way of a run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from checkpoints.errors import CheckpointError
from checkpoints.model import RunId
from checkpoints.store import Store
from fsm_agent.run.content import clean_text
from fsm_agent.run.event import LiveEvent
from fsm_agent.run.redaction import LiveRedactor, Redactor

COALESCE_S = 0.05  # one write for what comes within this time

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LiveEvent)


def decode(payload: bytes) -> LiveEvent | None:
    """The event of a live payload, or None for one that cannot be read: it is not the truth."""
    with contextlib.suppress(msgspec.MsgspecError, ValueError):
        return _decoder.decode(payload)
    return None


class LivePublisher:
    """Collects live events of all runs of a process and publishes them a few times a second."""

    def __init__(self, store: Store, redactor: Redactor | None = None) -> None:
        self._store = store
        self._redactor = LiveRedactor(redactor) if redactor else None
        self._waiting: dict[str, list[LiveEvent]] = {}
        self._filled = asyncio.Event()

    def add(self, event: LiveEvent) -> None:
        """Take an event; text of the same attempt and channel is put together."""
        event = msgspec.structs.replace(event, text=clean_text(event.text))
        self._put(self._redactor.event(event) if self._redactor else event)

    def settle(self, run_id: str) -> None:
        """An entry of the run is on record: no text of before it goes on."""
        for event in self._redactor.rest(run_id) if self._redactor else ():
            self._put(event)

    def _put(self, event: LiveEvent) -> None:
        events = self._waiting.setdefault(event.run_id, [])
        if events and _same_stream(events[-1], event):
            events[-1] = msgspec.structs.replace(event, text=events[-1].text + event.text)
        else:
            events.append(event)
        self._filled.set()

    @asynccontextmanager
    async def publishing(self) -> AsyncIterator[None]:
        """Publish while the body runs; what is left at the end is published before it is over."""
        task = asyncio.create_task(self._publish_forever(), name="live text")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            await self._publish()

    async def _publish_forever(self) -> None:
        while True:
            await self._filled.wait()
            await asyncio.sleep(COALESCE_S)
            await self._publish()

    async def _publish(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._filled.clear()
        for run_id, events in waiting.items():
            # Losing live text loses no state: the entry that follows has all of it.
            with contextlib.suppress(CheckpointError):
                payloads = [_encoder.encode(event) for event in events]
                await self._store.publish(RunId(run_id), payloads)


def _same_stream(one: LiveEvent, other: LiveEvent) -> bool:
    return (one.channel, one.attempt, one.call_id) == (other.channel, other.attempt, other.call_id)
