"""Several calls at once, whose commands then share a write."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in the order of the calls. A failure ends the rest and is raised itself."""
    if len(calls) == 1:  # as in a folder, with its one partition
        return [await calls[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
