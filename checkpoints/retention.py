"""What becomes of finished runs: folded into one value, expired, purged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from . import answers, folding
from .errors import BadRunId, CheckpointError, CorruptEntry, RunOpen, StoreUnavailable
from .journals import Journals
from .lists import Lists, scored, status_bounds
from .model import CLOSED, Head, RunId, Tidied
from .together import together

log = structlog.get_logger(__name__)

_AGAIN_MS = 86_400_000  # until a run that could not be folded is looked at again
_PAGE = 512


class Retained(Journals, Lists):
    """Tidying, purging, and the list of what is finished."""

    async def tidy(self, *, limit: int = 16) -> Tidied:
        """See Retention. A run that cannot be read is left as it is, with a log line."""
        now_ms = await self.now_ms()
        bounds = ("-inf", now_ms, "LIMIT", 0, limit)
        found = await self._everywhere(
            "ended",
            lambda part, until: self._read("ZRANGEBYSCORE", part.ended, *bounds, until=until),
        )
        folded: list[RunId] = []
        expired: list[RunId] = []
        failed: list[RunId] = []
        for member in (member for members in found for member in members):
            run_id = RunId(member.decode(errors="replace"))
            try:
                is_there = await self._fold(run_id)
            except StoreUnavailable:
                raise
            except CheckpointError as error:
                # It may have expired between two reads, and then looks like one with holes.
                is_there = await self._may_be_there(run_id)
                if is_there:
                    log.error("checkpoints.not_folded", run_id=run_id, why=str(error))
                    if not isinstance(error, BadRunId):
                        await self._look_again(run_id, now_ms + _AGAIN_MS)
                    failed.append(run_id)
                    continue
            if not is_there:
                await self.purge(run_id)
            (folded if is_there else expired).append(run_id)
        return Tidied(folded=tuple(folded), expired=tuple(expired), failed=tuple(failed))

    async def _may_be_there(self, run_id: RunId) -> bool:
        try:
            return await self._told(run_id) is not None
        except StoreUnavailable:
            raise
        except CheckpointError:
            return True  # something that is none of ours

    async def _look_again(self, run_id: RunId, at_ms: int) -> None:
        await self._read("ZADD", self._of(run_id).partition.ended, "XX", at_ms, run_id)

    async def _fold(self, run_id: RunId) -> bool:
        """Put one value in the place of the run's journal. False: the run has expired.

        Raises CorruptEntry: a journal that does not verify stays as it is, for whoever looks at it.
        """
        keys = self._of(run_id)
        (seq, last), newest = await together(
            [
                self._read("HMGET", keys.head, "n", "h"),
                self._read("XREVRANGE", keys.journal, "+", "-", "COUNT", _PAGE),
            ]
        )
        if seq is None:
            return False
        data, marks = b"", (b"", b"")
        if newest:
            entries = await self.journal(run_id)
            size = sum(len(entry.body) for entry in entries)
            if size > self.settings.max_fold_bytes:
                await self._look_again(run_id, 1 << 53)
                return True
            bodies = [entry.body for entry in entries]
            # Milliseconds for what most runs hold; a large one must not hold up the loop.
            is_large = size > 1 << 18
            data = (
                await asyncio.to_thread(folding.fold, bodies) if is_large else folding.fold(bodies)
            )
            data = self._codec.pack(run_id, "its journal", data)
            marks = await self._marks(run_id, newest)
        reply = await self._script(
            "fold",
            (keys.head, keys.journal, keys.folded, keys.marks, keys.partition.ended),
            *(run_id, int(seq), last, data, *marks),
        )
        if reply[0] == b"CHANGED":
            raise CorruptEntry(run_id, int(reply[1]), "it is not the entry that was read")
        return reply[0] in (b"OK", b"SAME")

    async def _marks(self, run_id: RunId, newest: Sequence[object]) -> tuple[bytes, bytes]:
        """How a repeat of the first and of the last call on the run is known."""
        first = await self._read("XRANGE", self._of(run_id).journal, "1-0", "1-0")
        last = b""
        for item in newest:
            op, seq = answers.op_of(item)
            if op:
                last = b"%d %s" % (seq - 1, op)
                break
        return (answers.op_of(first[0])[0] if first else b""), last

    async def purge(
        self, run_id: RunId, *, is_forced: bool = False, ended_before_ms: int | None = None
    ) -> bool:
        """See Retention."""
        keys = self._of(run_id)
        part = keys.partition
        reply = await self._script(
            "purge",
            (
                *(keys.head, keys.journal, keys.snapshot, keys.asks, keys.mailbox, keys.marks),
                *(keys.orphans, keys.blobs, keys.live, keys.folded),
                *(part.due, part.runs, part.statuses, part.open_asks, part.ruled_asks, part.ended),
            ),
            *(run_id, int(is_forced), "" if ended_before_ms is None else ended_before_ms),
        )
        if reply[0] == b"OPEN":
            raise RunOpen(run_id, reply[1].decode())
        if reply[0] == b"YOUNG":
            return False
        self._forget(run_id)
        is_removed = reply[1] != b"0"
        return await self._purge_outbox(run_id) > 0 or is_removed

    async def _purge_outbox(self, run_id: RunId) -> int:
        key, ours, at = self._of(run_id).partition.outbox, [], 0
        while page := await self._read("ZRANGE", key, at, at + _PAGE - 1):
            ours += [packed for packed in page if packed.split(b" ", 2)[1] == run_id.encode()]
            at += _PAGE
        return int(await self._read("ZREM", key, *ours)) if ours else 0

    async def finished(self, *, before_ms: int) -> Sequence[Head]:
        """See Retention."""
        ids: list[RunId] = []
        for status in CLOSED:
            low, _ = status_bounds(status)
            # The index is by creation: what began later cannot have ended before.
            bounds = (low, low + min(before_ms, 10**13 - 1), "WITHSCORES")
            parts = self._all_keys().partitions
            found = await together(
                [self._read("ZRANGEBYSCORE", p.statuses, *bounds) for p in parts]
            )
            ids += [run_id for flat in found for _, run_id in scored(flat)]
        heads: list[Head] = []
        for at in range(0, len(ids), _PAGE):
            heads += await self._heads(ids[at : at + _PAGE])
        old = (head for head in heads if head.status in CLOSED and head.updated_ms < before_ms)
        return sorted(old, key=lambda head: head.updated_ms)
