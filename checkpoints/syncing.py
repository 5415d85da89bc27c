"""Bringing an append-only file to the disk once a second, from outside its server."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

SYNC_S = 1.0


class Syncer:
    """Syncs the append-only file of a folder while this process uses it, in a thread.

    The server writes before it answers and leaves the syncing to others: what `everysec` does for
    it makes it answer first and write later whenever the disk is busy. Each process that uses the
    folder does this, which costs the second one nothing: there is nothing left to sync.
    """

    def __init__(self, folder: Path) -> None:
        self._files = folder / "appendonlydir"
        self._synced: dict[str, int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store sync", daemon=True)

    def start(self) -> None:
        """Sync from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Sync once more, and then no longer."""
        self._stopped.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stopped.wait(SYNC_S):
            self._sync()
        self._sync()

    def _sync(self) -> None:
        # A file that is gone was rewritten into another, which is in the folder too.
        with suppress(OSError):
            for file in self._files.iterdir():
                self._sync_file(file)

    def _sync_file(self, file: Path) -> None:
        with suppress(OSError):
            handle = os.open(file, os.O_RDONLY)
            try:
                size = os.fstat(handle).st_size
                if self._synced.get(file.name) != size:
                    os.fsync(handle)
                    self._synced[file.name] = size
            finally:
                os.close(handle)
