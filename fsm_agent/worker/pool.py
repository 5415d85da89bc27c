"""A worker: many runs at once in one process, taken from the due index as there is room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from checkpoints.errors import (
    CheckpointError,
    LeaseLost,
    RunBusy,
    RunClosed,
    StoreDiverged,
    StoreUnavailable,
)
from checkpoints.model import RunId
from checkpoints.store import Store
from fsm_agent.capabilities.agent import Agent
from fsm_agent.engine.tasks import task_group
from fsm_agent.errors import AgentError, NewerRecord

from .backlog import Backlog, Candidate
from .places import Full, Places
from .services import Service, kept_up

log = structlog.get_logger(__name__)

MISSES = 8  # more runs that others had taken than runs we got: the index is read again
SOONEST_S = 0.05  # between two looks, however much there is to do
STORE_AWAY_S = 2.0  # between tries while the store is away
PLACE_TERMS = 2  # leases that a place outlasts its last renewal: a blocked loop must not lose it
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Works(Protocol[Result_co]):
    """What a worker needs of a runtime."""

    @property
    def store(self) -> Store: ...

    @property
    def owner(self) -> str: ...

    @property
    def lease_s(self) -> float: ...

    async def work(self, run_id: str, agent: Agent) -> Result_co: ...


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works."""

    runs: int = 16  # at once
    look_s: float = 2.0  # between two looks at the due index: what a lost hint costs


