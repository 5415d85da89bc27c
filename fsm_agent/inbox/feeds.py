"""What is watched for open pages: one watcher for all who look at the same thing."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog

from checkpoints.errors import CheckpointError, StoreUnavailable
from checkpoints.model import RunId
from fsm_agent.errors import AgentError
from fsm_agent.inbox.problems import Problem
from fsm_agent.run.event import EntryEvent, Event, LiveEvent
from fsm_agent.runtime import Runtime

log = structlog.get_logger(__name__)

QUEUE = 500  # events that one reader may be behind, before it has to look at the journal again
LINGER_S = 5.0  # a watcher stays so long without readers: a page that reloads finds it
BEGIN_S = 5.0  # for a first look at the store
AWAY_S = 2.0  # between two tries while the store is away


class Lagging(Exception):
    """A reader was too slow: what it missed is in the journal."""


class Reader:
    """One open page: what has happened since it began to look."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue(QUEUE)
        self._is_lagging = False

    def put(self, item: Any) -> None:
        """Take an item; a full reader loses all and is told so."""
        try:
            self._queue.put_nowait(item)
        except asyncio.QueueFull:
            self._is_lagging = True

    async def get(self, limit_s: float) -> Any:
        """The next item, or None if there is none in time. Raises Lagging."""
        if self._is_lagging:
            raise Lagging
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                return await self._queue.get()
        return None


class End:
    """Nothing more will come. `problem` says why, where it is not that the run is over."""

    def __init__(self, problem: str = "") -> None:
        self.problem = problem


class _Feed:
    """A task that watches, and its readers."""

    def __init__(self, name: str, watch: Callable[[_Feed], Coroutine[Any, Any, None]]) -> None:
        self.readers: set[Reader] = set()
        self.recent: list[Any] = []  # what a reader that comes now is told first
        self.has_begun = asyncio.Event()
        self.idle_since: float | None = None
        self.ended: End | None = None
        self.task = asyncio.create_task(watch(self), name=f"feed {name}")

    def tell(self, item: Any) -> None:
        """Give every reader an item."""
        for reader in self.readers:
            reader.put(item)

    def end(self, problem: str = "") -> None:
        """Tell every reader that there is nothing more."""
        self.ended = End(problem)
        self.tell(self.ended)
        self.has_begun.set()


class Feeds:
    """All watchers of a server. Close it before the server waits for its connections."""

    def __init__(self, runtime: Runtime, *, max_feeds: int, look_s: float) -> None:
        self._runtime, self._max, self._look_s = runtime, max_feeds, look_s
        self._feeds: dict[str, _Feed] = {}
        self.is_closing = False

    @asynccontextmanager
    async def reading_run(self, run_id: str) -> AsyncIterator[Reader]:
        """A reader of a run's events from about now on; what was before is in the journal, which
        is to be read once this has begun. Raises Problem where too much is watched already."""
        async with self._reading(run_id, lambda feed: self._watch_run(feed, run_id)) as reader:
            yield reader

    @asynccontextmanager
    async def reading_lists(self) -> AsyncIterator[Reader]:
        """A reader of the lists: each item maps what is listed to a mark that changes with it."""
        async with self._reading("", self._watch_lists) as reader:
            yield reader

    @asynccontextmanager
    async def _reading(
        self, name: str, watch: Callable[[_Feed], Coroutine[Any, Any, None]]
    ) -> AsyncIterator[Reader]:
        feed = self._feeds.get(name)
        if feed is None or feed.ended or feed.task.done():
            if self.is_closing or len(self._feeds) >= self._max:
                later = {"Retry-After": "5"}
                raise Problem(503, "too-many", "Too much is watched. Ask again.", headers=later)
            feed = self._feeds[name] = _Feed(name or "lists", watch)
        reader = Reader()
        feed.idle_since = None
        try:
            # Not before the watcher stands where it watches from: what the reader then finds in
            # the journal and what it is told leave no gap between them. And no pause from here to
            # the reader's place among the others, so that nothing is told twice.
            await _begun(feed)
            for item in [*feed.recent, *([feed.ended] if feed.ended else [])]:
                reader.put(item)
            feed.readers.add(reader)
            yield reader
        finally:
            feed.readers.discard(reader)
            if not feed.readers:
                loop = asyncio.get_running_loop()
                feed.idle_since = loop.time()
                loop.call_later(LINGER_S + 0.1, self._sweep)

    def _sweep(self) -> None:
        """End watchers that nobody has read for a while."""
        now = asyncio.get_running_loop().time()
        for name, feed in list(self._feeds.items()):
            is_old = feed.idle_since is not None and now - feed.idle_since > LINGER_S
            if is_old or (feed.task.done() and not feed.readers):
                feed.task.cancel()
                del self._feeds[name]

    def close(self) -> None:
        """Let every stream end."""
        self.is_closing = True
        for feed in self._feeds.values():
            feed.end()

    async def aclose(self) -> None:
        """End the watchers."""
        self.close()
        tasks = [feed.task for feed in self._feeds.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._feeds.clear()

    async def _watch_run(self, feed: _Feed, run_id: str) -> None:
        seen: int | None = None
        while True:
            try:
                if seen is None:
                    seen = (await self._runtime.store.head(RunId(run_id))).seq
                    feed.has_begun.set()
                async for event in self._runtime.watch(run_id, after=seen):
                    seen = max(seen, event.seq if isinstance(event, EntryEvent) else 0)
                    _keep_live(feed.recent, event)
                    feed.tell(event)
                feed.end()
                return
            except StoreUnavailable:
                await asyncio.sleep(AWAY_S)
            except (CheckpointError, AgentError, KeyError) as error:
                log.warning("inbox.watch_failed", run_id=run_id, why=str(error))
                feed.end(str(error))
                return

    async def _watch_lists(self, feed: _Feed) -> None:
        while True:
            try:
                marks = await self.list_marks()
                if feed.recent != [marks]:
                    feed.recent = [marks]
                    feed.tell(marks)
                feed.has_begun.set()
                await asyncio.sleep(self._look_s)
            except (CheckpointError, AgentError) as error:
                log.info("inbox.store_away", why=str(error))
                await asyncio.sleep(AWAY_S)

    async def list_marks(self) -> Mapping[str, str]:
        """A mark for each open request and each of the newest runs, by run id and what it is."""
        marks: dict[str, str] = {}
        for request in await self._runtime.requests():
            about = (request.digest, request.claimed_by, len(request.votes), len(request.comments))
            marks[f"ask {request.run_id} {request.ask_id}"] = digest_of(*about)
        for head in await self._runtime.runs(limit=100):
            marks[f"run {head.run_id} "] = digest_of(head.seq, head.status, head.due_ms is None)
        return marks


def digest_of(*parts: object) -> str:
    """A short mark that changes with its parts."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


async def _begun(feed: _Feed) -> None:
    """Raises Problem if a watcher cannot look at the store."""
    try:
        async with asyncio.timeout(BEGIN_S):
            await feed.has_begun.wait()
    except TimeoutError:
        later = {"Retry-After": "5"}
        words = "The store cannot be reached, so nothing can be watched."
        raise Problem(503, "store-unavailable", words, headers=later) from None


def _keep_live(recent: list[Any], event: Event) -> None:
    """Keep the live text of what is under way; the entry that follows has all of it."""
    if isinstance(event, EntryEvent):
        recent.clear()
    elif isinstance(event, LiveEvent) and len(recent) < QUEUE // 2:
        recent.append(event)
