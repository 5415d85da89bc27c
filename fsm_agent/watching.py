"""Looking at runs: their history, their picture, and what happens in them as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import pairwise

from checkpoints.model import Head, RunId, Status
from fsm_agent.engine import live
from fsm_agent.engine.deps import Deps
from fsm_agent.engine.resume import unfold
from fsm_agent.run import codec
from fsm_agent.run.event import EntryEvent, Event, LiveEvent, ParkedEvent
from fsm_agent.run.picture import Picture, svg
from fsm_agent.run.record import Run, apply

WATCH_S = 0.15  # between two looks of a watcher at the journal


class Watching:
    """Reads what runs did and do. Works from any process, and changes nothing."""

    _deps: Deps

    async def runs(self, *, status: Status | None = None, limit: int = 50) -> Sequence[Head]:
        """Heads of runs, newest first."""
        return await self._deps.store.runs(status=status, limit=limit)

    async def history(self, run_id: str, *, after: int = 0) -> Sequence[EntryEvent]:
        """The run's entries above `after` with the state after each: read-only, always.

        Raises RunNotFound, or CorruptEntry naming the entry.
        """
        events = []
        entries = await self._deps.store.journal(RunId(run_id))
        for run, record in unfold(Run(run_id=run_id), entries):
            if run.seq > after:
                events.append(EntryEvent(run_id, run.seq, run.state, record))
        return events

    async def picture(self, run_id: str) -> Picture:
        """The machine with the run's way lit: an SVG, which notebooks show by themselves."""
        states = [event.state for event in await self.history(run_id)]
        return Picture(svg(pairwise(states), states[-1], title=f"The way of run {run_id}"))

    async def watch(self, run_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Entries above `after` as they become durable, and live text, until the run is over.

        Works from any process. Live text that was missed is not repeated: the entry has all of it.
        """
        heard: asyncio.Queue[LiveEvent] = asyncio.Queue()
        listener = asyncio.create_task(self._listen(run_id, heard), name=f"live {run_id}")
        try:
            async for event in self._watch(run_id, after, heard):
                yield event
        finally:
            listener.cancel()
            await asyncio.wait([listener])

    async def _watch(
        self, run_id: str, after: int, heard: asyncio.Queue[LiveEvent]
    ) -> AsyncIterator[Event]:
        run, parked = Run(run_id=run_id), 0
        texts: list[LiveEvent] = []
        while not run.is_over:
            entries = await self._deps.store.journal(RunId(run_id), after=run.seq)
            if entries and run.has_attempt:
                # Live text is collected before it is sent, so its end comes after its entry.
                await self._deps.clock.sleep(2 * live.COALESCE_S)
            while not heard.empty():
                texts.append(heard.get_nowait())
            for entry in entries:
                for text in _take_current(texts, run):
                    yield text
                record = codec.decode(entry.body)
                run = apply(run, record)
                if entry.seq > after:
                    yield EntryEvent(run_id, entry.seq, run.state, record)
            for text in _take_current(texts, run):
                yield text
            head = await self._deps.store.head(RunId(run_id))
            if head.status in ("waiting", "sleeping") and head.seq == run.seq != parked:
                parked = run.seq  # not the status: between two looks it may have moved and parked
                ids = tuple(ask.ask_id for ask in run.open_asks)
                yield ParkedEvent(run_id, head.status, ids, head.due_ms)
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    texts.append(await heard.get())

    async def _listen(self, run_id: str, heard: asyncio.Queue[LiveEvent]) -> None:
        async for _, payload in self._deps.store.live(RunId(run_id)):
            if event := live.decode(payload):
                heard.put_nowait(event)


def _take_current(texts: list[LiveEvent], run: Run) -> list[LiveEvent]:
    """Take out the live events that belong where `run` stands; those of the past are dropped."""
    current = [
        text
        for text in texts
        if text.attempt == run.attempts and (run.has_attempt or text.channel == "progress")
    ]
    texts[:] = [text for text in texts if text.attempt > run.attempts]
    return current
