"""Heads, lists of runs, and what the server says of itself."""

from __future__ import annotations

from collections.abc import (
    Coroutine,
    Mapping,
    Sequence,
)
from typing import Any

import structlog

from . import answers
from .calls import Calls
from .errors import (
    BadRunId,
    StoreDiverged,
    StoreUnavailable,
)
from .model import (
    CLOSED,
    Head,
    RunId,
    Status,
)
from .together import together
from .transport import Ambiguous, Reply, Unreachable

log = structlog.get_logger(__name__)

_STATUSES = ("ready", "running", "waiting", "sleeping", "done", "error")


class Lists(Calls):
    """Heads, runs, and the server's facts."""

    async def head(self, run_id: RunId) -> Head:
        """See Store."""
        told = await self._told(run_id)
        if told is None:
            raise self._absent(run_id)
        head = answers.head(run_id, told, self._codec.unpack)
        if head.status in CLOSED:
            self._remember_over(run_id)
        return head

    async def _told(self, run_id: RunId) -> list[bytes] | None:
        """What head.lua tells; None where there is no run."""
        keys = self._of(run_id)
        reply = await self._script("head", (keys.head, keys.snapshot, keys.partition.due), run_id)
        return None if reply[0] == b"NONE" else reply[1:]

    async def _heads(self, run_ids: Sequence[RunId]) -> list[Head]:
        """The heads of those that are still there; without its snapshot where that is corrupt.

        One run that somebody tampered with must not hide the others.
        """

        async def listed(run_id: RunId) -> Head | None:
            try:
                told = await self._told(run_id)
                return None if told is None else self._readable(run_id, told)
            except (StoreDiverged, BadRunId) as error:
                log.error("checkpoints.head_unreadable", run_id=run_id, why=str(error))
                return None

        heads = await together([listed(run_id) for run_id in run_ids])
        return [head for head in heads if head is not None]

    def _readable(self, run_id: RunId, told: list[bytes]) -> Head:
        try:
            return answers.head(run_id, told, self._codec.unpack)
        except StoreDiverged as error:
            head = answers.head(run_id, told, lambda *_: b"")
            log.error("checkpoints.snapshot_unreadable", run_id=run_id, why=str(error))
            return head

    async def runs(self, *, status: Status | None = None, limit: int = 50) -> Sequence[Head]:
        """See Store."""
        low, high = status_bounds(status)
        reads: list[Coroutine[Any, Any, Reply]] = []
        for part in self._all_keys().partitions:
            index = part.runs if status is None else part.statuses
            bounds = (high, low, "WITHSCORES", "LIMIT", 0, limit)
            reads.append(self._read("ZREVRANGEBYSCORE", index, *bounds))
        ids = [item for found in await together(reads) for item in scored(found)]
        newest = sorted(ids, reverse=True)[:limit]
        return await self._heads([run_id for _, run_id in newest])

    async def facts(self) -> Mapping[str, Any]:
        """See Store. What the server does not tell is left out."""
        keys = self._all_keys()
        found: dict[str, Any] = {
            "address": self.address,
            "namespace": keys.namespace,
            "partitions": len(keys.partitions),
            "encryption": self.key_ring.ids if self.key_ring else (),
            "compress_from": self.settings.compress_from,
            "durability": str(self.settings.durability or "none"),
        }
        try:
            told = answers.info(await self._settled(lambda: self._reads.call("INFO")))
        except (StoreDiverged, StoreUnavailable) as error:
            if isinstance(error.__cause__, Unreachable | Ambiguous):
                raise
            return found
        found["server"] = "valkey" if "valkey_version" in told else "redis"
        found["version"] = told.get("valkey_version") or told.get("redis_version", "")
        for name in _FACTS:
            if name in told:
                found[name] = told[name]
        for name in _CONFIG:
            # Managed servers refuse CONFIG: then INFO is all there is.
            try:
                pair = await self._settled(lambda: self._reads.call("CONFIG", "GET", name))  # noqa: B023
            except (StoreDiverged, StoreUnavailable):
                break
            if pair:
                found[name] = pair[1].decode(errors="replace")
        return found


_FACTS = (
    *("redis_mode", "role", "connected_slaves", "aof_enabled", "aof_last_write_status"),
    *(
        "rdb_last_bgsave_status",
        "maxmemory",
        "maxmemory_policy",
        "used_memory",
        "uptime_in_seconds",
    ),
    *("master_replid", "process_id", "tcp_port"),
)
_CONFIG = (
    *("appendonly", "appendfsync", "save", "maxmemory-policy", "min-replicas-to-write", "dir"),
    *("bind", "protected-mode"),
)


def status_bounds(status: Status | None) -> tuple[int, int]:
    """The lowest and the highest score of a status in its index; None: in the index of all."""
    low = 0 if status is None else (_STATUSES.index(status) + 1) * 10**13
    return low, low + 10**13 - 1


def scored(flat: Sequence[bytes]) -> list[tuple[int, RunId]]:
    """What an index holds. A member that is none of ours is no run id, which its reader meets."""
    pairs = zip(flat[0::2], flat[1::2], strict=True)
    return [
        (answers.number(score), RunId(member.decode(errors="replace"))) for member, score in pairs
    ]
