"""Real worker processes and their store's server, and what is done to them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import fsm_agent

from . import agent as chaos_agent

LEASE_S = 1.0
END_S = 10.0
REST_S = 5.0  # longer than a call may take once its worker runs again


@dataclass
class Fleet:
    """Workers of the real command on a store in a folder, each in a process of its own."""

    folder: Path
    base_url: str
    workers: list[asyncio.subprocess.Process] = field(default_factory=list)
    _frozen: set[int] = field(default_factory=set)
    _thawed_s: dict[int, float] = field(default_factory=dict)
    _born: int = 0

    @property
    def store(self) -> str:
        return f"embedded:{self.folder / 'store'}"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    async def start_worker(self) -> None:
        """One more."""
        self._born += 1
        with open(self.folder / f"worker-{self._born}.log", "wb") as log:  # noqa: ASYNC230
            self.workers.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "fsm_agent", "worker"),
                    *("--agent", f"{chaos_agent.__file__}:agent"),
                    *("--store", self.store, "--lease", str(LEASE_S)),
                    env=self._environment(),
                    cwd=self.folder,  # `-m` imports from there: what lies around must not come in
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for chaos, which then ends its workers
                )
            )

    async def kill(self, worker: asyncio.subprocess.Process) -> None:
        """SIGKILL, and another in its place."""
        self.workers.remove(worker)
        self._frozen.discard(worker.pid)
        with suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()
        await self.start_worker()

    def running(self) -> list[asyncio.subprocess.Process]:
        """Workers that are neither frozen nor ended."""
        return [w for w in self.workers if w.pid not in self._frozen and w.returncode is None]

    def rested(self) -> list[asyncio.subprocess.Process]:
        """Those of them that were not frozen lately: two freezes must not add up to a long one."""
        now = time.monotonic()
        return [w for w in self.running() if now > self._thawed_s.get(w.pid, 0.0) + REST_S]

    def freeze(self, worker: asyncio.subprocess.Process) -> None:
        """SIGSTOP."""
        self._frozen.add(worker.pid)
        worker.send_signal(signal.SIGSTOP)

    def thaw(self, worker: asyncio.subprocess.Process) -> None:
        """SIGCONT, if it is still there."""
        self._frozen.discard(worker.pid)
        self._thawed_s[worker.pid] = time.monotonic()
        if worker.returncode is None:
            with suppress(ProcessLookupError):
                worker.send_signal(signal.SIGCONT)

    def kill_store(self) -> bool:
        """SIGKILL to the server, which whoever needs it next starts again. False: it is down."""
        folder = self.folder / "store"
        try:
            pid = int((folder / "server.pid").read_text())
            # The number may be that of a server before, and belong to anybody by now.
            if Path("/proc").is_dir() and not os.path.samefile(f"/proc/{pid}/cwd", folder):
                return False
            os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            return False
        return True

    async def stop(self) -> list[int]:
        """SIGTERM to all, SIGKILL to who does not end: the exit codes."""
        for worker in self.workers:
            self.thaw(worker)
            if worker.returncode is None:
                with suppress(ProcessLookupError):
                    worker.terminate()
        codes = []
        for worker in self.workers:
            try:
                async with asyncio.timeout(END_S):
                    codes.append(await worker.wait())
            except TimeoutError:
                worker.kill()
                codes.append(await worker.wait())
        self.workers.clear()
        return codes

    def _environment(self) -> dict[str, str]:
        package = str(Path(fsm_agent.__file__).resolve().parent.parent)
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        return os.environ | {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": "chaos-needs-none",
            "FSM_AGENT_MODEL": "scripted",
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join(paths),
            chaos_agent.LEDGER: str(self.ledger),
        }
