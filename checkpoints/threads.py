"""Threads: runs that take turns.

A thread has a slot of its own on a cluster, for its runs may be in any partition. See
docs/decisions for how it survives a crash between the two.
"""

from __future__ import annotations

from .calls import Calls
from .errors import StoreUsageError, ThreadBusy
from .keys import thread_key
from .model import RunId
from .schedule import Policy, Turn

MOST_WAITING = 1_000
MAX_THREAD_CHARS = 200


class Threads(Calls):
    """Joining a thread's line, and leaving it."""

    async def join_thread(self, thread: str, run_id: RunId, policy: Policy) -> Turn:
        """See Schedule."""
        self._of(run_id)  # a bad id is refused here, before it becomes a field
        reply = await self._script("join", (self._thread(thread),), run_id, policy, MOST_WAITING)
        match reply[0]:
            case b"ACTIVE":
                return Turn(True, run_id)
            case b"BUSY" | b"FULL":
                is_full = reply[0] == b"FULL"
                raise ThreadBusy(thread, reply[1].decode(), is_full=is_full)
        active, *interrupts = (RunId(item.decode()) for item in reply[1:])
        return Turn(False, active, tuple(interrupts))

    async def leave_thread(self, thread: str, run_id: RunId) -> RunId | None:
        """See Schedule."""
        reply = await self._script("leave", (self._thread(thread),), run_id)
        return RunId(reply[1].decode()) if reply[1] else None

    async def active_in(self, thread: str) -> RunId | None:
        """See Schedule."""
        active = await self._read("HGET", self._thread(thread), "a")
        return RunId(active.decode()) if active else None

    def _thread(self, thread: str) -> bytes:
        if not thread or len(thread) > MAX_THREAD_CHARS:
            raise StoreUsageError(
                f"a thread has a name of 1 to {MAX_THREAD_CHARS} characters, not {thread[:40]!r}."
            )
        return thread_key(self._all_keys().namespace, thread)
