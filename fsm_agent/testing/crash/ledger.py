"""What the tools did to the world, counted outside the store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from .points import Points

MAX_RESULT_CHARS = 20_000


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the ledger.

    `effect`: the tool said itself that its effect happened. `started` and `ended` are noted around
    each real call of a tool; a call without an end was cut off by the death of its process.
    """

    tool: str
    key: str  # what the other side would tell repeats by
    kind: Literal["effect", "started", "ended"] = "effect"
    result: str = ""  # of `ended`: what the tool returned, where that is text or JSON
    pid: int = 0


class Counts:
    """Questions to the lines of a ledger.

    Every call of a tool is noted by the sweep, and counts from its end. A tool that says itself
    when its effect happens is counted by what it says instead.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    def entries(self) -> Sequence[Entry]:
        """Every line, in order."""
        return self._entries

    def tools(self) -> list[str]:
        """The tools that were called, in order."""
        return list(dict.fromkeys(entry.tool for entry in self.entries()))

    def effects(self) -> list[tuple[str, str]]:
        """Every effect as (tool, key), in order."""
        entries = self.entries()
        speakers = {entry.tool for entry in entries if entry.kind == "effect"}
        return [
            (entry.tool, entry.key)
            for entry in entries
            if entry.kind == ("effect" if entry.tool in speakers else "ended")
        ]

    def raw(self, tool: str) -> int:
        """How often the tool's effect happened, or was sent."""
        return sum(name == tool for name, _ in self.effects())

    def by_key(self, tool: str) -> int:
        """How many effects a receiver that honours keys would have seen."""
        return len({key for name, key in self.effects() if name == tool})

    def starts(self, tool: str) -> int:
        """How often the tool's function was entered."""
        return self._count(tool, "started")

    def cut_off(self, tool: str) -> int:
        """How many calls of the tool have no end."""
        return self._count(tool, "started") - self._count(tool, "ended")

    def _count(self, tool: str, kind: str) -> int:
        return sum(entry.tool == tool and entry.kind == kind for entry in self.entries())

    def happened(self, tool: str, key: str) -> bool:
        """Whether the call with this idempotency key had its effect, as far as the world knows."""
        entries = [entry for entry in self.entries() if entry.tool == tool]
        if not any(entry.kind == "effect" for entry in entries):
            return any(entry.kind == "ended" and entry.key == key for entry in entries)
        current: dict[int, str] = {}  # by process: the call that it is at
        for entry in entries:
            if entry.kind == "started":
                current[entry.pid] = entry.key
            if entry.kind == "effect" and current.get(entry.pid) == key:
                return True
        return False

    def result_of(self, tool: str, key: str) -> str:
        """What the call returned, '' if that is not known."""
        wanted = (tool, key, "ended")
        found = [e.result for e in self.entries() if (e.tool, e.key, e.kind) == wanted]
        return found[-1] if found else ""


class Ledger(Counts):
    """Effects in a file, as the world would see them: one line each, appended and on disk."""

    def __init__(self, path: Path, points: Points | None = None, call_key: str = "") -> None:
        self.path, self._points = path, points
        self.call_key = call_key  # of the call that a person is asked about; '': of none

    def of_call(self, key: str) -> Ledger:
        """The ledger as it is shown to a person who is asked about one call."""
        return Ledger(self.path, self._points, key)

    def record(self, tool: str, key: str) -> None:
        """An effect happens now. `key` is what the other side would tell repeats by.

        For tools that want to say so themselves. The moment right after it is a point, at which a
        sweep kills.
        """
        self._write(Entry(tool, key, "effect", pid=os.getpid()))
        if self._points:
            self._points.reach(f"effect {tool}", "before")

    def started(self, tool: str, key: str) -> None:
        """A call of the tool begins."""
        self._write(Entry(tool, key, "started", pid=os.getpid()))

    def ended(self, tool: str, key: str, result: str = "") -> None:
        """A call of the tool has ended, by a result or an error."""
        self._write(Entry(tool, key, "ended", result[:MAX_RESULT_CHARS], os.getpid()))

    def _write(self, entry: Entry) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, msgspec.json.encode(entry) + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)

    def entries(self) -> Sequence[Entry]:
        """Every line, in order."""
        if not self.path.exists():
            return ()
        lines = self.path.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Entry) for line in lines]

    def counts(self) -> Counts:
        """The ledger as it is now, read once."""
        return Counts(self.entries())
