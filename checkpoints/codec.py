"""How bytes stand in the store: as they are, compressed, sealed, or both.

What is stored as it is never begins with 0xC1, a byte that msgpack leaves unused: it marks what
was changed, and the next one says how. So what was written with other settings reads the same.
"""

from __future__ import annotations

import zlib
from typing import Protocol

from .errors import MissingKey, StoreDiverged

_MARK = b"\xc1"
_PLAIN, _ZLIB, _SEALED = b"\xc1\x00", b"\xc1\x01", b"\xc1\x02"
_LEVEL = 1  # on the way of every commit: level 6 takes three times as long for a tenth less
_LARGEST = 256 << 20  # that anything may unpack to


class Sealer(Protocol):
    """Encrypts bytes for one place of one run."""

    def seal(self, run_id: str, place: str, data: bytes) -> bytes:
        """The bytes as only a holder of the key reads them, and only in this place."""

    def open(self, run_id: str, place: str, data: bytes) -> bytes:
        """The bytes that were sealed. Raises MissingKey, or StoreDiverged if they were changed."""


class Codec:
    """Packs what goes into the store and unpacks what comes out of it."""

    def __init__(self, *, compress_from: int | None = None, sealer: Sealer | None = None) -> None:
        self.sealer = sealer
        self._compress_from = compress_from

    def pack(self, run_id: str, place: str, data: bytes) -> bytes:
        """The bytes to store at `place`, such as 'entry 7', of a run."""
        if self._compress_from is not None and len(data) >= self._compress_from:
            data = _smaller(data)
        elif data[:1] == _MARK:
            data = _PLAIN + data
        if self.sealer:
            data = _SEALED + self.sealer.seal(run_id, place, data)
        return data

    def unpack(self, run_id: str, place: str, data: bytes) -> bytes:
        """The bytes that were packed.

        Raises StoreDiverged for bytes that were changed, and for plain ones where the store is
        sealed; MissingKey for sealed ones without their key.
        """
        if self.sealer:
            if data[:2] != _SEALED:
                raise StoreDiverged(
                    f"run {run_id!r}: {place} is not encrypted, and this store is. Somebody else "
                    "wrote it: it is not used."
                )
            data = self.sealer.open(run_id, place, data[2:])
        if data[:1] != _MARK:
            return data
        match data[:2]:
            case b"\xc1\x00":
                return data[2:]
            case b"\xc1\x01":
                return inflate(run_id, place, data[2:])
            case b"\xc1\x02":
                raise MissingKey(f"run {run_id!r}: {place} is encrypted")
        raise StoreDiverged(
            f"run {run_id!r}: {place} is stored in a form that this version does not know."
        )


def inflate(run_id: str, place: str, data: bytes) -> bytes:
    """Decompressed, within a limit. Raises StoreDiverged."""
    try:
        stream = zlib.decompressobj()
        found = stream.decompress(data, _LARGEST)
        if stream.eof and not stream.unused_data:
            return found
    except zlib.error:
        pass
    raise StoreDiverged(f"run {run_id!r}: {place} cannot be decompressed: its bytes were changed.")


def _smaller(data: bytes) -> bytes:
    """Compressed where that takes a tenth off or more: less is not worth the time of reading."""
    packed = zlib.compress(data, _LEVEL)
    if len(packed) < len(data) * 0.9:
        return _ZLIB + packed
    return _PLAIN + data if data[:1] == _MARK else data
