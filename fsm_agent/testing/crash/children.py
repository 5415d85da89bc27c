"""Running code in a process of its own that may be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from fsm_agent.errors import UsageError

STOP_S = 5.0  # for a child that was told to stop


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
    with warnings.catch_warnings():
        # Of other threads, which this process has no say in: a test runner's. A child that one of
        # their locks holds up is ended by its limit.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _become_child(body, time_limit_s, output)
    return pid


def wait_for(pid: int) -> int:
    """Wait for a child to end. Its exit code, or minus the signal."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


@contextmanager
def not_outliving(*pids: int) -> Iterator[None]:
    """If the block is left by an error, such as Ctrl-C, these children are stopped, and waited for.

    SIGTERM first, so that a child that has children of its own can stop those.
    """
    try:
        yield
    except BaseException:
        for pid in pids:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGTERM)
        for pid in pids:
            with suppress(ChildProcessError):
                _reap(pid)
        raise


def _reap(pid: int) -> None:
    """Wait for a child that was told to stop, and kill it if it does not."""
    end = time.monotonic() + STOP_S
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.005)


def refuse_event_loop() -> None:
    """Raises UsageError where a fork would copy a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "a crash sweep forks and waits, which does not go together with a running event loop. "
        "Call it from a plain function: `def test_…`, not `async def test_…`."
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
