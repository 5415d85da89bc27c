"""Every exception of this package, by who must act.

CheckpointError
├── StoreUsageError        the caller: change the call
│   ├── BadRunId           an id that is not [A-Za-z0-9_-]{1,64}
│   ├── BadStoreUrl        a store address that cannot be read
│   ├── RunNotFound        nothing is stored under this id
│   ├── RunExists          the id is taken by a run with another beginning
│   ├── RunClosed          the run has ended and takes nothing more
│   ├── ThreadBusy         another run of the thread is active, and this one may not wait
│   ├── RunOpen            the run has not ended
│   ├── EntryTooLarge      a commit above the size cap
│   └── MissingKey         stored bytes that are encrypted with a key that is not here
├── DecisionRefused        the person: look at the request again
│   ├── AskNotFound        no such request; carries the ids that are open
│   ├── AlreadyDecided     somebody was first; carries who, when and what
│   ├── DecisionStale      the digest is not that of what was shown
│   ├── AlreadyVoted       this person has spoken, and others are needed
│   ├── AskExpired         the deadline has passed
│   ├── AskNotExpired      the deadline has not passed
│   ├── AskClaimed         somebody else looks at it
│   └── AskLocked          too early for this verb; carries the time of unlocking
├── RunBusy                nobody: another worker holds the lease until `until_ms`
├── LeaseLost              nobody: another worker holds the run now
├── StoreDiverged          an operator: the store is not what this worker wrote
│   ├── StoreRegressed     the store forgot what it had acknowledged
│   └── CorruptEntry       an entry's chain hash does not match its bytes
├── NotDurable             nobody yet: applied, and not on as many copies as were asked for
└── StoreUnavailable       nobody yet: the store cannot be reached or refuses for now
    └── StoreFull          an operator: near its memory limit it takes no new runs
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class CheckpointError(Exception):
    """The root of this package's errors."""


class StoreUsageError(CheckpointError):
    """The call cannot succeed as it was made."""


class BadRunId(StoreUsageError):
    """An id that may not become part of a key."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"{run_id[:80]!r} is not a run id. Use 1 to 64 letters, digits, '-' or '_'."
        )
        self.run_id = run_id


class BadStoreUrl(StoreUsageError):
    """A store address that cannot be read."""


class RunNotFound(StoreUsageError):
    """Nothing is stored under this run id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run is named {run_id!r} in this store.")
        self.run_id = run_id


class RunExists(StoreUsageError):
    """The run id is taken by a run that began in another way."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"a run named {run_id!r} exists already and began with another input.")
        self.run_id = run_id


class RunClosed(StoreUsageError):
    """The run has ended: nothing is added to it, ever."""

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(f"run {run_id!r} has ended ({status}) and takes nothing more.")
        self.run_id, self.status = run_id, status


class RunOpen(StoreUsageError):
    """The run has not ended, and only a finished one may be removed."""

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(f"run {run_id!r} is not finished ({status}). Cancel it first.")
        self.run_id, self.status = run_id, status


class ThreadBusy(StoreUsageError):
    """Another run of the thread is not over yet, and this one was not to wait, or has no room."""

    def __init__(self, thread: str, active: str, *, is_full: bool = False) -> None:
        self.thread, self.active = thread, active
        if is_full:
            super().__init__(f"too many runs of thread {thread[:80]!r} wait already.")
            return
        super().__init__(
            f"thread {thread[:80]!r} is busy with run {active!r}. Wait for its end, or start with"
            " on_busy 'queue' or 'interrupt'."
        )


class EntryTooLarge(StoreUsageError):
    """A commit above the size cap."""


class MissingKey(StoreUsageError):
    """Encrypted bytes whose key this process was not given."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. Give its key: FSM_AGENT_KEYS=ID:BASE64 or a file that it names.")


class DecisionRefused(CheckpointError):
    """A decision that was not recorded, with the reason."""


class AskNotFound(DecisionRefused):
    """No request has this id in this run."""

    def __init__(self, run_id: str, ask_id: str, open_ids: Iterable[str]) -> None:
        self.run_id, self.ask_id, self.open_ids = run_id, ask_id, tuple(open_ids)
        known = ", ".join(self.open_ids) or "none"
        super().__init__(f"run {run_id!r} has no request {ask_id!r}. Open requests: {known}.")


class AlreadyDecided(DecisionRefused):
    """Another decision was recorded first. Times are the store's, in ms since 1970."""

    def __init__(self, ask_id: str, verb: str, by: str, at_ms: int) -> None:
        self.ask_id, self.verb, self.by, self.at_ms = ask_id, verb, by, at_ms
        super().__init__(f"request {ask_id!r} was already decided: {verb} by {by}.")


class DecisionStale(DecisionRefused):
    """The digest of the decision is not the digest of what is asked."""

    def __init__(self, ask_id: str, digest: str) -> None:
        self.ask_id, self.digest = ask_id, digest
        super().__init__(
            f"request {ask_id!r} now has the hash {digest[:8]}…, not the one you named. "
            "Look at it again before deciding."
        )


