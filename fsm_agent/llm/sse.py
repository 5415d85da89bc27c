"""Where the events of a byte stream begin and end."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_EVENT_BYTES = 16 << 20
_MAX_STRAY_BYTES = 64 << 10
_ODD_DATA = re.compile(rb"\s*data\s*: ?", re.IGNORECASE)  # as some proxies re-write the field
_LINE_BYTES = 64  # that a line costs beside its text
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event. Several data lines are joined with a newline."""

    name: str
    data: bytes


class EventTooLong(Exception):
    """More bytes without the end of an event than a model's chunk can have."""


class SseReader:
    """Takes the bytes of a text/event-stream body in any split, and gives its events.

    Tolerant: LF, CR LF and CR, a BOM, comments, blank data, fields without the space, and a last
    event that the end of the body cuts short. What is no field is kept in `stray`, so that a
    body that is no event stream can be told from an empty one.

    Raises EventTooLong, so that memory is bounded whatever the server sends.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.stray = bytearray()
        self.has_events = False
        self._max = max_event_bytes
        self._rest = b""  # the line that is not complete yet
        self._pieces: list[bytes] = []  # of that line, while it comes in many reads
        self._pending = 0
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0
        self._skips_lf = False  # the last read ended with CR: its LF may still come
        self._is_first = True
        self._is_idle = False  # between two events, with nothing held

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that are complete now."""
        if self._is_idle and self._is_one_event(chunk):
            self.has_events = True
            return [Event("", chunk[6:-2])]
        if self._is_idle and not chunk.strip(b"\n"):
            return []
        events = self._feed(chunk)
        self._is_idle = not (
            self._pieces or self._data or self._name or self._skips_lf or self._is_first
        )
        return events

    def _is_one_event(self, chunk: bytes) -> bool:
        """Whether this is one whole event of one line, as nearly all reads are."""
        size = len(chunk)
        return (
            chunk.startswith(b"data: {")
            and chunk.find(b"\n") == size - 2
            and chunk.endswith(b"\n\n")
            and size <= self._max
            and b"\r" not in chunk
        )

    def _feed(self, chunk: bytes) -> list[Event]:
        if self._is_first:
            chunk = self._without_bom(chunk)
        if self._skips_lf and chunk:
            self._skips_lf = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._skips_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._hold(chunk)
            return []
        lines = (b"".join(self._pieces) + chunk).split(b"\n")
        self._pieces, self._pending = [], 0
        self._hold(lines.pop())
        return self._events(lines)

    def close(self) -> list[Event]:
        """The event that the end of the body cut short, if there is one."""
        last = b"".join(self._pieces)
        self._pieces = []
        return self._events([last, b""] if last else [b""])

    def _without_bom(self, chunk: bytes) -> bytes:
        chunk = b"".join(self._pieces) + chunk
        self._pieces, self._pending = [], 0
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._pieces = [chunk]
            return b""
        self._is_first = False
        return chunk.removeprefix(_BOM)

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        self._pending += len(piece)
        if self._pending + self._size > self._max:
            raise EventTooLong(f"an event of more than {self._max} bytes")
        self._pieces.append(piece)

    def _events(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._add(line[6:] if line[5:6] == b" " else line[5:])
            elif not line:
                if self._data:
                    events.append(self._finish())
                self._name = ""
            else:
                self._field(line)
        return events

    def _add(self, data: bytes) -> None:
        self._size += len(data) + _LINE_BYTES
        if self._size > self._max:
            raise EventTooLong(f"an event of more than {self._max} bytes")
        self._data.append(data)

    def _finish(self) -> Event:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        event = Event(self._name, data)
        self._data, self._size, self.has_events = [], 0, True
        return event

    def _field(self, line: bytes) -> None:
        if line.startswith(b"event:"):
            self._name = line[6:].strip().decode("utf-8", "replace")
        elif line == b"data":
            self._add(b"")
        elif (found := _ODD_DATA.match(line)) is not None:
            self._add(line[found.end() :])
        elif not line.startswith((b":", b"id", b"retry")) and len(self.stray) < _MAX_STRAY_BYTES:
            self.stray += line[:_MAX_STRAY_BYTES] + b"\n"
