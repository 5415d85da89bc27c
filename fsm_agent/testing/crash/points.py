"""The named points that a process passes, and at which one it is to die."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path


class Points:
    """Counts the named points that a process passes, and kills it at one of them.

    Every point is written to `trace` as it is reached, so that it is known after a SIGKILL. Tools
    pass theirs in threads.
    """

    def __init__(self, trace: Path, kill_at: str | None = None) -> None:
        self._trace = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._kill_at = kill_at
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reach(self, name: str, moment: str) -> None:
        """Pass a point: its full name is `name#N:moment`, N counting the name's passes from 1."""
        with self._lock:
            if moment == "before":
                self._counts[name] += 1
            number = self._counts[name]
        self.pass_(name, number, moment)

    def enter(self, name: str) -> int:
        """Pass the point before something that may overlap with others of its name; its number."""
        with self._lock:
            self._counts[name] += 1
            number = self._counts[name]
        self.pass_(name, number, "before")
        return number

    def pass_(self, name: str, number: int, moment: str) -> None:
        """Pass a point whose number is known."""
        point = f"{name}#{number}:{moment}"
        os.write(self._trace, f"{point}\n".encode())
        if point == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
