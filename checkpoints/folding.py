"""A finished run's journal as one value: a stream takes 4 KB of memory however little it holds."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from . import chain
from .codec import inflate
from .errors import CorruptEntry, StoreDiverged
from .model import Entry

_LEVEL = 6


class _Folded(msgspec.Struct, frozen=True, array_like=True):
    """All bodies in order. Their hashes are not kept: the head holds the last, made of all."""

    version: int
    bodies: tuple[bytes, ...]


def fold(bodies: Sequence[bytes]) -> bytes:
    """A journal's bodies as one value."""
    return zlib.compress(msgspec.msgpack.encode(_Folded(1, tuple(bodies))), _LEVEL)


def unfold(run_id: str, data: bytes, key: bytes) -> list[Entry]:
    """The entries of a folded journal, with the chain that their bodies make.

    Raises CorruptEntry. Whether they are the run's own is for the caller to see: the last hash is
    the one that the head names.
    """
    try:
        folded = msgspec.msgpack.decode(inflate(run_id, "its journal", data), type=_Folded)
    except (msgspec.MsgspecError, StoreDiverged) as error:
        why = "it is part of a folded journal that cannot be read"
        raise CorruptEntry(run_id, 1, why) from error
    links = chain.links(chain.genesis(run_id), 0, folded.bodies, key)
    pairs = zip(folded.bodies, links, strict=True)
    return [Entry(seq, body, link) for seq, (body, link) in enumerate(pairs, 1)]