class AskExpired(DecisionRefused):
    """The deadline of the request has passed by the store's clock."""

    def __init__(self, ask_id: str, expires_ms: int) -> None:
        self.ask_id, self.expires_ms = ask_id, expires_ms
        super().__init__(f"request {ask_id!r} has expired.")


class AskNotExpired(DecisionRefused):
    """The expiry of a request came before its deadline by the store's clock (0: it has none)."""

    def __init__(self, ask_id: str, expires_ms: int) -> None:
        self.ask_id, self.expires_ms = ask_id, expires_ms
        super().__init__(f"request {ask_id!r} has not expired yet.")


class AlreadyVoted(DecisionRefused):
    """This person's word on the request is on record already, and others are needed."""

    def __init__(self, ask_id: str, verb: str, by: str, at_ms: int, missing: int) -> None:
        self.ask_id, self.verb, self.by, self.at_ms = ask_id, verb, by, at_ms
        self.missing = missing
        super().__init__(
            f"request {ask_id!r} has the word of {by} already ({verb}). "
            f"It needs {missing} more {'person' if missing == 1 else 'people'}."
        )


class AskClaimed(DecisionRefused):
    """Somebody else said before that they look at the request."""

    def __init__(self, ask_id: str, by: str, at_ms: int) -> None:
        self.ask_id, self.by, self.at_ms = ask_id, by, at_ms
        super().__init__(f"request {ask_id!r} is claimed by {by}, who may release it.")


class AskLocked(DecisionRefused):
    """This verb may be used only from `unlock_ms` (the store's clock, ms since 1970)."""

    def __init__(self, ask_id: str, unlock_ms: int, now_ms: int) -> None:
        self.ask_id, self.unlock_ms = ask_id, unlock_ms
        wait_s = max(1, round((unlock_ms - now_ms) / 1000))
        super().__init__(
            f"request {ask_id!r} is locked for another {wait_s} s: "
            "the old worker may still be at it."
        )


class RunBusy(CheckpointError):
    """Another worker holds the run until `until_ms` (the store's clock, ms since 1970)."""

    def __init__(self, run_id: str, owner: str, until_ms: int) -> None:
        self.run_id, self.owner, self.until_ms = run_id, owner, until_ms
        super().__init__(f"run {run_id!r} is held by worker {owner!r}.")


class LeaseLost(CheckpointError):
    """The run is no longer this worker's: stop at once, start nothing more."""

    def __init__(self, run_id: str, reason: str = "was taken over by another worker") -> None:
        self.run_id, self.reason = run_id, reason
        super().__init__(f"run {run_id!r} {reason}.")


class StoreDiverged(CheckpointError):
    """What is stored is not what this worker was told is stored."""


class StoreRegressed(StoreDiverged):
    """The store has forgotten entries that it had acknowledged."""

    def __init__(
        self, run_id: str, known_seq: int, stored_seq: int, *, is_other: bool = False
    ) -> None:
        """`is_other`: what is there now was begun anew under the same name."""
        self.run_id, self.known_seq, self.stored_seq = run_id, known_seq, stored_seq
        now = (
            "holds a run of that name that was begun anew" if is_other else f"ends at {stored_seq}"
        )
        unless = "" if stored_seq and not is_other else "Unless somebody has removed the run, it"
        super().__init__(
            f"run {run_id!r}: the store acknowledged entry {known_seq} and now {now}. "
            f"{unless or 'It'} has lost acknowledged writes; check its persistence and "
            "replication settings."
        )


class CorruptEntry(StoreDiverged):
    """An entry whose bytes do not match their chain hash, or that cannot be decoded."""

    def __init__(self, run_id: str, seq: int, detail: str) -> None:
        self.run_id, self.seq = run_id, seq
        super().__init__(f"run {run_id!r}: entry {seq} is corrupt ({detail}). Nothing was changed.")


class NotDurable(CheckpointError):
    """A write was applied, and the copies that the store's durability asks for did not confirm it.

    Nothing is lost: the run goes on from it. What must not happen twice may not be started on its
    word. `committed` is the outcome, where it was a commit.
    """

    def __init__(self, what: str, policy: str, shortfall: str, committed: Any = None) -> None:
        self.committed = committed
        super().__init__(
            f"{what} is stored, but not confirmed ({policy}): {shortfall}. "
            "Look at the replicas; the run goes on once they follow."
        )


class StoreUnavailable(CheckpointError):
    """The store cannot be reached, or refuses for now. `applied` is False, or None if unknown."""

    def __init__(self, message: str, *, applied: bool | None = False) -> None:
        self.applied = applied
        super().__init__(message)


class StoreFull(StoreUnavailable):
    """The store is near its memory limit: runs under way may finish, new ones are refused."""

    def __init__(self, address: str, used_bytes: int, limit_bytes: int) -> None:
        self.used_bytes, self.limit_bytes = used_bytes, limit_bytes
        super().__init__(
            f"the store at {address} uses {used_bytes >> 20} of {limit_bytes >> 20} MiB and takes "
            "no new runs, so that those under way can finish. Raise maxmemory, or remove finished "
            "runs: fsm-agent prune.",
            applied=False,
        )
