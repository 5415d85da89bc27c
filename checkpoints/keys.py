"""The names of all keys.

A run's keys, and the indexes it stands in, share the hash tag of its partition, `{ns:p07}`: so one
script may change them together, on a cluster too. Nothing but a checked id becomes part of a key.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from .errors import BadRunId, StoreUsageError

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class PartitionKeys(NamedTuple):
    """The indexes of one partition."""

    due: bytes  # zset: run id → when a worker should look at it
    runs: bytes  # zset: run id → creation
    statuses: bytes  # zset: run id → status and creation
    open_asks: bytes  # zset: run id ':' ask id → when it was opened
    ruled_asks: bytes  # zset: run id ':' ask id → when it was decided; the last 1,000
    outbox: bytes  # zset: packed notice → when to tell it
    ended: bytes  # zset: finished run id → when it is to be folded or removed
    mark: bytes  # string: written behind what must be confirmed by copies


class RunKeys(NamedTuple):
    """The keys of one run."""

    head: bytes  # hash of constant size
    journal: bytes  # stream: seq-0 → op, chain, body
    snapshot: bytes  # string; apart from the head, which stays a small listpack that way
    asks: bytes  # hash: q + ask id → request, r → ruling, v → votes, w → claim, c → comments
    mailbox: bytes  # hash: signal id → number, time, mark, body
    marks: bytes  # list: marks of the last consumed signals
    orphans: bytes  # list
    blobs: bytes  # hash: sha256 → bytes
    live: bytes  # stream, expiring
    folded: bytes  # string: the whole journal of a finished run
    partition: PartitionKeys


def checked_run_id(run_id: str) -> bytes:
    """The id as bytes. Raises BadRunId."""
    # fullmatch and not '$', which would let a newline through at the end.
    if not isinstance(run_id, str) or not _ID.fullmatch(run_id):
        raise BadRunId(str(run_id))
    return run_id.encode()


def checked_namespace(namespace: str) -> str:
    """The namespace itself. Raises StoreUsageError."""
    if not isinstance(namespace, str) or not _ID.fullmatch(namespace):
        raise StoreUsageError(
            f"{str(namespace)[:80]!r} is not a namespace. Use 1 to 64 letters, digits, '-' or '_'."
        )
    return namespace


def meta_key(namespace: str) -> bytes:
    """Where a namespace keeps its layout number and its partition count."""
    return f"{{{checked_namespace(namespace)}:meta}}".encode()


def limits_key(namespace: str) -> bytes:
    """hash: group → its limits."""
    return f"{{{namespace}:limits}}".encode()


def group_keys(namespace: str, group: str) -> tuple[bytes, bytes]:
    """zsets: who holds a place and until when; who began a run and when."""
    stem = f"{{{namespace}:g:{_digest(group)}}}"
    return f"{stem}:held".encode(), f"{stem}:begun".encode()


def thread_key(namespace: str, thread: str) -> bytes:
    """hash: who is active and who waits, see join.lua."""
    return f"{{{namespace}:t:{_digest(thread)}}}".encode()


def _digest(name: str) -> str:
    # Names of groups and threads are anybody's words, and no part of a key.
    return blake2b(name.encode(errors="backslashreplace"), digest_size=16).hexdigest()


class Keys:
    """The keys of one namespace with a fixed number of partitions."""

    def __init__(self, namespace: str, partitions: int) -> None:
        self.namespace = checked_namespace(namespace)
        self.partitions = tuple(_partition(namespace, n) for n in range(partitions))
        self.of = lru_cache(maxsize=4096)(self._of)
        self.due_pattern = f"{{{namespace}:p*}}:due".encode()  # of the channels of wake-ups

    def _of(self, run_id: str) -> RunKeys:
        """The keys of a run. Raises BadRunId."""
        number = crc32(checked_run_id(run_id)) % len(self.partitions)
        stem = f"{_tag(self.namespace, number)}:r:{run_id}:"
        return RunKeys(
            head=(stem + "h").encode(),
            journal=(stem + "j").encode(),
            snapshot=(stem + "s").encode(),
            asks=(stem + "a").encode(),
            mailbox=(stem + "m").encode(),
            marks=(stem + "c").encode(),
            orphans=(stem + "x").encode(),
            blobs=(stem + "b").encode(),
            live=(stem + "l").encode(),
            folded=(stem + "f").encode(),
            partition=self.partitions[number],
        )


def _tag(namespace: str, number: int) -> str:
    return f"{{{namespace}:p{number:02d}}}"


def _partition(namespace: str, number: int) -> PartitionKeys:
    tag = _tag(namespace, number)
    ends = ("due", "runs", "status", "asks", "ruled", "out", "ended", "mark")
    return PartitionKeys(*(f"{tag}:{end}".encode() for end in ends))
