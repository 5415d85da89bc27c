"""The store of a sweep: an embedded server in a process of its own, for as long as the sweep."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checkpoints.embedded import EmbeddedServer
from checkpoints.errors import StoreUnavailable

from .children import fork, wait_for

FOREVER_S = 86_400.0
_LONGEST_FOLDER = 50  # sockets are put into it, and the kernel takes about 100 bytes


@contextmanager
def kept_store(folder: Path) -> Iterator[Path]:
    """The socket of an embedded server in `folder`, stopped at the end of the block.

    Not in this process: serving takes a thread, and a process with threads must not fork. The
    keeper also ends when this process dies.

    Raises StoreUnavailable with the reason if no server starts.
    """
    told, tell = os.pipe()
    alive, hold = os.pipe()

    def keep() -> None:
        os.close(told)
        os.close(hold)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # Ctrl-C is for the sweep, which then lets go
        server = EmbeddedServer(folder)
        os.write(tell, server.enter().encode())
        os.close(tell)
        os.read(alive, 1)  # returns once nobody holds the other end
        server.leave()

    log = folder.with_suffix(".log")
    pid = fork(keep, time_limit_s=FOREVER_S, output=str(log))
    os.close(tell)
    os.close(alive)
    os.set_inheritable(hold, False)
    try:
        with os.fdopen(told, "rb") as answer:
            socket = answer.read().decode()
        if not socket:
            raise StoreUnavailable(f"no store for the sweep: {_last_line(log)}")
        _holds.add(hold)
        yield Path(socket)
    finally:
        _holds.discard(hold)
        os.close(hold)
        wait_for(pid)


_holds: set[int] = set()


def let_go_of_keepers() -> None:
    """In a forked child: only the sweep's own process keeps the store alive."""
    for hold in _holds:
        os.close(hold)
    _holds.clear()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for a sweep, gone afterwards. Its path is short, as it holds sockets."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _LONGEST_FOLDER:
        base = "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="fsm-crash-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it left no word"
