"""The values that a server in memory keeps, with the orders that Redis gives them."""

from __future__ import annotations

from ..transport import ReplyError


class Hash(dict[bytes, bytes]):
    """Field to value, in the order of arrival."""


class Zset(dict[bytes, float]):
    """Member to score."""

    def ordered(self) -> list[tuple[float, bytes]]:
        """(score, member), lowest first; members of one score by their bytes."""
        return sorted((score, member) for member, score in self.items())

    def between(self, low: float, high: float) -> list[tuple[float, bytes]]:
        """Those with low <= score <= high, lowest first."""
        return [one for one in self.ordered() if low <= one[0] <= high]


class Stream:
    """Entries with ascending ids."""

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[int, int], list[bytes]]] = []
        self._last = (0, 0)

    def __bool__(self) -> bool:
        return True  # a stream without entries is still a key

    def add(self, entry_id: bytes, fields: list[bytes], now_ms: int, most: int | None) -> bytes:
        """Append; '*' makes an id of the time. Raises ReplyError for an id that is not higher."""
        if entry_id == b"*":
            at = max((now_ms, 0), (self._last[0], self._last[1] + 1))
        else:
            at = _id(entry_id, 0)
        if at <= self._last:
            raise ReplyError("ERR", "The ID specified in XADD is equal or smaller than the last")
        self._last = at
        self._entries.append((at, fields))
        if most is not None:
            del self._entries[:-most]
        return _text(at)

    def between(self, first: bytes, last: bytes) -> list[list[object]]:
        """Entries with first <= id <= last as [id, fields], oldest first."""
        low = (0, 0) if first == b"-" else _id(first, 0)
        high = (1 << 63, 0) if last == b"+" else _id(last, 1 << 63)
        return [[_text(at), list(fields)] for at, fields in self._entries if low <= at <= high]

    def after(self, entry_id: bytes) -> list[list[object]]:
        """Entries above an id."""
        low = _id(entry_id, 0)
        return [[_text(at), list(fields)] for at, fields in self._entries if at > low]

    def remove(self, entry_id: bytes) -> bool:
        """Whether there was such an entry."""
        before = len(self._entries)
        self._entries = [one for one in self._entries if one[0] != _id(entry_id, 0)]
        return len(self._entries) < before


def bounds(first: bytes, last: bytes, count: int) -> tuple[int, int]:
    """Redis's inclusive ranks, negative ones from the end, as a slice."""
    start, end = int(first), int(last)
    start = max(0, start + count) if start < 0 else start
    end = end + count if end < 0 else end
    return start, max(start, end + 1)


def score_text(score: float) -> bytes:
    """A score as Redis prints it."""
    return b"%d" % score if score == int(score) else repr(score).encode()


def _id(text: bytes, missing: int) -> tuple[int, int]:
    ms, dash, number = text.partition(b"-")
    return int(ms), int(number) if dash else missing


def _text(at: tuple[int, int]) -> bytes:
    return b"%d-%d" % at
