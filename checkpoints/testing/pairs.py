"""A primary and its replica, one address that leads to either, and what befalls them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..embedded import _binary
from .servers import ask_node, free_port, start_redis


class Pair:
    """Two servers. `url` leads to the one that is in charge, `fail_over` points it at the other."""

    def __init__(self, folder: Path, binary: str, *options: str) -> None:
        self._folder, self._binary, self._options = folder, binary, options
        self.ports = (free_port(), free_port())
        self.nodes = [self._start(0), self._start(1, "--replicaof", f"127.0.0.1 {self.ports[0]}")]
        self._link = folder / "store.sock"
        self._link.symlink_to(folder / "0.sock")
        self.wait_for_replica()

    @property
    def url(self) -> str:
        return f"unix://{self._link}"

    def wait_for_replica(self) -> None:
        """Until the replica follows, as both of them see it."""
        ask_node(self.ports[1], "INFO replication", "master_link_status:up")
        ask_node(self.ports[0], "INFO replication", "state=online")

    def freeze_replica(self) -> None:
        os.kill(self.nodes[1].pid, signal.SIGSTOP)

    def thaw_replica(self) -> None:
        os.kill(self.nodes[1].pid, signal.SIGCONT)

    def promote(self) -> None:
        """The replica stops following: whatever the primary acknowledges from here on is lost."""
        ask_node(self.ports[1], "REPLICAOF NO ONE", "OK")

    def fail_over(self) -> None:
        """The primary dies, and the address leads to the replica."""
        self.nodes[0].kill()
        self.nodes[0].wait()
        self.promote()
        self._lead_to("1.sock")

    def restart(self) -> None:
        """The primary dies and comes back with what is on its disk."""
        self.nodes[0].kill()
        self.nodes[0].wait()
        self.nodes[0] = self._start(0)

    def _start(self, number: int, *options: str) -> subprocess.Popen[bytes]:
        home = self._folder / str(number)
        home.mkdir(exist_ok=True)
        port = ("--port", str(self.ports[number]), "--bind", "127.0.0.1")
        every = (*port, "--repl-diskless-sync-delay", "0", *self._options, *options)
        return start_redis(self._folder / f"{number}.sock", home, *every, binary=self._binary)

    def _lead_to(self, socket: str) -> None:
        new = self._folder / "new.sock"
        new.symlink_to(self._folder / socket)
        new.rename(self._link)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
            node.wait()


@contextmanager
def pair(folder: Path, *options: str, is_valkey: bool = False) -> Iterator[Pair]:
    """A pair of the system's redis-server, or of the embedded Valkey, for the block."""
    home = folder / f"pair-{free_port()}"
    home.mkdir()
    servers = Pair(home, _binary() if is_valkey else "redis-server", *options)
    try:
        yield servers
    finally:
        servers.stop()
        shutil.rmtree(home, ignore_errors=True)