class Worker(Generic[Result]):
    """Works on every due run whose agent is among `agents` (by name), for ever or until idle.

    `hints` are runs that may be due, from wherever; without them the store's own are heard. They
    only save time: every due run is found in the due index. `services` run next to the work for as
    long as it goes on, and are started again if they fail.

    A cancellation is a drain: nothing more is claimed, and each run is given back at its next
    commit point, so that another worker goes on with it at once.
    """

    def __init__(
        self,
        runtime: Works[Result],
        agents: Mapping[str, Agent],
        *,
        settings: Settings | None = None,
        hints: Callable[[], AsyncIterator[RunId]] | None = None,
        services: Sequence[Service] = (),
        on_result: Callable[[Result], Any] = lambda result: None,
        on_store_away: Callable[[StoreUnavailable], None] = lambda error: None,
    ) -> None:
        self._runtime, self._agents = runtime, agents
        self._settings = settings or Settings()
        self._hints = hints or runtime.store.wakes
        self._services = services
        self._on_result, self._on_store_away = on_result, on_store_away
        self._backlog = Backlog(runtime.store, agents.keys(), time.monotonic)
        self._places = Places(
            runtime.store,
            owner=runtime.owner,
            term_s=PLACE_TERMS * runtime.lease_s,
            steady_s=time.monotonic,
        )
        self._running: set[RunId] = set()
        self._news = asyncio.Event()  # a hint came, or a run ended
        self._room = asyncio.Event()
        self._room.set()
        self._misses = 0
        self._looked_s = 0.0
        self._look_at_s = 0.0  # not before
        self._done = 0

    async def work(self) -> None:
        """Work for ever."""
        is_away = False
        async with task_group() as tasks:
            tasks.create_task(self._listen(), name="wake-ups")
            tasks.create_task(self._places.keep(), name="places")
            for service in self._services:
                tasks.create_task(kept_up(service), name=f"service {service.name}")
            while True:
                self._news.clear()
                try:
                    await self._fill(tasks)
                    is_away = False
                except (StoreUnavailable, StoreDiverged) as error:
                    if not is_away:
                        self._tell_away(error)
                    is_away = True
                    await asyncio.sleep(STORE_AWAY_S)
                    continue
                await self._wait()

    def _tell_away(self, error: StoreUnavailable | StoreDiverged) -> None:
        if isinstance(error, StoreUnavailable):
            self._on_store_away(error)
        else:  # none of its due indexes can be read: a person has to look, and we go on then
            log.error("worker.store_unreadable", why=str(error))

    async def work_until_idle(self) -> int:
        """Work until nothing is due that can be worked on here; each run that fails is tried once.

        Returns how many were worked on. Raises StoreUnavailable, or StoreDiverged if no due index
        of the store can be read.
        """
        async with task_group() as tasks:
            keeper = tasks.create_task(self._places.keep(), name="places")
            try:
                while True:
                    self._news.clear()
                    self._look_at_s = 0.0
                    await self._fill(tasks)
                    if not self._running and not self._backlog.is_blocked:
                        return self._done
                    await self._wait()
            finally:
                keeper.cancel()

    async def offer(self, run_id: RunId) -> None:
        """Hint at a run once there is room for one: who brings it keeps the others until then."""
        await self._room.wait()
        self._hint(run_id)

    # -- what is next ---------------------------------------------------------------------------

    async def _fill(self, tasks: asyncio.TaskGroup) -> None:
        """Start runs while there are any, and room for them."""
        while len(self._running) < self._settings.runs:
            candidate = await self._next()
            if candidate is None:
                return
            self._running.add(candidate.run_id)
            if len(self._running) >= self._settings.runs:
                self._room.clear()
            has_asked = asyncio.Event()
            name = f"run {candidate.run_id}"
            tasks.create_task(self._work_on(candidate, has_asked), name=name)
            # Side by side, the runs of a full tenant would take the places and beginnings of their
            # agent for as long as they ask, each time before those of another tenant.
            await has_asked.wait()

    async def _next(self) -> Candidate | None:
        if self._misses >= MISSES:  # what is known is old
            self._look_at_s = min(self._look_at_s, self._looked_s + SOONEST_S)
        elif found := await self._backlog.take(self._running):
            return found
        now = time.monotonic()
        if now < self._look_at_s:
            return None
        self._misses, self._looked_s = 0, now
        await self._backlog.look(self._running)
        found = await self._backlog.take(self._running)
        # While there is something to do the index is read as often as that is used up.
        pause_s = SOONEST_S if found else min(self._settings.look_s, self._backlog.wakes_in_s())
        self._look_at_s = now + max(SOONEST_S, pause_s)
        return found

    async def _wait(self) -> None:
        """Until there is news, or it is time to look again."""
        seconds = self._look_at_s - time.monotonic()
        if len(self._running) >= self._settings.runs:
            seconds = self._settings.look_s
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._news.wait()

    async def _listen(self) -> None:
        async for run_id in self._hints():
            self._hint(run_id)

    def _hint(self, run_id: RunId) -> None:
        self._backlog.hint(run_id)
        self._news.set()

    # -- one run --------------------------------------------------------------------------------

    async def _work_on(self, candidate: Candidate, has_asked: asyncio.Event) -> None:
        """`has_asked` is set once it is known whether the run's groups have room for it."""
        run_id = candidate.run_id
        try:
            result = await self._worked(candidate, has_asked)
        finally:
            has_asked.set()
            self._running.discard(run_id)
            self._room.set()
            self._news.set()
        if result is not None:
            self._misses = max(0, self._misses - 1)
            self._done += 1
            self._on_result(result)

    async def _worked(self, candidate: Candidate, has_asked: asyncio.Event) -> Result | None:
        """Work on a run that others may have taken meanwhile. None: it was not worked on."""
        run_id = candidate.run_id
        try:
            async with self._places.held(candidate):
                has_asked.set()
                result = await self._runtime.work(run_id, self._agent_of(candidate))
            self._backlog.unblock(candidate.groups)
        except Full as full:
            self._backlog.block(full.group, full.wait_s)
            self._backlog.put_back(candidate)
            return None
        except (RunBusy, RunClosed) as error:
            log.debug("worker.run_skipped", run_id=run_id, why=str(error))
            self._misses += 1
            self._backlog.forget(run_id)
            return None
        except (LeaseLost, NewerRecord) as error:
            log.info("worker.run_lost", run_id=run_id, why=str(error))
            self._backlog.forget(run_id)
            return None
        except (AgentError, CheckpointError) as error:
            log.error("worker.run_failed", run_id=run_id, why=str(error))
        except Exception as error:
            # A bug of one agent's code must not stop the others' runs; this one was given back.
            log.error("worker.run_failed", run_id=run_id, why=repr(error), exc_info=True)
        else:
            self._backlog.forgive(run_id)
            return result
        self._backlog.rest(run_id)
        return None

    def _agent_of(self, candidate: Candidate) -> Agent:
        if candidate.is_abandoned and candidate.agent not in self._agents:
            # To end a run takes none of its code; were it more than that, it would be parked.
            return Agent(candidate.agent, on_change="park")
        return self._agents[candidate.agent]
