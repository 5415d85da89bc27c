"""What a store holds: heads, entries, leases, requests and signals, all of opaque bytes.

Times are milliseconds since 1970 by the store's own clock, unless the name says otherwise.
"""

from __future__ import annotations

from typing import Literal, NewType

import msgspec

RunId = NewType("RunId", str)  # [A-Za-z0-9_-]{1,64}
Status = Literal["ready", "running", "waiting", "sleeping", "done", "error"]
CLOSED: tuple[Status, ...] = ("done", "error")
ParkedStatus = Literal["waiting", "sleeping"]  # of a run that was given back on purpose


class Entry(msgspec.Struct, frozen=True):
    """One transition in a run's journal. `seq` counts from 1 without gaps."""

    seq: int
    body: bytes
    chain: bytes  # hash over the previous entry's chain, the seq and the body


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The present of a run, of constant size: what lists show and commits check."""

    run_id: RunId
    seq: int
    chain: bytes
    status: Status
    snapshot: bytes  # the writer's small control state after entry `seq`
    due_ms: int | None  # when a worker should look at the run; None: not on its own
    token: int  # how many times the run was claimed
    owner: str  # the last claimer
    lease_until_ms: int  # 0: not held
    recoveries: int  # takeovers from a dead owner since the last progress
    mail: int  # how many signals the run was ever sent
    created_ms: int
    updated_ms: int


class Lease(msgspec.Struct, frozen=True):
    """The right to write a run. Two leases are the same only if token and nonce are."""

    run_id: RunId
    token: int
    nonce: str
    owner: str
    term_ms: int


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A granted lease, with the run's head at that moment."""

    lease: Lease
    head: Head
    is_takeover: bool  # the owner before let its lease run out
    server_ms: int


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a run waits for a person to decide.

    A decision counts only if it names `digest`. From `expires_ms` on (0: never) no decision is
    taken but the expiry itself; verbs that need it are refused before `unlock_ms` (0: not locked).
    With a `quorum` above 1 so many distinct voters must say the same; a veto needs one. Opening an
    id again replaces an open request and its votes, and leaves a decided one as it is.
    """

    ask_id: str
    digest: str
    body: bytes
    expires_ms: int = 0
    unlock_ms: int = 0
    quorum: int = 1


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A person's word on an Ask. The same `decision_id` again is the same decision."""

    decision_id: str
    verb: str
    by: str
    digest: str
    body: bytes  # goes to the run's mailbox
    needs_unlock: bool = False
    voter: str = ""  # equal for the same person, however they write their name; '': `by`
    is_veto: bool = False  # decides alone, whatever the quorum
    is_expiry: bool = False  # time's own word: taken from `expires_ms` on, and not before


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """A decision as it was recorded."""

    ask_id: str
    verb: str
    by: str
    at_ms: int
    is_repeat: bool  # this decision id had been recorded before
    missing: int = 0  # how many more must say the same; 0: it is decided


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """One of several decisions that a quorum is made of."""

    verb: str
    by: str
    at_ms: int


class Comment(msgspec.Struct, frozen=True, kw_only=True):
    """Words about a request: they decide nothing."""

    by: str
    at_ms: int
    text: str


class AskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An Ask as it is stored, with its ruling where there is one, and what people said of it."""

    run_id: RunId
    ask: Ask
    opened_ms: int
    ruling: Ruling | None = None
    votes: tuple[Vote, ...] = ()
    comments: tuple[Comment, ...] = ()
    claimed_by: str = ""  # who said that they look at it; keeps nobody else from deciding
    claimed_ms: int = 0


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """What the outside says to a run. It waits in the mailbox until a commit consumes it.

    The mailbox id of a decision is 'decision:' + ask id, that of a vote begins with 'vote:';
    `number` orders a run's mailbox.
    """

    signal_id: str
    number: int
    at_ms: int
    body: bytes


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody outside is to be told, from a time on, in a partition's outbox.

    It becomes true with the commit that carries it, and is taken at least once.
    """

    notice_id: str  # the same in every delivery
    run_id: RunId
    body: bytes
    at_ms: int = 0  # not before; 0: at once
    channel: str = ""  # who is to be told; '': everybody
    tries: int = 0  # how often it was told in vain
    stored: bytes = b""  # of one that was taken: how it stands in the outbox


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One or more entries, and everything that must become true with them.

    The op id is chosen once per commit; a repeat with the same op id changes nothing.
    """

    op: str
    expected_seq: int
    previous_chain: bytes
    bodies: tuple[bytes, ...]
    status: Status
    snapshot: bytes
    due_ms: int | None = (
        None  # used when the commit releases; a held run is due when its lease ends
    )
    release: bool = False  # give the lease back in the same step (always so when status is closed)
    opened: tuple[Ask, ...] = ()
    withdrawn: tuple[str, ...] = ()  # ask ids that no longer wait, without a ruling
    consumed: tuple[str, ...] = ()  # signal ids taken from the mailbox
    seen_mail: int = (
        0  # the highest signal number the writer has read; newer mail makes a released run due now
    )
    outbox: tuple[Notice, ...] = ()
    is_progress: bool = True  # resets `recoveries`
    # Something that must not happen twice is about to start on its word: it is confirmed by as
    # many copies as the store's durability says.
    is_critical: bool = False
    keep_ms: int | None = None  # how long a run that this closes is kept; None: until it is purged


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """An acknowledged commit: where the journal ends now."""

    seq: int
    chain: bytes
    server_ms: int
    mail: int
    was_repeat: bool  # the first answer had been lost


class Tidied(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of tidying did: runs folded into one value, and runs whose time was over."""

    folded: tuple[RunId, ...] = ()
    expired: tuple[RunId, ...] = ()
    failed: tuple[RunId, ...] = ()  # that cannot be read; looked at again later


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of one lease in a renewal: held, with the mail count, or lost.

    `forgot` holds the seq that the store had acknowledged and the lower one where the journal ends
    now: it has lost entries.
    """

    is_held: bool
    mail: int
    forgot: tuple[int, int] | None = None
