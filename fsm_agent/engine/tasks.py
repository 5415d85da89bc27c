"""Tasks with a parent that waits for them, whose one error comes out as itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup for a body that raises more than its tasks do.

    A plain group wraps even the body's own error; who called us waits for LeaseLost, not for an
    ExceptionGroup that holds one. Several errors stay a group.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
