"""A scripted model without a server: the real client, whose requests never leave the process."""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from fsm_agent.llm.client import OpenAIModel
from fsm_agent.llm.connections import Connections, Endpoint, Start, status_error
from fsm_agent.llm.limits import Limits
from fsm_agent.testing.answering import Answering
from fsm_agent.testing.script import (
    AnswerFunction,
    JsonObject,
    Raw,
    Request,
    Script,
    dumps,
    item_bytes,
)

URL = "http://127.0.0.1/script"  # never connected to


def scripted_model(script: Script | AnswerFunction) -> OpenAIModel:
    """A Model that answers from `script`, through the client's own reading of its bytes.

    The script's waits are left out, and a hang is a cut: nothing here takes time.
    """
    return OpenAIModel("scripted", URL, "none", connections=ScriptedConnections(script))


class ScriptedConnections(Connections):
    """Connections that end at a script in this process."""

    def __init__(self, script: Script | AnswerFunction) -> None:
        super().__init__(Limits())
        self._answering = Answering(script)
        self._count = 0

    async def ready(self) -> None:
        """See Connections. A script needs no SDK."""

    @asynccontextmanager
    async def posted(self, endpoint: Endpoint, body: bytes, start: Start) -> AsyncIterator[Any]:
        """See Connections. Raises the SDK's APIStatusError where the script says so."""
        start.give_back()
        self._count += 1
        request = Request(body=json.loads(body), number=self._count)
        raw = (await self._answering.answer(request)).response
        if raw.status >= 400:
            raise status_error(endpoint, raw.status, raw.headers, _content(raw))
        http = SimpleNamespace(headers=raw.headers, stream=_pieces(raw))
        yield SimpleNamespace(http_response=http)


async def _pieces(raw: Raw) -> AsyncIterator[bytes]:
    items = [*raw.before_head, *(raw.chunks or ())]
    for item in _unrolled(items):
        if (piece := item_bytes(item)) is not None:
            yield piece
        elif "_delay_ms" not in item:
            httpx: Any = importlib.import_module("httpx2")
            raise httpx.ReadError("the script cut the connection")
    if raw.chunks is None:
        yield _content(raw)


def _unrolled(items: Sequence[JsonObject]) -> list[JsonObject]:
    found = []
    for item in items:
        found += [item["item"]] * item["_repeat"] if "_repeat" in item else [item]
    return found


def _content(raw: Raw) -> bytes:
    if raw.body is None or isinstance(raw.body, bytes):
        return raw.body or b""
    return (raw.body if isinstance(raw.body, str) else dumps(raw.body)).encode()
