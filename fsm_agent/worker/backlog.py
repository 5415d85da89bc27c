"""What is due and can be worked on here, the most pressing first."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Sequence

import msgspec
import structlog
from msgspec.structs import replace

from checkpoints.errors import RunNotFound, StoreDiverged, StoreUsageError
from checkpoints.model import CLOSED, Head, RunId
from checkpoints.schedule import Agenda
from checkpoints.store import Store
from checkpoints.together import together
from fsm_agent.engine.children import abandon, is_abandoned, rouse
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec

log = structlog.get_logger(__name__)

DEPTH = 1_024  # due runs that one look reads
FIRST_DEPTH = 128  # at the first one: a new worker gets going before it knows the whole backlog
DEEPEST = 1 << 20
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0  # before a run that failed here is tried again
ROUSED_S = 5.0  # before a child whose parent was told is looked at again
MAX_HINTS = 256
IDLE_MS = 3_600_000
EARLY_MS = 250
HEADS_AT_ONCE = 64
# What the store says of a single run, while StoreUnavailable is about all of them.
_UNREADABLE = (StoreDiverged, StoreUsageError, CorruptRecord)


class Candidate(msgspec.Struct, frozen=True):
    """A run that a worker may claim, as it was when it was looked at."""

    run_id: RunId
    agent: str
    tenant: str
    priority: int
    dead_owner: str  # its worker, if that one died: it is worked on before all others
    has_place: bool  # that one's is still its own: groups that are full have room for it
    begins: bool  # no worker ever had it
    due_ms: int
    is_abandoned: bool = False  # it worked for a run that does not wait for it: it is only ended

    @property
    def is_takeover(self) -> bool:
        """Whether its worker died."""
        return bool(self.dead_owner)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups whose limits count for it."""
        agent = f"agent:{self.agent}"
        return (agent, f"tenant:{self.tenant}") if self.tenant else (agent,)


