"""The demo's workers: real processes of the real command, one after the other."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .stage import LEASE_S, Stage

END_S = 20.0


class Worker:
    """A child process that works on the run until it is over, waits, or is killed."""

    def __init__(self, process: asyncio.subprocess.Process, number: int) -> None:
        self._process = process
        self.number = number

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def kill(self) -> None:
        """SIGKILL: no handler, no `finally`, no goodbye."""
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def ended(self) -> int:
        """Its exit code, once it ends by itself. Raises TimeoutError."""
        async with asyncio.timeout(END_S):
            return await self._process.wait()


@asynccontextmanager
async def worker(stage: Stage, run_id: str, number: int, base_url: str) -> AsyncIterator[Worker]:
    """A worker for the length of the block; whatever is left of it then is ended."""
    command = ["resume", run_id, "--wait", "--lease", str(LEASE_S)]
    options = ["--agent", stage.agent_path, "--store", stage.store]
    with open(stage.folder / f"worker-{number}.log", "wb") as log:  # noqa: ASYNC230
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fsm_agent", *command, *options),
            env=stage.environment(base_url),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the demo, which then ends its worker
        )
    try:
        yield Worker(process, number)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
