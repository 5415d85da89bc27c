"""Finished runs are folded, and expired ones removed, by whoever works anyway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from checkpoints.errors import CheckpointError
from checkpoints.store import Retention, Store

log = structlog.get_logger(__name__)


@asynccontextmanager
async def tidying(store: Store, *, every_s: float) -> AsyncIterator[None]:
    """Tidy the store now and then while the body runs, if it is one that can."""
    if not isinstance(store, Retention):
        yield
        return
    task = asyncio.create_task(_tidy(store, every_s), name="tidy finished runs")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _tidy(store: Retention, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            done = await store.tidy()
        except CheckpointError as error:
            log.info("worker.not_tidied", why=str(error))  # the next round will
            continue
        if done.folded or done.expired:
            log.info("worker.tidied", folded=len(done.folded), expired=len(done.expired))