class Backlog:
    """The due runs as one worker sees them. The due index is the truth, this is a view of it."""

    def __init__(
        self, store: Store, agents: Collection[str], steady_s: Callable[[], float]
    ) -> None:
        self._store, self._agents, self._steady_s = store, agents, steady_s
        self._ranked: list[Candidate] = []  # the most pressing last
        self._known: dict[RunId, Candidate | None] = {}  # None: not for this worker
        self._later: dict[RunId, tuple[int, float]] = {}  # failures, and until when it rests
        self._full: dict[str, float] = {}  # groups without room, until when
        self._hints: deque[RunId] = deque(maxlen=MAX_HINTS)
        self._strangers: set[str] = set()  # agents that are not here, as far as that was said
        self._has_looked = False
        self._ahead_ms = float("inf")  # of the store's clock before ours
        self._next_s = 0.0  # when something more becomes due, on the steady clock

    # -- what others say ------------------------------------------------------------------------

    def hint(self, run_id: RunId) -> None:
        """Somebody says that this run is due."""
        self._hints.append(run_id)

    @property
    def is_blocked(self) -> bool:
        """Whether there are runs that only wait for room in a group."""
        return bool(self._ranked)

    def rest(self, run_id: RunId) -> None:
        """The run failed here: leave it alone for a while, longer each time."""
        failures = self._later.get(run_id, (0, 0.0))[0] + 1
        wait_s = min(FIRST_WAIT_S * 2 ** min(failures - 1, 20), LONGEST_WAIT_S)
        self._later[run_id] = failures, self._steady_s() + wait_s
        self._known.pop(run_id, None)

    def forgive(self, run_id: RunId) -> None:
        """The run was worked on."""
        self._later.pop(run_id, None)
        self.forget(run_id)

    def forget(self, run_id: RunId) -> None:
        """What is known of the run is no longer so."""
        self._known.pop(run_id, None)

    def block(self, group: str, seconds: float) -> None:
        """No run of this group is offered for so long."""
        self._full[group] = self._steady_s() + seconds

    def unblock(self, groups: Collection[str]) -> None:
        """A run of these groups has ended here: there is room."""
        for group in groups:
            self._full.pop(group, None)

    def put_back(self, candidate: Candidate) -> None:
        """It was taken, and there was no room for it: it waits as others do."""
        waiting = replace(candidate, has_place=False)
        if self._known.get(candidate.run_id):
            self._known[candidate.run_id] = waiting
        self._insert(waiting)

    # -- what is next ---------------------------------------------------------------------------

    async def take(self, busy: Collection[RunId]) -> Candidate | None:
        """The next run to claim, of those that were looked at or hinted at.

        Raises StoreUnavailable.
        """
        await self._follow_hints(busy)
        now = self._steady_s()
        self._full = {group: until for group, until in self._full.items() if until > now}
        for at in range(len(self._ranked) - 1, -1, -1):
            candidate = self._ranked[at]
            if candidate.run_id in busy:
                continue
            if self._has_room(candidate):
                return self._ranked.pop(at)
        return None

    async def look(self, busy: Collection[RunId]) -> None:
        """Read the due index again. Raises StoreUnavailable."""
        depth = DEPTH if self._has_looked else min(FIRST_DEPTH, DEPTH)
        self._has_looked = True
        while True:
            agenda = await self._store.agenda(limit=depth)
            await self._read(agenda)
            found = [c for c in self._known.values() if c and self._is_free(c, busy)]
            if any(map(self._has_room, found)) or len(agenda.runs) < depth or depth >= DEEPEST:
                break
            depth *= 4  # what cannot be worked on here must not hide the rest
        self._ranked = sorted(found, key=_rank, reverse=True)

    async def _read(self, agenda: Agenda) -> None:
        now = self._steady_s()
        self._ahead_ms = agenda.now_ms - now * 1000
        ahead_ms = IDLE_MS if agenda.next_ms is None else agenda.next_ms - agenda.now_ms
        self._next_s = now + ahead_ms / 1000
        due = {run.run_id for run in agenda.runs}
        self._known = {run_id: c for run_id, c in self._known.items() if run_id in due}
        self._later = {
            run_id: rest for run_id, rest in self._later.items()
            if run_id in due or rest[1] > now - LONGEST_WAIT_S
        }  # fmt: skip
        unknown = [run.run_id for run in agenda.runs if run.run_id not in self._known]
        new = [run_id for run_id in unknown if not self._rests(run_id)]
        for start in range(0, len(new), HEADS_AT_ONCE):
            await self._meet(new[start : start + HEADS_AT_ONCE])

    def wakes_in_s(self) -> float:
        """Seconds until a run is due, has rested, or a full group may have room."""
        now = self._steady_s()
        times = [*self._full.values(), *(until for _, until in self._later.values())]
        return max(0.0, min([self._next_s, *(t for t in times if t > now)]) - now)

    def _now_ms(self) -> float:
        """The store's clock, carried on by ours since the last look, and a little ahead: what
        became due a moment ago must not look as if it were not."""
        return self._ahead_ms + self._steady_s() * 1000 + EARLY_MS

    # -- getting to know runs -------------------------------------------------------------------

    async def _follow_hints(self, busy: Collection[RunId]) -> None:
        hinted = {each for each in self._hints if each not in busy and not self._rests(each)}
        self._hints.clear()
        listed = {candidate.run_id for candidate in self._ranked}
        new = list(hinted - listed)
        for start in range(0, len(new), HEADS_AT_ONCE):
            await self._meet(new[start : start + HEADS_AT_ONCE])
        for run_id in new:
            candidate = self._known.get(run_id)
            if candidate and self._is_free(candidate, busy):
                self._insert(candidate)

    def _is_free(self, candidate: Candidate, busy: Collection[RunId]) -> bool:
        return candidate.run_id not in busy and not self._rests(candidate.run_id)

    def _rests(self, run_id: RunId) -> bool:
        return self._later.get(run_id, (0, 0.0))[1] > self._steady_s()

    def _has_room(self, candidate: Candidate) -> bool:
        return candidate.has_place or not self._full.keys() & set(candidate.groups)

    def _insert(self, candidate: Candidate) -> None:
        self._ranked.append(candidate)
        self._ranked.sort(key=_rank, reverse=True)

    async def _meet(self, run_ids: Sequence[RunId]) -> None:
        """Get to know runs; those that are over or not due leave no trace."""
        for head in await together([self._head(run_id) for run_id in run_ids]):
            if head is None or head.status in CLOSED:
                continue
            if head.due_ms is not None and head.due_ms <= self._now_ms():
                try:
                    await self._get_to_know(head, head.due_ms)
                except _UNREADABLE as error:
                    self._skip(head.run_id, error)

    async def _head(self, run_id: RunId) -> Head | None:
        try:
            return await self._store.head(run_id)
        except RunNotFound:
            return None  # a hint may say anything
        except _UNREADABLE as error:
            self._skip(run_id, error)
            return None

    def _skip(self, run_id: RunId, error: Exception) -> None:
        """One run that cannot be looked at must not keep us from the others."""
        log.error("worker.run_skipped", run_id=run_id, why=str(error))
        self.rest(run_id)

    async def _get_to_know(self, head: Head, due_ms: int) -> None:
        run_id, told = head.run_id, codec.decode_snapshot(head.snapshot)
        if told.parent and not await is_abandoned(self._store, run_id, told.parent):
            # Its parent's worker drives it; that one may not have heard that it can go on.
            await rouse(self._store, told.parent, run_id, f"{head.seq}-{head.mail}")
            self.hint(RunId(told.parent))
            # Looked at again, and not known from now on: its parent may end without it.
            self._later[run_id] = 0, self._steady_s() + ROUSED_S
            return
        if told.parent:
            await abandon(self._store, run_id, told.parent)
        elif told.agent not in self._agents:
            if told.agent not in self._strangers:
                self._strangers.add(told.agent)
                log.info("worker.agent_unknown", agent=told.agent, run_id=run_id)
            self._known[run_id] = None
            return
        self._known[run_id] = Candidate(
            run_id=run_id,
            agent=told.agent,
            tenant=told.tenant,
            priority=told.priority,
            dead_owner=head.owner if head.lease_until_ms > 0 else "",
            has_place=head.lease_until_ms > 0,
            begins=head.token == 0,
            due_ms=due_ms,
            is_abandoned=bool(told.parent),
        )


def _rank(candidate: Candidate) -> tuple[bool, int, int, float]:
    # At random within a second: workers that read the same index must not all want the same run.
    second = candidate.due_ms // 1000
    return not candidate.is_takeover, -candidate.priority, second, random.random()
