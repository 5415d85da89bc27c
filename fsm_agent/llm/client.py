"""How a step is asked of an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from fsm_agent.errors import MissingSetting, ProviderError
from fsm_agent.llm.connections import Connections, Endpoint, Start
from fsm_agent.llm.failures import Failure, classify
from fsm_agent.llm.limits import Limits
from fsm_agent.llm.model import Piece, Reply, StepRequest, Use
from fsm_agent.llm.patience import Patience
from fsm_agent.llm.profiles import Constraint, Profile, adapted, profile_for
from fsm_agent.llm.reading import Reading
from fsm_agent.llm.request import RequestBuilder, may_change, sendable
from fsm_agent.llm.stream import Stream
from fsm_agent.llm.transcribe import transcribe
from fsm_agent.run.content import Usage

OPENAI_URL = "https://api.openai.com/v1"
MAX_CHANGES = 6  # of one request, after refusals
LONG_REQUEST_BYTES = 64 << 10
_NO_KEY = "none"  # what a server on this machine gets that asks for no key


class _Refused(Exception):
    """The server answered with an error status, before anything was paid for."""

    def __init__(self, status: int, failure: Failure) -> None:
        super().__init__(failure.said)
        self.status, self.failure = status, failure


class OpenAIModel:
    """A Model behind a Chat Completions endpoint, streamed.

    `model`, `base_url` and `api_key` default to FSM_AGENT_MODEL, OPENAI_BASE_URL and
    OPENAI_API_KEY, read at each step. `is_live` shows the body of a final label as it comes, and
    takes it back if the reply does not hold; otherwise it is shown once, when it does.
    `profile` says what the endpoint accepts, where that is known better than by its host.
    `constrain` has the server hold the model to the label protocol: "grammar" for llama.cpp,
    "regex" for vLLM and SGLang. It defaults to FSM_AGENT_CONSTRAINT, and is off without that:
    servers that do not know the field may refuse the request or pass over it.
    `connections` carries the requests by another way than HTTP.

    One step is one paid request and is never repeated here. A request that the server refuses
    because of one field is part of the same step, since nothing was paid for: it is put again
    without that field, one change at a time, and the change is remembered for endpoint and model.
    """

    def __init__(
        self,
        model: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        limits: Limits | None = None,
        is_live: bool = False,
        profile: Profile | None = None,
        constrain: Constraint | None = None,
        connections: Connections | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._given = (model, base_url, api_key)
        self._is_live, self._profile, self._constrain = is_live, profile, constrain
        self._profiles: dict[tuple[str, str], Profile] = {}
        self._builder = RequestBuilder()
        self._connections = connections or Connections(self.limits)

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        """Ask once, and read the reply to its end. See `Model.step`.

        Raises MissingSetting without a model or key, and ProviderError if there is no reply.
        """
        endpoint = self.endpoint(request)
        for _ in range(MAX_CHANGES):
            profile = self.profile(endpoint)
            try:
                return await self._attempt(request, endpoint, profile, on_piece)
            except _Refused as refused:
                changed = _changed(profile, refused.failure, request)
                if changed is None:
                    raise _error_of(refused, endpoint) from None
                self._profiles[endpoint.base_url, endpoint.model] = changed
        raise ProviderError(
            "bad_request",
            f"the model server refused {MAX_CHANGES} forms of the request",
            is_retryable=False,
        )

    async def aclose(self) -> None:
        """Close connections. The model may be used again."""
        await self._connections.aclose()

    def name_of(self, use: Use) -> str:
        """The model that answers where a request names none. See `Named`."""
        if use == "transcript":
            return os.environ.get("FSM_AGENT_TRANSCRIBE_MODEL", "")
        return self._given[0] or os.environ.get("FSM_AGENT_MODEL", "")

    @property
    def can_transcribe(self) -> bool:
        """Whether FSM_AGENT_TRANSCRIBE_MODEL names a model that puts sound into words."""
        return bool(self.name_of("transcript"))

    async def transcribe(self, data: bytes, media_type: str) -> tuple[str, Usage | None]:
        """What is said in a sound or film. See `Transcriber.transcribe`."""
        endpoint = replace(self.endpoint(), model=self.name_of("transcript"))
        return await transcribe(endpoint, data, media_type, self.limits)

    def endpoint(self, request: StepRequest | None = None) -> Endpoint:
        """Where a request would go now. Raises MissingSetting, which says what to set."""
        _, given_url, given_key = self._given
        model = (request.model if request else None) or self.name_of("step")
        url = given_url or os.environ.get("OPENAI_BASE_URL") or ""
        key = given_key or os.environ.get("OPENAI_API_KEY") or ""
        if not key and is_loopback(url):
            key = _NO_KEY
        if not key:
            raise MissingSetting(
                "no API key for the model. Set OPENAI_API_KEY, or set OPENAI_BASE_URL to a model "
                "server on this machine."
            )
        if not model:
            raise MissingSetting("no model is named. Set FSM_AGENT_MODEL, for example to gpt-5.")
        return Endpoint((url or OPENAI_URL).rstrip("/"), key, model)

    def profile(self, endpoint: Endpoint) -> Profile:
        """What is known of the endpoint and model, `changes` after refusals included."""
        known = self._profiles.get((endpoint.base_url, endpoint.model))
        if known is not None:
            return known
        given = self._profile or profile_for(endpoint.base_url)
        constraint = self._constrain or given.constraint or _constraint_in_environment()
        return given if constraint == given.constraint else replace(given, constraint=constraint)

    async def _attempt(
        self,
        request: StepRequest,
        endpoint: Endpoint,
        profile: Profile,
        on_piece: Callable[[Piece], None],
    ) -> Reply:
        """One request. Raises _Refused for an error status."""
        await self._connections.ready()
        request = sendable(request, profile)
        body = self._builder.body(request, endpoint.model, profile)
        reading = Reading(
            request, on_piece, is_live=self._is_live, max_chars=self.limits.max_reply_chars
        )
        patience = Patience(self.limits)
        stream = Stream(reading, patience)
        try:
            # A place among those that start is waited for before the server is.
            async with (
                self._connections.start() as start,
                patience,
                self._response(endpoint, body, start) as response,
            ):
                await stream.read(_body_of(response))
                stream.close()
        except TimeoutError:
            if not stream.is_complete:
                raise _timed_out(stream, patience, endpoint) from None
        except _transport_errors() as error:
            # A reset after the finish reason takes nothing away.
            if not stream.is_complete:
                raise stream.dropped() from error
        except asyncio.CancelledError:
            reading.abandon()
            raise
        stream.check()
        return reading.finish()

    @asynccontextmanager
    async def _response(self, endpoint: Endpoint, body: bytes, start: Start) -> AsyncIterator[Any]:
        """The response to a request, once its status is good. Raises _Refused or ProviderError."""
        async with AsyncExitStack() as stack:
            try:
                posted = self._connections.posted(endpoint, body, start)
                response = await stack.enter_async_context(posted)
            except _sdk().APIStatusError as error:
                raise _refused(error, len(body)) from None
            except _sdk().APIConnectionError as error:
                raise _unreachable(error, endpoint) from error
            yield response


def _body_of(response: Any) -> AsyncIterator[bytes]:
    """The bytes of the body as they come, through as few hands as may be."""
    http: Any = response.http_response
    if "content-encoding" in http.headers:
        decoded: AsyncIterator[bytes] = http.aiter_bytes()
        return decoded
    raw: AsyncIterator[bytes] = aiter(http.stream)
    return raw


def _constraint_in_environment() -> Constraint | None:
    match os.environ.get("FSM_AGENT_CONSTRAINT", "").strip().lower():
        case "":
            return None
        case "grammar" | "regex" as known:
            return known
        case other:
            raise MissingSetting(
                f"FSM_AGENT_CONSTRAINT is {other!r}. Set it to grammar (llama.cpp), to regex "
                "(vLLM, SGLang), or not at all."
            )


def _sdk() -> Any:
    return importlib.import_module("openai")  # looked at only once something was raised


def _transport_errors() -> tuple[type[Exception], ...]:
    httpx: Any = importlib.import_module("httpx2")
    return (httpx.TransportError, httpx.StreamError)


def _changed(profile: Profile, failure: Failure, request: StepRequest) -> Profile | None:
    """The profile after the first change that the failure may mean and the request allows."""
    for change in (failure.change, *failure.others):
        if change is not None and may_change(change, request, profile):
            changed = adapted(profile, change)
            if changed is not None:
                return changed
    return None


def _refused(error: Any, sent_bytes: int) -> _Refused:
    response = error.response
    failure = classify(response.status_code, response.text, response.headers, datetime.now(UTC))
    is_mute = failure.kind == "bad_request" and not failure.said and response.status_code == 400
    if is_mute and sent_bytes > LONG_REQUEST_BYTES:
        # Some servers refuse what is too long without a word.
        failure = replace(failure, kind="context_length")
    return _Refused(response.status_code, failure)


def _error_of(refused: _Refused, endpoint: Endpoint) -> ProviderError:
    """The refusal as the engine sees it. A key is never repeated, not even by the server."""
    failure, status = refused.failure, refused.status
    said = failure.said.replace(endpoint.api_key, "***") or "no reason given"
    message = f"{endpoint.base_url} answered {status}: {said}"
    if failure.kind == "auth":
        message = f"{endpoint.base_url} refused the API key ({status}). Check OPENAI_API_KEY."
    return ProviderError(
        failure.kind,
        message,
        is_retryable=failure.is_retryable,
        retry_after_s=failure.retry_after_s,
        status=status,
    )


def _unreachable(error: Any, endpoint: Endpoint) -> ProviderError:
    reason = error.__cause__ or error
    httpx: Any = importlib.import_module("httpx2")
    if isinstance(reason, (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)):
        return ProviderError(
            "connection_dropped",
            f"{endpoint.base_url} closed the connection without an answer.",
            is_retryable=True,
        )
    return ProviderError(
        "unreachable",
        f"no model server at {endpoint.base_url} ({str(reason) or type(reason).__name__}).",
        is_retryable=True,
    )


def _timed_out(stream: Stream, patience: Patience, endpoint: Endpoint) -> ProviderError:
    return stream.failed(
        "timeout",
        f"{endpoint.base_url}: no {patience.waiting} in {patience.limit_s:g} s",
        retry=True,
    )


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
