"""A run in the hands of one worker: what is on record, what is about to be, and its mail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from checkpoints.errors import CheckpointError, NotDurable, StoreUnavailable
from checkpoints.model import Ask, Claim, Comment, Commit, Committed, Status
from checkpoints.shield import landed_with
from fsm_agent.context.window import Window
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.content import Image
from fsm_agent.run.delta import (
    AnyDelta,
    Asked,
    AskedOn,
    Assessed,
    Began,
    Charged,
    Cut,
    Intended,
    Resumed,
    Settled,
    Signed,
    Summarised,
    Versioned,
    Withheld,
)
from fsm_agent.run.event import EntryEvent, ParkedEvent
from fsm_agent.run.record import Record, Run, moved, taken
from fsm_agent.run.signal import (
    AnySignal,
    CancelRequested,
    Decided,
    Question,
    decode_signal,
    encode,
)
from fsm_agent.run.state import State, Trigger, advance

from .deps import Deps
from .notices import Opened, notices
from .outcome import Park

MAIL_RETRY_S = 0.5  # after a mailbox that could not be read
# Not redacted: a signature is what a provider gave for exactly these words, and nobody reads it;
# the others hold numbers and ids of ours.
_UNREAD = (Signed, Began, Intended, Assessed, Charged, Cut)


class Interrupted(Exception):
    """A cancel request came in while something was under way."""


class Session:
    """A claimed run. Entries are staged, and become true together when they are flushed.

    `run` is the run with everything staged; nothing outside may be done on its word before
    `flush` has returned. After an exception of `flush` the session is over: the store, not this
    value, knows the run.
    """

    def __init__(
        self,
        run: Run,
        claim: Claim,
        chain: bytes,
        deps: Deps,
        window: Window,
        *,
        keep_s: float | None = None,
    ) -> None:
        self.run = run
        self._keep_s = deps.settings.keep_s if keep_s is None else keep_s
        self.versioned = run.versioned  # the code at work, and who accepted it
        self.window = window
        self.lease = claim.lease
        self.cancel: CancelRequested | None = None
        self.signals: dict[str, AnySignal] = {}
        self.comments: dict[str, tuple[Comment, ...]] = {}  # by request, of those decided
        self.pictures: dict[str, Image | None] = {}  # of the window, by digest; None: not there
        self.mailed_ms: dict[str, int] = {}  # when each was sent, by the store's clock
        # Calls that a worker before us started: only they can have a gap.
        self.inherited = frozenset(c.call.call_id for c in run.calls if c.phase == "started")
        self.on_mail: Callable[[], None] | None = None
        self._deps = deps
        self._seq, self._chain = run.seq, chain
        self._staged: list[EntryEvent] = []
        self._opened: list[Ask] = []
        self._to_tell: list[Opened] = []
        self._consumed: list[str] = []
        self._mail = claim.head.mail
        self._seen_mail = 0
        self._announced = asyncio.Event()
        self._working: asyncio.Task[object] | None = None
        self._interrupting = False
        self._server_ms, self._measured_s = claim.server_ms, deps.clock.steady_s()
        resumed = Resumed(claim.lease.owner, claim.lease.token, claim.is_takeover, claim.server_ms)
        # Who works here and with what code: recorded with the first thing that there is to record.
        self._opening: tuple[AnyDelta, ...] = (resumed,)

    def opens_with(self, versioned: Versioned) -> None:
        """Other code than before works here."""
        self.versioned = versioned
        self._opening = (*self._opening, versioned)

    @property
    def has_acceptance(self) -> bool:
        """Whether somebody's word has to go on record, even if nothing else happens."""
        return any(isinstance(fact, Versioned) and fact.by for fact in self._opening)

    # -- time ---------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The store's clock, carried on by the steady one: a jump of ours does not move it."""
        passed_s = self._deps.clock.steady_s() - self._measured_s
        return self._server_ms + int(passed_s * 1000)

    # -- the journal --------------------------------------------------------------------------

    def stage(self, trigger: Trigger, *deltas: AnyDelta) -> None:
        """Take an arrow in memory. Raises IllegalTransition, and then nothing was staged."""
        deltas = tuple(d if isinstance(d, _UNREAD) else self._deps.clean(d) for d in deltas)
        record = Record(trigger, self.now_ms(), (*self._opening, *deltas))
        after = taken(self.run, record)
        state = advance(self.run.state, trigger, after)
        self._opening = ()
        self.run = moved(after, record, state)
        self._staged.append(EntryEvent(self.run.run_id, self.run.seq, state, record))

    def ask(self, asked: Asked, question: Question) -> Asked:
        """Put a request for a person into the next flush; the delta goes into an entry."""
        ask = Ask(
            ask_id=asked.ask_id,
            digest=asked.digest,
            body=encode(self._deps.clean(question)),
            expires_ms=asked.expires_ms,
            unlock_ms=asked.unlock_ms,
            quorum=asked.quorum if isinstance(asked, AskedOn) else 1,
        )
        self._opened.append(ask)
        self._to_tell.append(Opened(asked, question))
        return asked

    def consume(self, signal_id: str) -> None:
        """Take a signal out of the mailbox with the next entry that is flushed."""
        self.signals.pop(signal_id, None)
        self._consumed.append(signal_id)

    async def flush(self, park: Park | None = None, *, is_critical: bool = False) -> None:
        """Make everything staged true in one commit; with `park`, give the run back in it.

        Raises LeaseLost, StoreDiverged or StoreUnavailable: nothing may be done on the word of
        what was staged. NotDurable is another matter: it is on record, the session goes on, and
        only what must not happen twice (`is_critical`) may not be done on its word yet.
        """
        if park or self.run.is_over:
            self._deps.heartbeat.let_go(self.lease)
        if self._staged:
            await self._commit(park, is_critical)
        elif park:
            # Nothing new to say, such as that a child run waits. A run that nobody has begun yet,
            # in the line of its thread, is as ready as before.
            status = park.status if self.run.begun_ms else None
            await self._deps.store.release(self.lease, due_ms=park.wake_ms, status=status)
        if park:
            asks = tuple(ask.ask_id for ask in self.run.open_asks)
            self._deps.emit(ParkedEvent(self.run.run_id, park.status, asks, park.wake_ms))

    async def _commit(self, park: Park | None, is_critical: bool) -> None:
        tell = self._deps.on_notices
        told = notices(self.run, self._to_tell, self.now_ms()) if tell else ()
        commit = Commit(
            op=self._deps.new_id(),
            expected_seq=self._seq,
            previous_chain=self._chain,
            bodies=tuple(codec.encode(event.record) for event in self._staged),
            status=self._status(park),
            snapshot=codec.encode_snapshot(snapshot_of(self.run)),
            due_ms=park.wake_ms if park else None,
            release=park is not None,
            opened=tuple(self._opened),
            consumed=tuple(self._consumed),
            seen_mail=self._seen_mail,
            outbox=told,
            is_progress=any(_is_progress(event.record) for event in self._staged),
            is_critical=is_critical,
            keep_ms=self._keep_ms(),
        )
        try:
            committed = await self._deps.store.commit(self.lease, commit)
        except NotDurable as error:
            self._take_committed(error.committed)
            raise
        except asyncio.CancelledError as error:
            # It may have landed: what a stop still puts on record goes on from there.
            if landed := landed_with(error):
                self._take_committed(landed)
            raise
        finally:
            if told and tell:
                tell()  # in vain, where the commit was refused
        self._take_committed(committed)

    def _take_committed(self, committed: Committed) -> None:
        self._seq, self._chain = committed.seq, committed.chain
        self._mail = max(self._mail, committed.mail)
        if self.has_new_mail:
            self._announced.set()  # the commit heard of it before the next renewal would
        self._server_ms, self._measured_s = committed.server_ms, self._deps.clock.steady_s()
        events, self._staged = self._staged, []
        self._opened, self._consumed, self._to_tell = [], [], []
        for event in events:
            self._deps.emit(event)

    def _keep_ms(self) -> int | None:
        if self._keep_s is None or self.run.parent or not self.run.is_over:
            return None
        return max(1, int(self._keep_s * 1000))

    def _status(self, park: Park | None) -> Status:
        if self.run.state is State.DONE:
            return "done"
        if self.run.state is State.ERROR:
            return "error"
        return park.status if park else "running"

    @property
    def has_staged(self) -> bool:
        """Whether there is something that a flush would put on record."""
        return bool(self._staged)

    def unacknowledged(self) -> tuple[Settled, ...]:
        """Results that were staged and never acknowledged: what an orphan report is made of."""
        return tuple(
            delta
            for event in self._staged
            for delta in event.record.deltas
            if isinstance(delta, Settled)
        )

    def under_way(self) -> tuple[str, ...]:
        """Calls that this worker started and that have no result."""
        return tuple(
            call.call.call_id
            for call in self.run.calls
            if call.phase == "started" and call.call.call_id not in self.inherited
        )

    # -- mail ---------------------------------------------------------------------------------

    @property
    def has_new_mail(self) -> bool:
        return self._mail > self._seen_mail

    def announce_mail(self, mail: int) -> None:
        """The mailbox has grown; called by whoever hears of it first."""
        self._mail = max(self._mail, mail)
        self._announced.set()

    @asynccontextmanager
    async def reading_mail(self) -> AsyncIterator[None]:
        """Read mail while the body runs, as soon as it is announced."""
        reader = asyncio.create_task(self._read_announced(), name=f"mail of {self.run.run_id}")
        try:
            yield
        finally:
            reader.cancel()
            await asyncio.wait([reader])

    async def _read_announced(self) -> None:
        while True:
            await self._announced.wait()
            self._announced.clear()
            if not self.has_new_mail:
                continue
            try:
                await self.read_mail()
            except StoreUnavailable:
                # Perhaps it says cancel, and the model may talk for minutes: look again soon.
                await self._deps.clock.sleep(MAIL_RETRY_S)
                self._announced.set()
            except (CheckpointError, CorruptRecord):
                continue  # met again by the loop or the next commit, which know what to do

    async def read_mail(self) -> None:
        """Read what waits in the mailbox, and interrupt the work under way if it says cancel."""
        seen = self._mail
        for signal in await self._deps.store.mailbox(self.lease.run_id):
            seen = max(seen, signal.number)
            if signal.signal_id in self._consumed:
                continue
            said = decode_signal(signal.body)
            self.signals[signal.signal_id] = said
            self.mailed_ms[signal.signal_id] = signal.at_ms
            if isinstance(said, CancelRequested) and not self.is_cut_off:
                self.cancel = said
        if any(isinstance(said, Decided) for said in self.signals.values()):
            records = await self._deps.store.asks(self.lease.run_id, is_open=False)
            self.comments = {record.ask.ask_id: record.comments for record in records}
        self._seen_mail = max(self._seen_mail, seen)
        self._mail = max(self._mail, seen)
        if self.is_cut_off and self._working:
            # Once: a second cancellation would pass for one from outside.
            if not self._interrupting:
                self._interrupting = True
                self._working.cancel()
        elif self.on_mail:
            self.on_mail()

    @property
    def is_cut_off(self) -> bool:
        """Whether somebody wants the run to end at once, and not only at its next commit point."""
        return self.cancel is not None and not self.cancel.is_graceful

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """For a body that starts something: no cancel request lets it begin, and one that says
        'now' ends it. Raises Interrupted then."""
        if self.cancel:
            raise Interrupted
        with self.finishing():
            yield

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """For a body that waits for what runs: only a cancel request that says 'now' ends it."""
        if self.is_cut_off:
            raise Interrupted
        task = self._working = asyncio.current_task()
        assert task
        try:
            yield
        except asyncio.CancelledError:
            # Only our own cancellation becomes Interrupted; one from outside goes through.
            if self._interrupting:
                self._interrupting = False
                if task.uncancel() == 0:
                    raise Interrupted from None
            raise
        finally:
            if self._interrupting:
                task.uncancel()  # the body swallowed it; the loop meets `cancel` next
            self._working, self._interrupting = None, False


def _is_progress(record: Record) -> bool:
    """Whether an entry is more than another try: a crash loop makes only tries."""
    if record.trigger is Trigger.BEGAN:
        return any(isinstance(delta, Summarised) for delta in record.deltas)
    tries = (Intended, Resumed, Withheld, Versioned)
    return not all(isinstance(delta, tries) for delta in record.deltas)


def snapshot_of(run: Run) -> codec.Snapshot:
    """What lists show of the run."""
    ending = run.answer.text if run.answer else run.failure.message if run.failure else ""
    return codec.Snapshot(
        agent=run.agent,
        title=_first_line(run.task),
        state=run.state,
        turns=run.turns,
        spent_tokens=run.spent_tokens,
        asks=tuple(ask.ask_id for ask in run.open_asks),
        ending=_first_line(ending),
        parent=run.parent,
        children=() if run.is_over else run.children,
        tenant=run.filed.tenant,
        priority=run.filed.priority,
        thread=run.filed.thread,
    )


def _first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= 80 else line[:79] + "…"
