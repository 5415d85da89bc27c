"""How a function is run so that nobody has to wait for it: in a task, or in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec


class Ended(msgspec.Struct, frozen=True):
    """How a function ended: with a value, or with an error."""

    value: Any = None
    error: BaseException | None = None


def start(call: Callable[[], Any], *, is_async: bool, name: str) -> asyncio.Future[Ended]:
    """Start `call` now. The future ends when it does, and raises nothing of what it raised,
    except for KeyboardInterrupt in a task, which asyncio lets through at once."""
    if is_async:
        return asyncio.get_running_loop().create_task(_awaited(call), name=name)
    return _in_thread(call, name)


async def _awaited(call: Callable[[], Any]) -> Ended:
    try:
        return Ended(value=await call())
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # `sys.exit` in a tool ends the call, not the worker
        return Ended(error=error)


def _in_thread(call: Callable[[], Any], name: str) -> asyncio.Future[Ended]:
    # A thread of its own, not one of a pool: a tool that hangs takes no place from others. And a
    # daemon, as a pool would join it at exit, and the process would never end.
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Ended] = loop.create_future()
    context = contextvars.copy_context()

    def settle(ended: Ended) -> None:
        if not future.done():
            future.set_result(ended)

    def body() -> None:
        try:
            ended = Ended(value=context.run(call))
        except BaseException as error:  # also what would end the thread: the caller decides
            ended = Ended(error=error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, ended)

    threading.Thread(target=body, name=name, daemon=True).start()
    return future
