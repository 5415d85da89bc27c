"""This process: its event loop, the signals that end it, and what it writes to."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import termios
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TextIO, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """Somebody wants this process to end. What it held was given back."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number

    @property
    def code(self) -> int:
        return 128 + self.number


_AT_ONCE = (
    b"\nstopped at once, and given back nothing: what it held is free once its lease has ended. "
    b"See: fsm-agent list\n"
)
_stops: list[Callable[[int], None]] = []


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main` in an event loop. SIGINT and SIGTERM cancel it, a second one ends the process.

    Raises Stopped after such an end.
    """
    return asyncio.run(_supervised(main))


def stop(number: int) -> None:
    """End what runs as if this signal had come."""
    for each in _stops:
        each(number)


async def _supervised(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    task = asyncio.current_task()
    assert task
    came: list[int] = []

    def came_now(number: int) -> None:
        if came:
            with suppress(OSError):
                os.write(2, _AT_ONCE)
            os._exit(128 + number)
        came.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, came_now, number)
    _stops.append(lambda number: None if came else came_now(number))
    try:
        result = await main()
        if came:
            # It came when there was nothing left to stop: what was done is done, and is told so.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        return result
    except asyncio.CancelledError:
        if came:
            raise Stopped(came[0]) from None
        raise
    finally:
        _stops.clear()


def write(stream: TextIO, text: str) -> None:
    """Write and flush. A reader that has gone away ends what runs, once."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        muffle(stream)
        if not _stops:
            raise Stopped(signal.SIGPIPE) from None
        stop(signal.SIGPIPE)


def muffle(stream: TextIO) -> None:
    """Let further writes to a broken pipe go nowhere, those at the interpreter's end too."""
    with suppress(io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def open_missing_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr ones that lead nowhere.

    Else the next file or socket that is opened would get their number, and what is meant for a
    person would be written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def say(text: str) -> None:
    """A line of talk, on stderr."""
    write(sys.stderr, text + "\n")


def put(text: str) -> None:
    """A line of data, on stdout."""
    write(sys.stdout, text + "\n")


def put_done(text: str) -> None:
    """A line of data about what is done and on record: a reader that has gone changes nothing."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        muffle(sys.stdout)


def read_line(prompt: str) -> str | None:
    """A line that the person types, None at the end of input. Raises Stopped on Ctrl-C.

    What was typed before the question stood there does not answer it. Blocks the event loop:
    nothing is held while a run waits for a person.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _forget_typed_ahead()
        sys.stderr.write(prompt)
        sys.stderr.flush()
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise Stopped(signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGINT, before)
    return line.rstrip("\n") if line else None


def _forget_typed_ahead() -> None:
    with suppress(termios.error, OSError, ValueError):  # no terminal: nobody types
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def is_terminal() -> bool:
    """Whether a person sits at both ends of a conversation."""
    return sys.stdin.isatty() and sys.stderr.isatty()
