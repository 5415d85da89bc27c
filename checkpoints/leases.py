"""Keeping leases while their runs are worked on, and stopping the work once one is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from types import TracebackType

import structlog

from .errors import CheckpointError, LeaseLost, StoreRegressed
from .model import Lease, Renewal, RunId
from .steady import monotonic
from .store import Store

log = structlog.get_logger(__name__)

_MARGIN = 2 / 3  # of the term; the rest is for clocks that differ and for a stop that takes time


_SILENCE_S = 60.0  # of an event loop in which no tool runs that may take longer


class _Held:
    """A lease that is being kept."""

    __slots__ = ("confirmed", "error", "is_asked", "is_lost", "lease", "mail", "on_mail", "task")

    def __init__(
        self,
        lease: Lease,
        since: float,
        task: asyncio.Task[object],
        on_mail: Callable[[int], None] | None,
    ) -> None:
        self.lease = lease
        self.confirmed = since
        self.task = task
        self.on_mail = on_mail
        self.mail = -1  # unknown until the first renewal
        self.is_asked = False  # a renewal is under way, which knows how long it may take
        self.is_lost = False
        self.error: CheckpointError = LeaseLost(lease.run_id)

    def ends(self) -> float:
        return self.confirmed + self.lease.term_ms / 1000 * _MARGIN


class Heartbeat:
    """Renews all leases of a process every `interval_s`, in one call for each part of the store
    that can fail by itself: one that does not answer costs no lease of the others.

        async with Heartbeat(store) as heartbeat:
            async with heartbeat.held(claim.lease, on_mail=look) as lease:
                ...

    A lease counts as lost when a renewal says so, or when none has succeeded for two thirds of the
    term by the local monotonic clock, counted from before the last successful one was sent.

    With `spare`, which makes another client of the store, a thread renews in place of an event loop
    that something blocks, such as a tool that should have been a plain function; for a minute, and
    for as long as a tool that runs may take (`allowing`). A loop that is silent for longer will
    hardly come back, and others should have its runs. What keeps even threads from running, one
    call into C that never lets go of the interpreter, starves the thread too.
    """

    def __init__(
        self, store: Store, *, interval_s: float = 1.0, spare: Callable[[], Store] | None = None
    ) -> None:
        self._store = store
        self._interval_s = interval_s
        self._spare = _Spare(self, spare) if spare else None
        self._held: dict[RunId, _Held] = {}
        self._allowed: list[float] = []
        self._seen_alive = monotonic()
        self._renewals: set[asyncio.Task[None]] = set()
        self._has_new = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._beat: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Heartbeat:
        await self._tasks.__aenter__()
        self._beat = self._tasks.create_task(self._run(), name="heartbeat")
        if self._spare:
            self._spare.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._beat is not None
        self._beat.cancel()
        for renewal in self._renewals:
            renewal.cancel()
        try:
            await self._tasks.__aexit__(kind, error, traceback)
        finally:
            if self._spare:
                await asyncio.to_thread(self._spare.stop)

    @asynccontextmanager
    async def held(
        self,
        lease: Lease,
        *,
        on_mail: Callable[[int], None] | None = None,
        since: float | None = None,
        mail: int | None = None,
    ) -> AsyncIterator[Lease]:
        """Keep `lease` while the body runs in this task, and cancel the body once it is lost.

        `since` is the monotonic time before the claim was sent; without it, or if that is long
        ago, one renewal is awaited first. `on_mail` is called with the mail count whenever that
        grows, from `mail` on (default: from what the first renewal says).

        Raises LeaseLost in place of the cancellation that the loss caused, or StoreRegressed where
        the store has forgotten entries of the run. A cancellation from
        elsewhere passes through. The lease is not released at the end.
        """
        task = asyncio.current_task()
        assert task is not None
        held = _Held(lease, monotonic() if since is None else since, task, on_mail)
        is_old = monotonic() >= held.ends()
        if mail is not None:
            held.mail = mail
        if since is None or is_old:
            sent = monotonic()
            fate = (await self._store.renew([lease]))[lease.run_id]
            if fate.forgot:
                raise StoreRegressed(lease.run_id, *fate.forgot)
            if not fate.is_held:
                raise LeaseLost(lease.run_id)
            self._take(held, fate, sent)
        self._held[lease.run_id] = held
        self._has_new.set()
        if self._spare:
            self._spare.look()
        try:
            yield lease
        except asyncio.CancelledError:
            # uncancel() counts: above zero, somebody else wants this task to end as well.
            if held.is_lost and task.uncancel() == 0:
                raise held.error from None
            raise
        except BaseException:
            if held.is_lost:
                task.uncancel()
            raise
        finally:
            if self._held.get(lease.run_id) is held:
                del self._held[lease.run_id]
        if held.is_lost:
            task.uncancel()  # the body swallowed it
            raise held.error

    def let_go(self, lease: Lease) -> None:
        """Keep `lease` no longer: the caller is about to give it back.

        A renewal that is under way meanwhile must not mistake the return for a loss.
        """
        held = self._held.get(lease.run_id)
        if held is not None and held.lease == lease:
            del self._held[lease.run_id]

    @contextmanager
    def allowing(self, longest_s: float) -> Iterator[None]:
        """For a body that may rightly keep the event loop silent for so long."""
        self._allowed.append(longest_s)
        try:
            yield
        finally:
            self._allowed.remove(longest_s)

    def is_silent(self, now: float) -> bool:
        """Whether the event loop has been blocked for longer than anything in it may take. May be
        called from another thread."""
        return now - self._seen_alive > _SILENCE_S + max(self._allowed, default=0.0)

    def overdue(self, now: float) -> list[Lease]:
        """Leases whose renewal should have been sent by now, a time of the monotonic clock. May be
        called from another thread."""
        late = now - 2 * self._pause_s()
        return [h.lease for h in tuple(self._held.values()) if h.confirmed < late and not h.is_lost]

    def learn(self, fates: Mapping[RunId, Renewal], sent: float) -> None:
        """Take in what renewals by another hand came to."""
        for run_id, fate in fates.items():
            if held := self._held.get(run_id):
                self._take(held, fate, sent)

    @property
    def interval_s(self) -> float:
        """The longest pause between two renewals now."""
        return self._pause_s()

    def may_start(self, lease: Lease) -> bool:
        """Whether enough of the lease is left to start something that must not run twice."""
        held = self._held.get(lease.run_id)
        return (
            held is not None
            and held.lease == lease
            and not held.is_lost
            and monotonic() < held.ends()
        )

    def left_s(self, lease: Lease) -> float:
        """Seconds for which the lease is certain without another renewal; 0 if it is not held."""
        held = self._held.get(lease.run_id)
        if held is None or held.lease != lease or held.is_lost:
            return 0.0
        return max(0.0, held.ends() - monotonic())

    async def _run(self) -> None:
        beat = monotonic()
        while True:
            self._seen_alive = monotonic()
            planned = self._next(beat)
            try:
                async with asyncio.timeout(max(0.0, planned - monotonic())):
                    await self._has_new.wait()
                self._has_new.clear()  # its term may be shorter than the pause that we were in
                continue
            except TimeoutError:
                beat = monotonic()
            # Something blocked the loop: the leases may have run out, and still be ours. Nothing
            # new starts meanwhile (may_start), and the store knows whether anybody took them.
            grace_s = self._pause_s() if beat - planned > self._pause_s() else 0.0
            if not grace_s:
                self._give_up_expired()
            idle = {held.lease.run_id: held for held in self._kept() if not held.is_asked}
            for leases in self._store.apart([held.lease for held in idle.values()]):
                batch = [idle[lease.run_id] for lease in leases]
                for held in batch:
                    held.is_asked = True
                renewal = self._tasks.create_task(self._renew(batch, grace_s), name="renewal")
                self._renewals.add(renewal)
                renewal.add_done_callback(self._renewals.discard)

    def _next(self, beat: float) -> float:
        """When to look again: at the next beat, or when a lease's margin ends before it."""
        ends = (held.ends() for held in self._kept() if not held.is_asked)
        return min([beat + self._pause_s(), *ends])

    def _kept(self) -> list[_Held]:
        """Without those that are lost: their bodies may take a while to end, and nothing that the
        loop could do for them is left. Their ends are in the past, so it would spin."""
        return [held for held in tuple(self._held.values()) if not held.is_lost]

    def _pause_s(self) -> float:
        # Not only "a third of the shortest term", which the line says: a third leaves two more
        # chances before the lease runs out.
        shortest = min((held.lease.term_ms for held in self._kept()), default=0) / 3000
        return min(self._interval_s, shortest) if shortest else self._interval_s

    async def _renew(self, batch: list[_Held], grace_s: float) -> None:
        sent = monotonic()
        left_s = max(grace_s, min(held.ends() for held in batch) - sent)
        try:
            # No longer than a few beats: leases that come meanwhile want their renewal too.
            async with asyncio.timeout(max(0.0, min(left_s, 4 * self._pause_s()))):
                fates = await self._store.renew([held.lease for held in batch])
            for held in batch:
                self._take(held, fates[held.lease.run_id], sent)
        except TimeoutError:
            pass
        except CheckpointError as error:
            log.warning("lease.renewal_failed", reason=str(error), leases=len(batch))
        finally:
            for held in batch:
                held.is_asked = False
            self._give_up_expired()

    def _take(self, held: _Held, fate: Renewal, sent: float) -> None:
        if fate.forgot:
            self._lose(held, StoreRegressed(held.lease.run_id, *fate.forgot))
            return
        if not fate.is_held:
            why = "was taken over by another worker, or is gone from the store"
            self._lose(held, LeaseLost(held.lease.run_id, why))
            return
        held.confirmed = max(held.confirmed, sent)
        if fate.mail > held.mail:
            is_news = held.mail >= 0
            held.mail = fate.mail
            if is_news and held.on_mail is not None:
                held.on_mail(fate.mail)

    def _give_up_expired(self) -> None:
        now = monotonic()
        for held in list(self._held.values()):
            if now >= held.ends() and not held.is_asked:
                why = "could not keep its lease: the store did not answer in time"
                self._lose(held, LeaseLost(held.lease.run_id, why))

    def _lose(self, held: _Held, error: CheckpointError) -> None:
        if held.is_lost or self._held.get(held.lease.run_id) is not held:
            return
        held.is_lost = True
        held.error = error
        log.warning("lease.lost", run_id=held.lease.run_id, reason=str(error))
        held.task.cancel()


