"""This process: its event loop, the signals that end it, and what it writes to."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
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
            os._exit(128 + number)
        came.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, came_now, number)
    _stops.append(lambda number: None if came else came_now(number))
    try:
        return await main()
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
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def say(text: str) -> None:
    """A line of talk, on stderr."""
    write(sys.stderr, text + "\n")


def put(text: str) -> None:
    """A line of data, on stdout."""
    write(sys.stdout, text + "\n")


def read_line(prompt: str) -> str | None:
    """A line that the person types, None at the end of input. Raises Stopped on Ctrl-C.

    Blocks the event loop: nothing is held while a run waits for a person.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise Stopped(signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGINT, before)
    return line.rstrip("\n") if line else None


def is_terminal() -> bool:
    """Whether a person sits at both ends of a conversation."""
    return sys.stdin.isatty() and sys.stderr.isatty()
