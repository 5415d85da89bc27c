"""What a worker's process does next to its runs, such as hearing messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

log = structlog.get_logger(__name__)

AGAIN_S = 5.0  # before a service that failed is started again
INSIST_S = 0.1  # before one that goes on after its cancellation is cancelled again


@dataclass(frozen=True)
class Service:
    """Something that goes on until it is cancelled."""

    name: str
    run: Callable[[], Awaitable[None]]


async def kept_up(service: Service) -> None:
    """Run a service, again and again if it fails: the work does not depend on it."""
    while True:
        running = asyncio.ensure_future(service.run())
        try:
            await asyncio.wait([running])
            if error := running.exception():
                log.error("worker.service_failed", service=service.name, why=repr(error))
        finally:
            await _end(running)
        await asyncio.sleep(AGAIN_S)


async def _end(running: asyncio.Future[None]) -> None:
    # Not cancelled once: clients lose that. redis-py's for clusters goes on with what it was doing
    # if it was cancelled while it connected, and a worker that drains would wait for ever.
    while not running.done():
        running.cancel()
        await asyncio.wait([running], timeout=INSIST_S)
