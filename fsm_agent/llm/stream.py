"""When the stream of a reply is over, and whether it is whole."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any, Literal

from fsm_agent.errors import ProviderError
from fsm_agent.llm.failures import classify_event, said_in
from fsm_agent.llm.patience import Patience
from fsm_agent.llm.reading import Reading, ReplyTooLong
from fsm_agent.llm.sse import Event, EventTooLong, SseReader
from fsm_agent.llm.wire import EMPTY, Chunk, decode, decode_event, error_in

REUSE_S = 0.1  # after [DONE], for the end of the body: then the connection can be used again
USAGE_CAME_S = 0.5  # after finish reason and usage there is nothing to wait for but [DONE]

_DONE = (b"[DONE]", b"DONE")
_FAILED = frozenset({"error", "network_error", "abort", "aborted"})
_OVERLOADED = frozenset({"insufficient_system_resource"})
_OVERFLOWED = frozenset({"model_context_window_exceeded"})


class Stream:
    """Reads the body of a response into a Reading.

    A finish reason or [DONE] completes a reply. Without either, a reset is a failure, and a clean
    end is one too unless all there is are whole tool calls.
    """

    def __init__(self, reading: Reading, patience: Patience) -> None:
        self._reading, self._patience = reading, patience
        self._sse = SseReader()
        self._is_done = False
        self._nonsense = b""  # the first data that was no chunk
        self._has_chunks = False
        self._is_ending = False  # the body is over: what comes now may be cut short

    @property
    def is_complete(self) -> bool:
        return self._is_done or self._reading.finish_reason is not None

    async def read(self, body: AsyncIterable[bytes]) -> None:
        """Read to the end. Raises ProviderError for an error event or an oversized reply."""
        async for data in body:
            self._take(data)
            if self._is_done:
                self._patience.allow(REUSE_S, "trailer")

    def _take(self, data: bytes) -> None:
        try:
            self._events(self._sse.feed(data))
        except EventTooLong as error:
            raise self.failed("malformed_stream", f"the model server sent {error}") from error
        except ReplyTooLong as error:
            limit = self._patience.limits.max_reply_chars
            raise self.failed(
                "malformed_stream", f"the reply is longer than the limit of {limit} characters"
            ) from error

    def _events(self, events: list[Event]) -> None:
        had_progress = False
        for name, data in events:
            if self._is_done:
                break
            had_progress = self._event(name, data) or had_progress
        self._reading.settle()
        if had_progress:
            self._wait_on()

    def _event(self, name: str, data: bytes) -> bool:
        """Take one event, and say whether the reply went on."""
        if not data.startswith(b"{"):
            data = self._bared(data.strip())
            if not data:
                return False
        chunk = decode(data)
        if chunk is not None and chunk.error is None and name != "error":
            return self._chunk(chunk, data)
        had_progress = False
        for chunk in decode_event(data):
            if name == "error" or (chunk is not None and chunk.error):
                self._fail((chunk.error if chunk else None) or data.decode("utf-8", "replace"))
            if chunk is None:
                self._not_a_chunk(data)
            else:
                had_progress = self._chunk(chunk, data) or had_progress
        return had_progress

    def _bared(self, data: bytes) -> bytes:
        """Data that begins like no object: the end of the stream, or a doubled field name."""
        while data.startswith(b"data:"):
            data = data[5:].lstrip()
        if data.strip(b'"').upper() in _DONE:
            self._is_done = True
            return b""
        return data

    def _not_a_chunk(self, data: bytes) -> None:
        """A line of text does no harm; half an object was a part of the reply, and is lost."""
        if data.startswith(b"{") and self._has_chunks and not self._is_ending:
            raise self.failed("malformed_stream", "a chunk of the stream is broken", retry=True)
        self._nonsense = self._nonsense or data[:500]

    def _chunk(self, chunk: Chunk, data: bytes) -> bool:
        if chunk.choices is None and chunk.usage is None and (error := error_in(data)):
            self._fail(error)
        self._has_chunks = True
        was_finished = self._reading.finish_reason is not None
        added = self._reading.take(chunk)
        if not was_finished:
            return True  # also an empty chunk: servers send them while they gather a call
        return added or chunk.usage is not None

    def _wait_on(self) -> None:
        """Set the limit for what is next.

        A finish reason before anything was said does not count: some servers end their reasoning
        with one.
        """
        limits, reading = self._patience.limits, self._reading
        if reading.finish_reason is None or not reading.has_begun:
            idle_s = limits.idle_s
            if reading.is_answering and not reading.has_calls:
                idle_s = min(limits.idle_answer_s, idle_s)
            self._patience.allow(idle_s, "next chunk")
        elif reading.usage is not None:
            self._patience.allow(min(limits.trailer_s, USAGE_CAME_S), "trailer")
        else:
            self._patience.allow(limits.trailer_s, "trailer")

    def _fail(self, error: dict[str, Any] | str) -> None:
        failure = classify_event(error)
        raise ProviderError(
            failure.kind,
            f"the model server broke off the reply: {failure.said}",
            is_retryable=failure.is_retryable,
            retry_after_s=failure.retry_after_s,
            partial_text=self._reading.abandon(),
        )

    def close(self) -> None:
        """The body ended in peace. Take a last event without its blank line."""
        self._is_ending = True
        events = self._sse.close()
        self._events(events)
        if not self._sse.has_events and self._sse.stray:
            self._plain_body(bytes(self._sse.stray))

    def _plain_body(self, body: bytes) -> None:
        """No event stream at all: a completion in one piece, an error, or a web page."""
        chunks = decode_event(body.strip())
        for chunk in chunks:
            if chunk is not None and chunk.error:
                self._fail(chunk.error)
        if chunks[0] is not None and chunks[0].choices:
            for chunk in chunks:
                self._chunk(chunk or EMPTY, body)
            self._reading.settle()
            return
        said = said_in(body.decode("utf-8", "replace"))
        raise self.failed(
            "malformed_stream",
            f"the server answered with something else than a model's stream: {said} "
            "Check the base URL.",
        )

    def check(self) -> None:
        """Raises ProviderError if the reply is not complete, or says itself that it failed."""
        reason = self._reading.finish_reason
        if reason in _OVERFLOWED and not self._reading.text.strip():
            raise self.failed("context_length", "the request is longer than the model's context")
        if reason in _FAILED:
            raise self.failed(
                "stream_error", f"the model server ended the reply with {reason!r}", retry=True
            )
        if reason in _OVERLOADED:
            raise self.failed("overloaded", "the model server ran out of resources", retry=True)
        if self.is_complete or self._reading.are_calls_whole():
            return
        if self._nonsense and not self._has_chunks:
            said = said_in(self._nonsense.decode("utf-8", "replace"))
            raise self.failed("stream_error", f"the model server sent no reply, but: {said}")
        raise self.dropped()

    def dropped(self) -> ProviderError:
        """The failure of a stream that ended before the reply did."""
        return self.failed(
            "connection_dropped", "the model server's stream ended before the reply did", retry=True
        )

    def failed(
        self,
        kind: Literal[
            "stream_error",
            "malformed_stream",
            "connection_dropped",
            "timeout",
            "overloaded",
            "context_length",
        ],
        message: str,
        *,
        retry: bool = False,
    ) -> ProviderError:
        """A failure with what had come of the reply."""
        return ProviderError(
            kind, message, is_retryable=retry, partial_text=self._reading.abandon()
        )
