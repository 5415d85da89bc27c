"""What the outside says to runs: signals, requests and decisions."""

from __future__ import annotations

from collections.abc import (
    Sequence,
)

import structlog

from . import answers
from .calls import Calls
from .errors import (
    AlreadyDecided,
    AlreadyVoted,
    AskClaimed,
    AskExpired,
    AskLocked,
    AskNotExpired,
    AskNotFound,
    DecisionStale,
    RunClosed,
    StoreDiverged,
    StoreUsageError,
)
from .model import (
    AskRecord,
    Decision,
    Ruling,
    RunId,
    Signal,
)
from .together import together

log = structlog.get_logger(__name__)

MOST_COMMENTS = 100  # on one request
_FIELDS = (b"q", b"r", b"v", b"w", b"c")  # of a request in the asks hash


class People(Calls):
    """Mailboxes and requests."""

    async def signal(self, run_id: RunId, *, signal_id: str, body: bytes) -> bool:
        """See Store."""
        keys = self._of(run_id)
        self._check_sizes((body,), b"")
        reply = await self._script(
            "signal",
            (keys.head, keys.mailbox, keys.marks, keys.partition.due),
            *(run_id, signal_id, self._new_mark()),
            self._codec.pack(run_id, answers.mail_place(signal_id), body),
        )
        match reply[0]:
            case b"NONE":
                raise self._absent(run_id)
            case b"CLOSED":
                raise RunClosed(run_id, reply[1].decode())
        return reply[0] == b"OK"

    async def decide(self, run_id: RunId, ask_id: str, decision: Decision) -> Ruling:
        """See Store."""
        keys = self._of(run_id)
        self._check_sizes((decision.body,), b"")
        part = keys.partition
        # A person is told 'saved' once it is: their word is confirmed whatever the policy is for.
        reply, short, _ = await self._written(
            "decide",
            (keys.head, keys.asks, keys.mailbox, part.due, part.open_asks, part.ruled_asks),
            (
                *(run_id, ask_id, decision.decision_id, decision.verb, decision.by),
                decision.digest,
                self._codec.pack(run_id, f"decision {ask_id}", decision.body),
                *(int(decision.needs_unlock), self._new_mark()),
                *(decision.voter or decision.by, int(decision.is_veto), int(decision.is_expiry)),
            ),
            mark=part.mark,
            is_critical=not decision.is_expiry,
        )
        match reply[0]:
            case b"NONE":
                raise self._absent(run_id)
            case b"CLOSED":
                raise RunClosed(run_id, reply[1].decode())
            case b"MISSING":
                raise AskNotFound(run_id, ask_id, (item.decode() for item in reply[1:]))
            case b"EXPIRED":
                raise AskExpired(ask_id, int(reply[1]))
            case b"EARLY":
                raise AskNotExpired(ask_id, int(reply[1]))
            case b"STALE":
                raise DecisionStale(ask_id, reply[1].decode())
            case b"LOCKED":
                raise AskLocked(ask_id, int(reply[1]), int(reply[2]))
        at_ms, verb, by = int(reply[1]), reply[2].decode(), reply[3].decode()
        missing = int(reply[4]) if len(reply) > 4 else 0
        if reply[0] == b"DECIDED":
            raise AlreadyDecided(ask_id, verb, by, at_ms)
        if reply[0] == b"SAME":
            raise AlreadyVoted(ask_id, verb, by, at_ms, missing)
        if short:
            raise self._not_durable(f"the decision on {ask_id!r}", short)
        return Ruling(
            ask_id=ask_id,
            verb=verb,
            by=by,
            at_ms=at_ms,
            is_repeat=reply[0] in (b"REPEAT", b"REVOTED"),
            missing=missing,
        )

    async def comment(self, run_id: RunId, ask_id: str, *, by: str, text: str) -> None:
        """See Store."""
        self._check_sizes((text.encode(),), b"")
        await self._note(run_id, ask_id, "comment", by, by, text)

    async def claim_ask(self, run_id: RunId, ask_id: str, *, by: str, voter: str = "") -> None:
        """See Store."""
        await self._note(run_id, ask_id, "claim", by, voter or by, "")

    async def release_ask(self, run_id: RunId, ask_id: str, *, by: str, voter: str = "") -> None:
        """See Store."""
        await self._note(run_id, ask_id, "release", by, voter or by, "")

    async def _note(
        self, run_id: RunId, ask_id: str, kind: str, by: str, voter: str, text: str
    ) -> None:
        keys = self._of(run_id)
        reply = await self._script(
            "note",
            (keys.head, keys.asks),
            *(run_id, ask_id, kind, by, voter),
            self._codec.pack(run_id, f"comment {ask_id}", text.encode()),
            *(self._new_mark(), MOST_COMMENTS),
        )
        match reply[0]:
            case b"NONE":
                raise self._absent(run_id)
            case b"CLOSED":
                raise RunClosed(run_id, reply[1].decode())
            case b"MISSING":
                raise AskNotFound(run_id, ask_id, (item.decode() for item in reply[1:]))
            case b"DECIDED":
                raise AlreadyDecided(ask_id, reply[2].decode(), reply[3].decode(), int(reply[1]))
            case b"HELD":
                raise AskClaimed(ask_id, reply[2].decode(), int(reply[1]))
            case b"FULL":
                raise StoreUsageError(f"request {ask_id!r} has {MOST_COMMENTS} comments already.")

    async def mailbox(self, run_id: RunId) -> Sequence[Signal]:
        """See Store."""
        box = await self._read("HGETALL", self._of(run_id).mailbox)
        return answers.mail(run_id, box, self._codec.unpack)

    async def asks(
        self, run_id: RunId | None = None, *, is_open: bool = True
    ) -> Sequence[AskRecord]:
        """See Store. Of all runs, the decided ones are the last 1,000 of each partition."""
        found = await (self._all_asks(is_open) if run_id is None else self._asks_of(run_id))
        wanted = (record for record in found if not is_open or record.ruling is None)
        return sorted(wanted, key=lambda record: (record.opened_ms, record.ask.ask_id))

    async def _asks_of(self, run_id: RunId) -> list[AskRecord]:
        flat = await self._read("HGETALL", self._of(run_id).asks)
        fields = dict(zip(flat[0::2], flat[1::2], strict=True))
        return [
            answers.ask_record(
                run_id,
                name[1:].decode(),
                self._codec.unpack,
                value,
                *(fields.get(f + name[1:]) for f in _FIELDS[1:]),
            )
            for name, value in fields.items()
            if name[:1] == b"q"
        ]

    async def _all_asks(self, is_open: bool) -> list[AskRecord]:
        parts = self._all_keys().partitions
        indexes = [part.open_asks for part in parts]
        if not is_open:
            indexes += [part.ruled_asks for part in parts]
        members = await together([self._read("ZRANGE", index, 0, -1) for index in indexes])
        names = dict.fromkeys(member for found in members for member in found)
        records = await together([self._ask(*member.split(b":", 1)) for member in names])
        return [record for record in records if record is not None]

    async def _ask(self, run: bytes, ask_id: bytes) -> AskRecord | None:
        """A request by its name in an index; None if it was withdrawn since."""
        run_id = RunId(run.decode())
        fields = [field + ask_id for field in _FIELDS]
        request, *rest = await self._read("HMGET", self._of(run_id).asks, *fields)
        if request is None:
            return None
        try:
            return answers.ask_record(run_id, ask_id.decode(), self._codec.unpack, request, *rest)
        except StoreDiverged as error:
            # One request that somebody tampered with must not hide the others.
            log.error("checkpoints.request_unreadable", run_id=run_id, why=str(error))
            return None
