"""Journals: beginning them, adding to them, and reading them with their chain."""

from __future__ import annotations

from collections.abc import (
    Sequence,
)
from hashlib import blake2b
from typing import Never

from . import answers, chain, folding
from .errors import (
    CorruptEntry,
    LeaseLost,
    RunClosed,
    RunExists,
    StoreDiverged,
    StoreFull,
    StoreRegressed,
    StoreUsageError,
)
from .model import (
    CLOSED,
    Commit,
    Committed,
    Entry,
    Lease,
    RunId,
)
from .ownership import Ownership
from .shield import landed, through
from .together import together
from .transport import Arg, Reply

_PAGE = 512


class Journals(Ownership):
    """Create, commit and read back."""

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
        """See Store."""
        keys = self._of(run_id)
        self._check_sizes((body,), snapshot)
        for each in following:  # one by one: together they may be a whole long run
            self._check_sizes((each,), b"")
        bodies = (body, *following)
        links = chain.links(chain.genesis(run_id), 0, bodies, self._chain_key)
        part = keys.partition
        names: tuple[bytes, ...] = (
            *(keys.head, keys.journal, keys.snapshot, part.due, part.runs, part.statuses),
            keys.blobs,
        )
        pack = self._codec.pack
        args: list[Arg] = [
            *(run_id, _mark(op), "ready" if is_due else "sleeping"),
            *(pack(run_id, "snapshot", snapshot), "" if is_needed else self._alarm()),
        ]
        for seq, (link, each) in enumerate(zip(links, bodies, strict=True), 1):
            args += (link, pack(run_id, f"entry {seq}", each))
        reply, short, _ = await self._written(
            "create",
            names,
            tuple(args),
            mark=part.mark,
            is_critical=False,
        )
        match reply[0]:
            case b"EXISTS":
                raise RunExists(run_id)
            case b"FULL":
                raise StoreFull(self.address, int(reply[1]), int(reply[2]))
        created = 0
        if reply[0] == b"OK":
            self._forget(run_id)  # a run of this name may have been there before
            created = int(reply[1])
        self._remember(run_id, len(bodies), created, is_ours=True)
        if short:
            raise self._not_durable(f"run {run_id!r}", short)
        return reply[0] == b"OK"

    async def commit(self, lease: Lease, commit: Commit) -> Committed:
        """See Store. A cancelled caller waits for the answer, and is then cancelled."""
        call = self._commit(lease, commit)
        return await (through(call) if self._line.is_ours else landed(call))

    async def _commit(self, lease: Lease, commit: Commit) -> Committed:
        keys = self._of(lease.run_id)
        if not commit.bodies:
            raise StoreUsageError("a commit needs at least one entry.")
        self._check_sizes(commit.bodies, commit.snapshot)
        links = chain.links(
            commit.previous_chain, commit.expected_seq, commit.bodies, self._chain_key
        )
        part = keys.partition
        names: tuple[bytes, ...] = (
            *(keys.head, keys.journal, keys.snapshot, keys.asks, keys.mailbox, keys.marks),
            *(part.due, part.statuses, part.open_asks, part.outbox),
        )
        is_closing = commit.status in CLOSED
        if is_closing:
            names += (part.ended, keys.orphans, keys.blobs)
        args = self._commit_args(lease, commit, links)
        reply, short, sent = await self._written(
            "commit",
            names,
            args,
            mark=part.mark,
            is_critical=commit.is_critical,
            until=self._margin(lease),
        )
        if reply[0] not in (b"OK", b"DUP"):
            self._refuse(lease, commit, reply)
        seq = int(reply[1])
        self._remember(lease.run_id, seq, is_ours=True)
        if is_closing:
            self._remember_over(lease.run_id)
        if reply[0] == b"OK":
            self._confirm(lease.nonce, sent)
        committed = Committed(
            seq=seq,
            chain=links[-1],
            server_ms=int(reply[2]),
            mail=int(reply[3]),
            was_repeat=reply[0] == b"DUP",
        )
        if short:
            what = f"run {lease.run_id!r}: entry {seq}"
            raise self._not_durable(what, short, committed)
        return committed

    def _commit_args(self, lease: Lease, commit: Commit, links: Sequence[bytes]) -> tuple[Arg, ...]:
        """ARGV of commit.lua."""
        run_id, pack = lease.run_id, self._codec.pack
        args: list[Arg] = [
            *(run_id, lease.token, lease.nonce, commit.expected_seq, _mark(commit.op)),
            *(commit.previous_chain, lease.term_ms, commit.status),
            pack(run_id, "snapshot", commit.snapshot),
            "" if commit.due_ms is None else commit.due_ms,
            *(int(commit.release), commit.seen_mail, int(commit.is_progress)),
            *(len(commit.bodies), len(commit.opened), len(commit.withdrawn)),
            *(len(commit.consumed), len(commit.outbox)),
            "" if commit.keep_ms is None else commit.keep_ms,
            int(self.settings.fold_after_s * 1000),
        ]
        pairs = zip(links, commit.bodies, strict=True)
        for seq, (link, body) in enumerate(pairs, commit.expected_seq + 1):
            args += (link, pack(run_id, f"entry {seq}", body))
        for ask in commit.opened:
            body = pack(run_id, f"request {ask.ask_id}", ask.body)
            args += (ask.ask_id, answers.packed_ask(ask, body))
        args += commit.withdrawn
        args += commit.consumed
        for notice in commit.outbox:
            args += (notice.at_ms, answers.packed_notice(run_id, notice, pack))
        return tuple(args)

    def _refuse(self, lease: Lease, commit: Commit, reply: list[bytes]) -> Never:
        run_id = lease.run_id
        known = max(commit.expected_seq, self._known_of(run_id).seq)
        match reply[0]:
            case b"CLOSED":
                raise RunClosed(run_id, reply[1].decode())
            case b"NONE":
                raise StoreRegressed(run_id, known, 0)
            case b"DUP_NOT_OWNER" | b"FENCED":
                # A token below ours, or a journal that ends before what was acknowledged: not a
                # takeover but a store that forgot.
                if int(reply[1]) < lease.token or int(reply[2]) < commit.expected_seq:
                    raise StoreRegressed(run_id, known, int(reply[2]))
                raise LeaseLost(run_id)
        stored = int(reply[1])
        if stored < known:
            raise StoreRegressed(run_id, known, stored)
        raise StoreDiverged(
            f"run {run_id!r}: the journal ends at entry {stored} with another history than "
            f"this worker's, which ends at {commit.expected_seq}. Nothing was changed."
        )

    async def journal(self, run_id: RunId, *, after: int = 0) -> Sequence[Entry]:
        """See Store."""
        keys = self._of(run_id)
        at = max(after, 1)
        # The head first, in one write with the first page: an entry that comes between the two is
        # cut off below, so that both agree.
        known = self._known_of(run_id)
        (last, last_chain, status, created), page = await together(
            [
                self._read("HMGET", keys.head, "n", "h", "s", "c"),
                self._read("XRANGE", keys.journal, f"{at}-0", "+", "COUNT", _PAGE),
            ]
        )
        if last is None:
            raise self._absent(run_id)
        end = int(last)
        self._check_known(run_id, end, int(created), known)
        entries = await self._streamed(run_id, page, end)
        if status.decode() in CLOSED:
            self._remember_over(run_id)
            if after <= end and (not entries or entries[-1].seq < end):
                entries = await self._unfolded(run_id, at, end) or entries
        start = chain.genesis(run_id)
        if after > 0:
            if after > end:
                return []
            if not entries or entries[0].seq != after:
                raise CorruptEntry(run_id, after, "it is missing")
            start = entries.pop(0).chain
        found = chain.verify(run_id, start, after, entries, self._chain_key)
        reached = entries[-1].seq if entries else after
        if reached < end:
            raise CorruptEntry(
                run_id, reached + 1, f"it is missing; the journal should end at {end}"
            )
        if found != last_chain:
            raise CorruptEntry(run_id, end, "it is not the last entry that the head names")
        return entries

    async def _streamed(self, run_id: RunId, page: Reply, end: int) -> list[Entry]:
        """The entries up to `end` of which `page` is the first of the stream."""
        key = self._of(run_id).journal
        entries = [self._entry(run_id, item) for item in page]
        # Also where the page is short: if the head's read was repeated, it may be the later one.
        while page and entries[-1].seq < end:
            at = entries[-1].seq + 1
            page = await self._read("XRANGE", key, f"{at}-0", f"{end}-0", "COUNT", _PAGE)
            entries += (self._entry(run_id, item) for item in page)
        return [entry for entry in entries if entry.seq <= end]

    def _entry(self, run_id: RunId, item: Reply) -> Entry:
        entry = answers.entry(run_id, item)
        try:
            body = self._codec.unpack(run_id, f"entry {entry.seq}", entry.body)
        except StoreDiverged as error:
            raise CorruptEntry(run_id, entry.seq, str(error)) from error
        return entry if body is entry.body else Entry(entry.seq, body, entry.chain)

    async def _unfolded(self, run_id: RunId, at: int, end: int) -> list[Entry]:
        """The entries `at` to `end` of a folded journal; none where it is not folded."""
        data = await self._read("GET", self._of(run_id).folded)
        if data is None:
            return []
        try:
            packed = self._codec.unpack(run_id, "its journal", data)
        except StoreDiverged as error:
            raise CorruptEntry(run_id, 1, str(error)) from error
        return folding.unfold(run_id, packed, self._chain_key)[at - 1 : end]


def _mark(op: str) -> bytes:
    """Eight bytes for an op id: it is compared at one seq of one run only, and kept for ever."""
    return blake2b(op.encode(), digest_size=8).digest()
