"""The contract of a store: what every implementation promises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from .model import (
    AskRecord,
    Claim,
    Commit,
    Committed,
    Decision,
    Entry,
    Head,
    Lease,
    Notice,
    ParkedStatus,
    Renewal,
    Ruling,
    RunId,
    Signal,
    Status,
    Tidied,
)
from .schedule import Schedule


@runtime_checkable
class Retention(Protocol):
    """What a store may be able to do about runs that are over. The contract holds it to this."""

    async def tidy(self, *, limit: int = 16) -> Tidied:
        """Fold finished runs and remove what expired ones left behind, at most `limit` a partition.

        A folded run reads as before, with its chain. Any number of callers may do it at once.
        """

    async def purge(
        self, run_id: RunId, *, is_forced: bool = False, ended_before_ms: int | None = None
    ) -> bool:
        """Remove every trace of a run. False: there was none, or it ended too late.

        Raises RunOpen for one that is not finished, unless `is_forced`; its worker then meets
        StoreRegressed.
        """

    async def finished(self, *, before_ms: int) -> Sequence[Head]:
        """Heads of runs that ended before this time, oldest first."""


class Store(Schedule, Protocol):
    """Runs as fenced, append-only journals.

    Promises: a commit is applied whole or not at all, once per op id; only the holder of the
    newest lease (token and nonce, by equality) commits; entries have dense seqs and a hash chain;
    a closed run accepts nothing; indexes, mailbox and outbox change in the journal's step.
    A lost answer is repeated with the same op id, so a method that returns has happened once.
    Every method may raise StoreUnavailable, and BadRunId before a key is touched.
    """

    async def create(
        self,
        run_id: RunId,
        *,
        op: str,
        body: bytes,
        snapshot: bytes,
        following: Sequence[bytes] = (),
        is_due: bool = True,
        is_needed: bool = False,
    ) -> bool:
        """Store a new run with its first entry; it is due now. False: it existed with the same op.

        `following` are further entries, under the new run's own chain, in the same step. Not due:
        the run sleeps until it is claimed, or sent a signal. Near its memory limit a store takes
        only those runs without which one under way cannot finish (`is_needed`).

        Raises RunExists if the id began with another op, NotDurable, or StoreFull.
        """

    async def claim(self, run_id: RunId, *, owner: str, nonce: str, term_ms: int) -> Claim:
        """Take the lease if nobody holds it. A repeat with the stored nonce gives the same lease.

        Raises RunBusy, RunClosed or RunNotFound.
        """

    async def renew(self, leases: Sequence[Lease]) -> Mapping[RunId, Renewal]:
        """Move the end of each lease to now + term, all in one call. A lost one is not an error."""

    def apart(self, leases: Sequence[Lease]) -> Sequence[Sequence[Lease]]:
        """The leases in groups that fail apart: one whose part of the store does not answer keeps
        no other group from its renewal."""

    async def release(
        self, lease: Lease, *, due_ms: int | None, status: ParkedStatus | None = None
    ) -> None:
        """Give the lease back without a commit. A lease that is no longer held is left alone.

        The run then has this `status`, or the one from before it was claimed.
        """

    async def commit(self, lease: Lease, commit: Commit) -> Committed:
        """Append entries and apply the rest of the commit, if the lease is the newest.

        Order of checks: repeat of the op, token and nonce, seq, chain, closed, then the writes.
        Raises LeaseLost, StoreRegressed, StoreDiverged, RunClosed, EntryTooLarge, StoreUnavailable
        (`applied` None when unknown: no answer came within the lease's margin), and NotDurable,
        which carries the outcome: applied, and not confirmed by the copies that were asked for.
        """

    async def signal(self, run_id: RunId, *, signal_id: str, body: bytes) -> bool:
        """Put a signal in the run's mailbox; an unheld run is due now. False: it waits already.

        Raises RunNotFound or RunClosed.
        """

    async def decide(self, run_id: RunId, ask_id: str, decision: Decision) -> Ruling:
        """Record the first decision on a request, put it in the mailbox, make the run due now.

        Where the request has a quorum it is one vote: mailed too, and the ruling says how many are
        `missing`; the vote that completes it is the decision. A veto decides alone. An expiry is a
        decision that is taken from the deadline on; every other one is refused from then on.

        Raises AskNotFound, AlreadyDecided, AlreadyVoted, DecisionStale, AskExpired, AskNotExpired,
        AskLocked, RunClosed or RunNotFound; and NotDurable, after which the same decision may be
        sent again until it is confirmed.
        """

    async def comment(self, run_id: RunId, ask_id: str, *, by: str, text: str) -> None:
        """Keep words with an open request. They decide nothing and wake nobody.

        Raises AskNotFound, AlreadyDecided, RunClosed, RunNotFound, or StoreUsageError for too many.
        """

    async def claim_ask(self, run_id: RunId, ask_id: str, *, by: str, voter: str = "") -> None:
        """Say that `by` looks at an open request: shown to others, who may still decide it.

        Raises AskClaimed where another `voter` did, and what `comment` raises.
        """

    async def release_ask(self, run_id: RunId, ask_id: str, *, by: str, voter: str = "") -> None:
        """Take a claim back. Raises what `claim_ask` raises; no claim is no error."""

    async def mailbox(self, run_id: RunId) -> Sequence[Signal]:
        """Signals not yet consumed, by number."""

    async def head(self, run_id: RunId) -> Head:
        """The run's head. Raises RunNotFound."""

    async def journal(self, run_id: RunId, *, after: int = 0) -> Sequence[Entry]:
        """Entries above `after`, their chain verified (from the genesis or the entry `after`).

        Raises RunNotFound, or CorruptEntry naming the seq: changed bytes, a gap, a missing tail.
        """

    async def asks(
        self, run_id: RunId | None = None, *, is_open: bool = True
    ) -> Sequence[AskRecord]:
        """Requests of one run or of all, oldest first; with is_open False the decided ones too."""

    async def runs(self, *, status: Status | None = None, limit: int = 50) -> Sequence[Head]:
        """Heads, newest first."""

    async def due(self, *, limit: int = 16) -> Sequence[RunId]:
        """Runs that a worker should look at now, the longest overdue first. As for `agenda`, a
        partition whose index holds something else is left out."""

    async def take_notices(self, *, limit: int = 32, hold_ms: int = 60_000) -> Sequence[Notice]:
        """Notices whose time has come, the longest overdue first, at most `limit` a partition.

        Nobody else is given them for `hold_ms`; what is not settled by then is given again.
        """

    async def settle_notice(
        self, notice: Notice, *, again: Sequence[tuple[Notice, int]] = ()
    ) -> bool:
        """Take a notice out of the outbox, and put others of its run in its place, each after a
        delay in ms. False: it was settled before, and nothing has changed."""

    async def report_orphan(self, run_id: RunId, body: bytes) -> None:
        """File what a fenced worker saw: evidence for a person, never state. Keeps the last 32."""

    async def orphans(self, run_id: RunId) -> Sequence[bytes]:
        """Orphan reports, oldest first."""

    async def publish(self, run_id: RunId, payloads: Iterable[bytes]) -> None:
        """Add to the run's live stream: capped, expiring, never the truth. Loss is no error."""

    def live(self, run_id: RunId, *, after: str = "$") -> AsyncIterator[tuple[str, bytes]]:
        """Live payloads with their ids as they come, for as long as the caller listens."""

    async def put_blob(self, run_id: RunId, data: bytes) -> str:
        """Keep bytes by digest (sha256, hex), once. They may come before their run: without it they
        are kept for a day."""

    async def get_blob(self, run_id: RunId, digest: str) -> bytes | None:
        """Bytes by digest, or None."""

    async def now_ms(self) -> int:
        """The store's clock."""

    async def facts(self) -> Mapping[str, Any]:
        """What the server says of itself, for `doctor`: version, persistence, eviction …"""

    async def aclose(self) -> None:
        """Close connections. What was acknowledged stays."""
