"""What the outside says to runs: signals, requests and decisions."""

from __future__ import annotations

import secrets
from collections.abc import (
    Sequence,
)

from . import answers
from .calls import Calls
from .errors import (
    AlreadyDecided,
    AskExpired,
    AskLocked,
    AskNotFound,
    DecisionStale,
    RunClosed,
)
from .model import (
    AskRecord,
    Decision,
    Ruling,
    RunId,
    Signal,
)
from .together import together


class People(Calls):
    """Mailboxes and requests."""

    async def signal(self, run_id: RunId, *, signal_id: str, body: bytes) -> bool:
        """See Store."""
        keys = self._of(run_id)
        self._check_sizes((body,), b"")
        reply = await self._script(
            "signal",
            (keys.head, keys.mailbox, keys.marks, keys.partition.due),
            *(run_id, signal_id, _new_mark(), body),
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
        reply = await self._script(
            "decide",
            (keys.head, keys.asks, keys.mailbox, part.due, part.open_asks, part.ruled_asks),
            *(run_id, ask_id, decision.decision_id, decision.verb, decision.by),
            *(decision.digest, decision.body, int(decision.needs_unlock), _new_mark()),
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
            case b"STALE":
                raise DecisionStale(ask_id, reply[1].decode())
            case b"LOCKED":
                raise AskLocked(ask_id, int(reply[1]), int(reply[2]))
        at_ms, verb, by = int(reply[1]), reply[2].decode(), reply[3].decode()
        if reply[0] == b"DECIDED":
            raise AlreadyDecided(ask_id, verb, by, at_ms)
        return Ruling(ask_id=ask_id, verb=verb, by=by, at_ms=at_ms, is_repeat=reply[0] == b"REPEAT")

    async def mailbox(self, run_id: RunId) -> Sequence[Signal]:
        """See Store."""
        return answers.mail(await self._read("HGETALL", self._of(run_id).mailbox))

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
            answers.ask_record(run_id, name[1:].decode(), value, fields.get(b"r" + name[1:]))
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
        fields = (b"q" + ask_id, b"r" + ask_id)
        request, ruling = await self._read("HMGET", self._of(run_id).asks, *fields)
        if request is None:
            return None
        return answers.ask_record(run_id, ask_id.decode(), request, ruling)


def _new_mark() -> str:
    return secrets.token_hex(8)