class _Spare:
    """A thread that renews what an event loop is late to renew, with a client of its own."""

    def __init__(self, heartbeat: Heartbeat, new_store: Callable[[], Store]) -> None:
        self._heartbeat, self._new_store = heartbeat, new_store
        self._is_over = False
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spare heartbeat", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Blocks until the thread is over."""
        self._is_over = True
        self._news.set()
        self._thread.join()

    def look(self) -> None:
        """A lease is new: its term may be shorter than the pause that the thread is in."""
        self._news.set()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            store: Store | None = None
            is_told = False
            try:
                while True:
                    self._news.wait(self._heartbeat.interval_s)
                    self._news.clear()
                    if self._is_over:
                        break
                    now = time.monotonic()
                    if self._heartbeat.is_silent(now):
                        if not is_told:
                            log.error(
                                "lease.loop_is_silent", leases=len(self._heartbeat.overdue(now))
                            )
                        is_told = True
                        continue
                    is_told = False
                    if leases := self._heartbeat.overdue(now):
                        store = store or self._new_store()
                        runner.run(self._renew(store, leases))
            finally:
                if store:
                    runner.run(store.aclose())

    async def _renew(self, store: Store, leases: list[Lease]) -> None:
        await asyncio.gather(*(self._renew_part(store, part) for part in store.apart(leases)))

    async def _renew_part(self, store: Store, leases: Sequence[Lease]) -> None:
        sent = monotonic()
        try:
            async with asyncio.timeout(self._heartbeat.interval_s * 2):
                fates = await store.renew(leases)
        except (CheckpointError, TimeoutError) as error:
            log.debug("lease.spare_renewal_failed", reason=str(error), leases=len(leases))
            return
        assert self._loop
        with suppress(RuntimeError):  # the loop is closed: nobody holds anything any more
            self._loop.call_soon_threadsafe(self._heartbeat.learn, fates, sent)
