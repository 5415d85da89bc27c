"""Letting one call land although its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def through(call: Coroutine[Any, Any, T]) -> T:
    """Await `call` to its end; a cancellation that came meanwhile is raised after it."""
    task = asyncio.ensure_future(call)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:  # the task's own error: raised again below
            break
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what the caller hears
        raise cancelled
    return task.result()
