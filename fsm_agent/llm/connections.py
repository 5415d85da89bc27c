"""Which connections the requests go over: clients of the SDK, and how fast streams may start."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import msgspec

from fsm_agent.llm.limits import Limits

MAX_STARTING = 50  # requests on their way out: more only wait for each other's handshakes
MAX_LANE_STREAMS = 128  # open on one client: its pool looks at each of them for each request


class Endpoint(msgspec.Struct, frozen=True):
    """Where a request goes, and as whom."""

    base_url: str
    api_key: str
    model: str


class Start:
    """A place among the requests on their way out. It is given back once the request is sent."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places, self._is_held = places, False

    async def __aenter__(self) -> Start:
        await self._places.acquire()
        self._is_held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        if self._is_held:
            self._is_held = False
            self._places.release()

    async def heard(self, event: str, _: Any) -> None:
        """Hear how far the request is. From here on the server is waited for."""
        if event.endswith("receive_response_headers.started"):
            self.give_back()


_start: ContextVar[Start] = ContextVar("start")


class _Lane:
    """One client of the SDK, and how many streams are open on it."""

    def __init__(self, client: Any) -> None:
        self.client, self.open_streams = client, 0


class _LoopConnections:
    """What belongs to one event loop, as connections do."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(MAX_STARTING)
        self.lanes: dict[tuple[str, str, str], list[_Lane]] = {}


class Connections:
    """Opens the stream of each request, on as many clients as there are streams for.

    Used from another event loop it begins anew there; what a dead loop left behind is dropped.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopConnections] = {}

    async def ready(self) -> None:
        """Have what requests are made with, before their time is measured."""
        if "openai" not in sys.modules:
            # The import takes a second or two, which other runs in this loop should not wait for.
            await asyncio.to_thread(preload)

    def start(self) -> Start:
        """A place among the requests on their way out, as a context manager."""
        return Start(self._here().places)

    @asynccontextmanager
    async def posted(self, endpoint: Endpoint, body: bytes, start: Start) -> AsyncIterator[Any]:
        """The SDK's response, its body unread, and closed in the end whatever happens.

        Raises the SDK's APIStatusError and APIConnectionError.
        """
        lane = await self._lane(endpoint)
        lane.open_streams += 1
        try:
            token = _start.set(start)
            try:
                response = await lane.client.post(
                    "/chat/completions", cast_to=object, content=body, options=_OPTIONS
                )
            finally:
                _start.reset(token)
            start.give_back()
            try:
                yield response
            finally:
                await response.close()
        finally:
            lane.open_streams -= 1

    async def aclose(self) -> None:
        """Close this loop's connections, and those of loops that run elsewhere."""
        here = asyncio.get_running_loop()
        everywhere, self._by_loop = self._by_loop, {}
        for loop, connections in everywhere.items():
            for lane in _all_lanes(connections):
                if loop is here:
                    await lane.client.close()
                elif loop.is_running():
                    closing = asyncio.run_coroutine_threadsafe(lane.client.close(), loop)
                    await asyncio.wrap_future(closing)

    def _here(self) -> _LoopConnections:
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            # A dead loop's connections cannot be closed any more; let go, their sockets are.
            for dead in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[dead]
            found = self._by_loop[loop] = _LoopConnections()
        return found

    async def _lane(self, endpoint: Endpoint) -> _Lane:
        connections = self._here()
        # Azure's classic form names the model in the URL.
        url_model = endpoint.model if is_azure_classic(endpoint.base_url) else ""
        key = (endpoint.base_url, endpoint.api_key, url_model)
        lanes = connections.lanes.get(key)
        if lanes is None:
            await self._close_idle(connections)
            lanes = connections.lanes.setdefault(key, [])
        for lane in lanes:
            if lane.open_streams < MAX_LANE_STREAMS:
                return lane
        lanes.append(_Lane(self._client(endpoint)))
        return lanes[-1]

    async def _close_idle(self, connections: _LoopConnections) -> None:
        """Another endpoint or key is asked: what the former one has no use for is closed."""
        idle = [key for key, lanes in connections.lanes.items() if not _is_busy(lanes)]
        for key in idle:
            for lane in connections.lanes.pop(key):
                await lane.client.close()

    def _client(self, endpoint: Endpoint) -> Any:
        openai: Any = import_module("openai")
        timeout = openai.Timeout(None, connect=self._limits.connect_s, write=60.0, pool=30.0)
        http_client = openai.DefaultAsyncHttpxClient(
            verify=_tls(), timeout=timeout, event_hooks={"request": [_watch_start]}
        )
        url, query = split_query(endpoint.base_url)
        headers = {}
        if is_azure_classic(endpoint.base_url):
            headers["api-key"] = endpoint.api_key
            if "/deployments/" not in url:
                url = f"{url}/deployments/{endpoint.model}"
        return openai.AsyncOpenAI(
            base_url=url,
            api_key=endpoint.api_key,
            max_retries=0,
            timeout=timeout,
            http_client=http_client,
            default_query=query,
            default_headers=headers,
        )


# The first makes the SDK hand out the response with its body unread.
_OPTIONS = {
    "headers": {
        "X-Stainless-Raw-Response": "stream",
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
    }
}


async def _watch_start(request: Any) -> None:
    if start := _start.get(None):
        request.extensions = {**request.extensions, "trace": start.heard}


def preload() -> None:
    """Import the SDK now, which otherwise waits for the first request."""
    import_module("openai")


def status_error(
    endpoint: Endpoint, status: int, headers: Mapping[str, str], content: bytes
) -> Exception:
    """The SDK's APIStatusError for such an answer, for connections that are not HTTP."""
    openai: Any = import_module("openai")
    httpx: Any = import_module("httpx2")
    request = httpx.Request("POST", f"{endpoint.base_url}/chat/completions")
    response = httpx.Response(status, headers=dict(headers), content=content, request=request)
    error: Exception = openai.APIStatusError("refused", response=response, body=None)
    return error


def _all_lanes(connections: _LoopConnections) -> list[_Lane]:
    return [lane for lanes in connections.lanes.values() for lane in lanes]


def _is_busy(lanes: list[_Lane]) -> bool:
    return any(lane.open_streams for lane in lanes)


def split_query(url: str) -> tuple[str, dict[str, str]]:
    """A base URL without its query, and the query, which goes with each request."""
    parts = urlsplit(url)
    bare = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    return bare, dict(parse_qsl(parts.query))


def is_azure_classic(url: str) -> bool:
    """Whether this is Azure's older form, with the key in a header of its own.

    `https://NAME.openai.azure.com/openai?api-version=…`; its newer `/openai/v1` is like OpenAI's.
    """
    return "api-version" in split_query(url)[1]


@cache
def _tls() -> ssl.SSLContext:
    """The trust store, loaded once: that takes 80 ms, and each client wants it."""
    httpx: Any = import_module("httpx2")
    context: ssl.SSLContext = httpx.create_ssl_context()
    return context
