"""The web server's own life: opened, served, and closed without waiting for open streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from socket import AF_INET, AF_INET6, create_server
from typing import Any

import uvicorn

from fsm_agent.errors import UsageError
from fsm_agent.inbox.app import build
from fsm_agent.inbox.desk import Desk
from fsm_agent.inbox.feeds import Feeds
from fsm_agent.inbox.settings import Settings
from fsm_agent.runtime import Runtime

HEADER_BYTES = 32_768
IDLE_S = 30  # an idle connection, and one that has not sent its headers
END_S = 3  # for answers under way when the server ends


def feeds_of(runtime: Runtime, settings: Settings) -> Feeds:
    """The watchers of a server."""
    return Feeds(runtime, max_feeds=settings.max_feeds, look_s=settings.look_s)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # whoever runs us hears them, and cancels us


async def serve(desk: Desk, *, on_ready: Callable[[int], None] = lambda port: None) -> None:
    """Answer requests until cancelled. `on_ready` is told the port once it listens.

    Raises UsageError if the address cannot be listened on.
    """
    settings = desk.settings
    config = uvicorn.Config(
        build(desk),
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,  # a proxy is believed by its secret, not by its address
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=END_S,
        limit_concurrency=desk.settings.max_streams + 500,
        ws="none",
        lifespan="off",
        loop="none",
        http="h11",
    )
    server = _Server(config)
    try:
        family = AF_INET6 if ":" in settings.host else AF_INET
        socket = create_server((settings.host, settings.port), family=family)
    except OSError as error:
        where, why = f"{settings.host}:{settings.port}", error.strerror or error
        raise UsageError(
            f"cannot listen on {where}: {why}. Give another --port or --host."
        ) from None
    task = asyncio.create_task(server.serve([socket]), name="inbox")
    try:
        while not server.started and not task.done():  # noqa: ASYNC110  uvicorn tells nobody
            await asyncio.sleep(0.01)
        on_ready(socket.getsockname()[1])
        await asyncio.shield(task)
    finally:
        desk.feeds.close()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task], timeout=END_S + 2)
        await desk.feeds.aclose()
        socket.close()


@asynccontextmanager
async def serving(desk: Desk) -> AsyncIterator[int]:
    """The server for the length of the block, and its port."""
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    task: asyncio.Future[Any] = asyncio.ensure_future(serve(desk, on_ready=ready.set_result))
    try:
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await task
        port: int = ready.result()
        yield port
    finally:
        task.cancel()
        await asyncio.wait([task])
