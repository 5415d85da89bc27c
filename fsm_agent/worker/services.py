"""What a worker's process does next to its runs, such as sending notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

log = structlog.get_logger(__name__)

AGAIN_S = 5.0  # before a service that failed is started again


@dataclass(frozen=True)
class Service:
    """Something that goes on until it is cancelled."""

    name: str
    run: Callable[[], Awaitable[None]]


async def kept_up(service: Service) -> None:
    """Run a service, again and again if it fails: the work does not depend on it."""
    while True:
        try:
            await service.run()
        except Exception as error:
            log.error("worker.service_failed", service=service.name, why=repr(error), exc_info=True)
        await asyncio.sleep(AGAIN_S)
