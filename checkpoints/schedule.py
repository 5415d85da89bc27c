"""What a store knows for those who share out work: what is due, who may work, whose turn it is.

A Store promises all of this too; it stands apart since no run's journal depends on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Literal, Protocol, Self

import msgspec

from .model import RunId

Policy = Literal["reject", "queue", "interrupt"]


class DueRun(msgspec.Struct, frozen=True):
    """A run that a worker should look at, and since when."""

    run_id: RunId
    due_ms: int


class Agenda(msgspec.Struct, frozen=True):
    """What is due now, the longest overdue first, and when more will be. Times are the store's."""

    runs: tuple[DueRun, ...]
    next_ms: int | None
    now_ms: int


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a group may go on at once, and begin in any 60 seconds. None: no limit."""

    at_once: int | None = None
    per_minute: int | None = None


class Turn(msgspec.Struct, frozen=True):
    """Where a run stands in its thread: active, or behind `active`.

    `interrupts` are runs of the thread that it asked to end; whoever sees this tells them.
    """

    is_active: bool
    active: RunId
    interrupts: tuple[RunId, ...] = ()


class Schedule(Protocol):
    """Each method may raise StoreUnavailable."""

    async def agenda(self, *, limit: int = 256) -> Agenda:
        """What is due. With a backlog above `limit` it is a part of it: from both ends.

        Without the partitions whose index holds something else, or whose server does not answer:
        StoreDiverged or StoreUnavailable if those are all.
        """

    def wakes(self) -> AsyncIterator[RunId]:
        """Runs as they become due at once. Only hints: any may be lost, come twice, or be old."""

    async def wake(self, run_id: RunId) -> None:
        """Make a run due now, unless it is held, over or unknown."""

    async def limits(self) -> Mapping[str, Limit]:
        """The limits that were set, by group."""

    async def set_limit(self, group: str, limit: Limit) -> None:
        """Set the limit of a group, for all workers; an empty one takes it away.

        Raises StoreUsageError for numbers below 1 or a name of more than 200 characters.
        """

    async def take_slot(
        self, group: str, run_id: RunId, limit: Limit, *, owner: str, term_ms: int, begins: bool
    ) -> int:
        """Take a place of `owner` in a group for a run, or keep the one it has. 0: it is taken.

        Else the milliseconds after which another try may help. The place ends after `term_ms`.
        With `begins` the run also counts as one that begins now, once. Places of several owners
        count as one if they are for the same run, and each stays until its own owner frees it.
        """

    async def free_slot(self, group: str, run_id: RunId, *, owner: str) -> None:
        """Give a place back. One that ended by itself is no error."""

    async def withdraw_slot(self, group: str, run_id: RunId, *, owner: str) -> None:
        """Give a place back as if it had not been taken: `owner` did not begin the run either."""

    async def join_thread(self, thread: str, run_id: RunId, policy: Policy) -> Turn:
        """Ask for a run's turn in a thread, of which one run at a time is active.

        Asking again is harmless; the answer changes once the turn has come. Raises ThreadBusy
        where the policy is 'reject' or too many wait, and then for this run for ever.
        """

    async def leave_thread(self, thread: str, run_id: RunId) -> RunId | None:
        """End a run's part in a thread, which must be over: the run that is active then, if any."""

    async def active_in(self, thread: str) -> RunId | None:
        """The run that is active in a thread."""

    def twin(self) -> Self:
        """Another client of the same data, for another thread and its event loop."""
