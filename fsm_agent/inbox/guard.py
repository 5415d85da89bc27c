"""What every request meets before a route: its host and origin, its size, its time; and the
headers that every answer carries."""

from __future__ import annotations

import asyncio
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fsm_agent.inbox.problems import Problem
from fsm_agent.inbox.settings import Settings

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'; object-src 'none';"
    " require-trusted-types-for 'script'; trusted-types inbox"
)
_HEADERS = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # not less: a form of ours would name no origin
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


class Guard:
    """ASGI middleware. It never looks at the path: what is allowed is the routes' business."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        named = {
            _name_of(settings.url.partition("://")[2]),
            *map(str.lower, settings.allowed_hosts),
        }
        self._hosts = (_LOOPBACK | named | {settings.host.lower()}) - {"0.0.0.0", "::", "[::]", ""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with_ours(message["headers"])}
            await send(message)

        try:
            self._check(scope)
            limited = _Body(receive, self._settings)
            await self._app(scope, limited.receive, answer)
        except Problem as problem:
            await problem.response()(scope, receive, answer)

    def _check(self, scope: Scope) -> None:
        """Raises Problem."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        host = hosts[0].decode("latin-1") if len(hosts) == 1 else ""
        if not _HOST.fullmatch(host):
            raise Problem(
                400, "bad-host", "The request names no host, or not in a way that counts."
            )
        if _name_of(host) not in self._hosts:
            words = "This inbox does not answer to that name. Start it with --allow-host NAME."
            raise Problem(421, "wrong-host", words)
        self._check_origin(scope["method"], host, headers)
        for name, value in headers:
            is_long = name == b"content-length" and value.isdigit() and len(value) < 20
            if is_long and int(value) > self._settings.max_body_bytes:
                raise _too_large(self._settings)

    def _check_origin(self, method: str, host: str, headers: list[tuple[bytes, bytes]]) -> None:
        """No page of another site may say anything here, nor read a stream."""
        given = {n: v.decode("latin-1") for n, v in headers if n in (b"origin", b"sec-fetch-site")}
        is_stream = any(n == b"accept" and b"text/event-stream" in v for n, v in headers)
        if method in _SAFE and not is_stream:
            return
        origin, site = given.get(b"origin"), given.get(b"sec-fetch-site", "same-origin")
        ours = {f"http://{host}", f"https://{host}", self._settings.url}
        if (origin is not None and origin not in ours) or site not in ("same-origin", "none"):
            raise Problem(403, "wrong-origin", "Another site sent this request. Nothing was done.")


class _Body:
    """A request's body, up to a size, and within a time."""

    def __init__(self, receive: Receive, settings: Settings) -> None:
        self._receive, self._settings = receive, settings
        self._size, self._is_whole = 0, False
        self._until = asyncio.get_running_loop().time() + settings.body_s

    async def receive(self) -> Message:
        if self._is_whole:
            return await self._receive()  # from here on it only tells that the client went away
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise Problem(408, "too-slow", "The request's body did not come in time.") from None
        self._size += len(message.get("body", b""))
        if self._size > self._settings.max_body_bytes:
            raise _too_large(self._settings)
        self._is_whole = not message.get("more_body", False)
        return message


def _too_large(settings: Settings) -> Problem:
    words = f"A request may have {settings.max_body_bytes:,} bytes. Nothing was done."
    # The rest of the body is not read: the connection has to go.
    return Problem(413, "too-large", words, headers={"Connection": "close"})


def _with_ours(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    known = {name.lower() for name, _ in headers}
    ours = [pair for pair in _HEADERS if pair[0] not in known]
    if b"cache-control" not in known:
        ours.append((b"cache-control", b"no-store"))
    return [*headers, *ours]


def _name_of(host: str) -> str:
    """A host without its port, in small letters."""
    found = _HOST.match(host)
    return found.group(1).lower() if found else ""
