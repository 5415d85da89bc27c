"""Leases: who may write a run, and until when by the local clock."""

from __future__ import annotations

from collections.abc import (
    Mapping,
    Sequence,
)

from . import answers, scripts
from .calls import Calls, trim
from .errors import (
    RunBusy,
    RunClosed,
    StoreUsageError,
)
from .model import (
    Claim,
    Lease,
    ParkedStatus,
    Renewal,
    RunId,
)
from .steady import monotonic
from .together import together
from .transport import Arg


class Ownership(Calls):
    """Claiming, renewing and giving back."""

    async def claim(self, run_id: RunId, *, owner: str, nonce: str, term_ms: int) -> Claim:
        """See Store."""
        keys = self._of(run_id)
        if not nonce or term_ms < 1:
            raise StoreUsageError("a claim needs a nonce and a term of at least 1 ms.")
        sent, known = monotonic(), self._known_of(run_id)
        reply = await self._script(
            "claim",
            (keys.head, keys.snapshot, keys.partition.due, keys.partition.statuses),
            run_id,
            owner,
            nonce,
            term_ms,
        )
        match reply[0]:
            case b"BUSY":
                raise RunBusy(run_id, reply[1].decode(errors="replace"), int(reply[2]))
            case b"CLOSED":
                self._remember_over(run_id)
                raise RunClosed(run_id, reply[1].decode())
            case b"NONE":
                raise self._absent(run_id)
        head = answers.head(run_id, reply[3:], self._codec.unpack)
        lease = Lease(run_id, head.token, nonce, owner, term_ms)
        if error := self._lost(run_id, head.seq, head.created_ms, known):
            # Told once; whoever claims the run after a person looked at it goes on from there. Not
            # due meanwhile: a worker that knows nothing of it would repeat what was lost.
            await self.release(lease, due_ms=None)
            self._forget(run_id)
            self._remember(run_id, head.seq, head.created_ms)
            raise error
        self._remember(run_id, head.seq, head.created_ms, is_ours=True)
        self._confirm(nonce, sent)
        return Claim(
            lease=lease,
            head=head,
            is_takeover=reply[2] == b"1",
            server_ms=int(reply[1]),
        )

    async def renew(self, leases: Sequence[Lease]) -> Mapping[RunId, Renewal]:
        """See Store."""
        fates: dict[RunId, Renewal] = {}
        for found in await together([self._renew(group) for group in self.apart(leases)]):
            fates |= found
        return fates

    def apart(self, leases: Sequence[Lease]) -> Sequence[Sequence[Lease]]:
        """See Store."""
        groups: dict[bytes, list[Lease]] = {}
        for lease in leases:
            groups.setdefault(self._of(lease.run_id).partition.due, []).append(lease)
        return tuple(groups.values())

    async def _renew(self, leases: Sequence[Lease]) -> dict[RunId, Renewal]:
        """Renew the leases of one partition."""
        due = self._of(leases[0].run_id).partition.due
        args: list[Arg] = []
        for lease in leases:
            args += (lease.run_id, lease.token, lease.nonce, lease.term_ms)
        names = (due, *(self._of(lease.run_id).head for lease in leases))
        sent = 0.0
        known = [self._known_of(lease.run_id) for lease in leases]

        async def once() -> list[bytes]:
            nonlocal sent
            sent = monotonic()
            return await scripts.run(self._line, "renew", names, tuple(args))

        reply = await self._settled(once)
        if reply[0] == b"FOREIGN":
            raise answers.foreign(reply[1])
        fates = {}
        told = zip(leases, known, reply[1::4], reply[2::4], reply[3::4], reply[4::4], strict=True)
        for lease, before, is_held, mail, stored, created in told:
            error = self._lost(lease.run_id, int(stored), int(created), before)
            forgot = (error.known_seq, error.stored_seq) if error else None
            fates[lease.run_id] = Renewal(is_held=is_held == b"1", mail=int(mail), forgot=forgot)
            if is_held == b"1":
                self._confirm(lease.nonce, sent)
        return fates

    async def release(
        self, lease: Lease, *, due_ms: int | None, status: ParkedStatus | None = None
    ) -> None:
        """See Store."""
        keys = self._of(lease.run_id)
        await self._script(
            "release",
            (keys.head, keys.partition.due, keys.partition.statuses),
            lease.run_id,
            lease.token,
            lease.nonce,
            "" if due_ms is None else due_ms,
            status or "",
        )
        self._confirmed.pop(lease.nonce, None)

    def _margin(self, lease: Lease) -> float:
        """Local time until which an attempt makes sense: two thirds of the term."""
        confirmed = self._confirmed.get(lease.nonce)
        start = monotonic() if confirmed is None else confirmed
        return start + lease.term_ms / 1000 * 2 / 3

    def confirmed_at(self, lease: Lease) -> float | None:
        """Local monotonic time before the last call that moved this lease's end was sent."""
        return self._confirmed.get(lease.nonce)

    def _confirm(self, nonce: str, sent: float) -> None:
        self._confirmed[nonce] = max(sent, self._confirmed.get(nonce, sent))
        trim(self._confirmed, nonce)
