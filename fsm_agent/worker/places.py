"""Limits that hold for all workers together: a place in each limited group, before a claim."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress

import structlog

from checkpoints.errors import CheckpointError, RunBusy, RunClosed, RunNotFound
from checkpoints.model import RunId
from checkpoints.schedule import Limit
from checkpoints.store import Store

from .backlog import Candidate

log = structlog.get_logger(__name__)

FRESH_S = 2.0  # how old the known limits may be
LONGEST_S = (
    1.0  # a full group is tried again after this at the latest: places free themselves early
)


class Full(Exception):
    """A group has no room for another run."""

    def __init__(self, group: str, wait_s: float) -> None:
        super().__init__(f"{group} is full")
        self.group, self.wait_s = group, wait_s


UNCLAIMED = (RunBusy, RunClosed, RunNotFound)  # what a refused claim raises


class Places:
    """The places that this worker's runs hold. A dead worker's are free after `term_s`."""

    def __init__(
        self, store: Store, *, owner: str, term_s: float, steady_s: Callable[[], float]
    ) -> None:
        self._store, self._owner, self._steady_s = store, owner, steady_s
        self._term_ms = int(term_s * 1000)
        self._limits: Mapping[str, Limit] = {}
        self._read_s = float("-inf")
        self._held: dict[RunId, dict[str, Limit]] = {}

    @asynccontextmanager
    async def held(self, candidate: Candidate) -> AsyncIterator[None]:
        """Hold a place in each of the run's limited groups while the body claims it and works.

        Raises Full. If the claim is refused, the run does not count as begun.
        """
        run_id = candidate.run_id
        await self._take_all(candidate)
        try:
            yield
            if candidate.dead_owner:
                # What that one held would else stand for a lease more, for a run that is over.
                await self._free(run_id, self._held.get(run_id, ()), candidate.dead_owner)
        except UNCLAIMED:
            await self._withdraw(candidate)
            raise
        finally:
            await self._free(run_id, self._held.pop(run_id, ()), self._owner)

    async def _take_all(self, candidate: Candidate) -> None:
        try:
            await self._read_limits()
            for group in candidate.groups:
                await self._enter(group, candidate)
        except BaseException:  # a stop as well
            await self._withdraw(candidate)
            raise

    async def _enter(self, group: str, candidate: Candidate) -> None:
        """Take a place in one group, if that is limited. Raises Full."""
        if (limit := self._limit_of(group)) is None:
            return
        # Noted before it is asked for: a stop meanwhile must not leave it behind.
        self._held.setdefault(candidate.run_id, {})[group] = limit
        wait_ms = await self._take(group, limit, candidate.run_id, begins=candidate.begins)
        if wait_ms:
            raise Full(group, min(wait_ms / 1000, LONGEST_S))

    # If the store is away, places and beginnings end by themselves.

    async def _withdraw(self, candidate: Candidate) -> None:
        """Give the run's places back, with the beginnings that it was to make: it did not begin.
        Those of a run that goes on are older, and stand."""
        groups = self._held.pop(candidate.run_id, ())
        if not candidate.begins:
            await self._free(candidate.run_id, groups, self._owner)
            return
        for group in groups:
            with suppress(CheckpointError):
                await self._store.withdraw_slot(group, candidate.run_id, owner=self._owner)

    async def _free(self, run_id: RunId, groups: Iterable[str], owner: str) -> None:
        """Give an owner's places back."""
        for group in groups:
            with suppress(CheckpointError):
                await self._store.free_slot(group, run_id, owner=owner)

    async def keep(self) -> None:
        """Keep all places, for ever."""
        while True:
            await asyncio.sleep(self._term_ms / 4000)
            for run_id, groups in list(self._held.items()):
                for group, limit in list(groups.items()):
                    await self._keep(group, limit, run_id)

    async def _keep(self, group: str, limit: Limit, run_id: RunId) -> None:
        try:
            is_lost = await self._take(group, limit, run_id, begins=False)
        except CheckpointError as error:
            log.warning("worker.place_not_kept", run_id=run_id, group=group, why=str(error))
            return
        if is_lost:
            # The run goes on: cutting it off for a limit would cost more than one run too many.
            log.warning("worker.place_lost", run_id=run_id, group=group)
        elif run_id not in self._held:  # it ended meanwhile
            with suppress(CheckpointError):
                await self._store.free_slot(group, run_id, owner=self._owner)

    async def _take(self, group: str, limit: Limit, run_id: RunId, *, begins: bool) -> int:
        return await self._store.take_slot(
            group, run_id, limit, owner=self._owner, term_ms=self._term_ms, begins=begins
        )

    def _limit_of(self, group: str) -> Limit | None:
        """The group's own limit, or that of its kind: 'tenant:*'."""
        kind = group.partition(":")[0]
        return self._limits.get(group) or self._limits.get(f"{kind}:*")

    async def _read_limits(self) -> None:
        if self._steady_s() - self._read_s > FRESH_S:
            self._limits = await self._store.limits()
            self._read_s = self._steady_s()
