"""The hash chain of a journal: each entry vouches for all before it.

Where a store is encrypted the hashes have a key, so that nobody else can check a guess against
them, nor make a chain that holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from .errors import CorruptEntry
from .model import Entry

_SIZE = 16


def genesis(run_id: str) -> bytes:
    """The chain before entry 1. It holds the run id, so entries do not fit into another run."""
    return blake2b(run_id.encode(), digest_size=_SIZE, person=b"fsm-genesis").digest()


def link(previous: bytes, seq: int, body: bytes, key: bytes = b"") -> bytes:
    """The chain after an entry."""
    data = previous + seq.to_bytes(8, "big") + body
    return blake2b(data, digest_size=_SIZE, key=key).digest()


def links(previous: bytes, after: int, bodies: Iterable[bytes], key: bytes = b"") -> list[bytes]:
    """The chains after each of the bodies that follow entry `after`."""
    found = []
    for seq, body in enumerate(bodies, after + 1):
        previous = link(previous, seq, body, key)
        found.append(previous)
    return found


def verify(
    run_id: str, previous: bytes, after: int, entries: Iterable[Entry], key: bytes = b""
) -> bytes:
    """The chain at the end of `entries`, which follow entry `after`.

    Raises CorruptEntry naming the first seq that is absent or does not match its hash.
    """
    seq = after
    for entry in entries:
        seq += 1
        if entry.seq != seq:
            raise CorruptEntry(run_id, seq, f"it is missing; entry {entry.seq} stands in its place")
        previous = link(previous, seq, entry.body, key)
        if entry.chain != previous:
            raise CorruptEntry(run_id, seq, "its bytes do not match its hash")
    return previous
