"""Running code in a process of its own that may be killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from fsm_agent.errors import UsageError


def in_child(body: Callable[[], None], *, time_limit_s: float = 30.0) -> int:
    """Run `body` in a forked child and wait for it. Its exit code, or minus the signal."""
    return wait_for(fork(body, time_limit_s=time_limit_s))


def fork(body: Callable[[], None], *, time_limit_s: float = 30.0, output: str | None = None) -> int:
    """Start `body` in a forked child; its process id. What it raises goes to stderr, as code 1.

    A child that outlives the limit is killed with SIGALRM. `output` is a file for its stdout and
    stderr. Call it where no event loop runs in this thread.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # or the child would have a copy of what waits in the buffer
    pid = os.fork()
    if pid == 0:
        _become_child(body, time_limit_s, output)
    return pid


def wait_for(pid: int) -> int:
    """Wait for a child to end. Its exit code, or minus the signal."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def refuse_threads() -> None:
    """Raises UsageError where a fork could copy a lock that nobody opens again."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UsageError(
            "a crash sweep forks, which goes wrong inside of an event loop. "
            "Call it from a plain function: `def test_…`, not `async def test_…`."
        )
    others = [t.name for t in threading.enumerate() if t is not threading.current_thread()]
    alive = [name for name in others if not name.startswith("pytest_timeout")]
    if alive:
        raise UsageError(
            f"a crash sweep forks, which goes wrong while other threads run ({', '.join(alive)}). "
            "Stop them first; a scripted model needs no server: give the script itself."
        )


def _become_child(body: Callable[[], None], time_limit_s: float, output: str | None) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, time_limit_s)
        if output is not None:
            _redirect(output)
        body()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # nobody reads it any more
                stream.flush()
        os._exit(code)


def _redirect(output: str) -> None:
    """Let everything that this process prints go to a file, whatever stands for its streams."""
    handle = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    sys.stdout = open(1, "w", closefd=False, errors="replace")  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="replace", buffering=1)  # noqa: SIM115
