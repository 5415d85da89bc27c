"""OpenTelemetry spans of a run: one trace from its start to its end, over pauses and takeovers.

The names are those of the `gen_ai` conventions, which are still in development: all of them stand
here. Prompts, replies and arguments are never put into a span.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
)

from checkpoints.errors import CheckpointError
from checkpoints.model import RunId
from checkpoints.store import Store
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.delta import (
    Answered,
    AnyDelta,
    Asked,
    Began,
    Created,
    Failed,
    Intended,
    ModelFailed,
    Replied,
    Resumed,
    Ruled,
    Settled,
)
from fsm_agent.run.event import EntryEvent, Event
from fsm_agent.run.record import Record

from .observer import Hear

log = structlog.get_logger(__name__)

SYSTEM = "fsm_agent"
_OPERATION, _AGENT = "gen_ai.operation.name", "gen_ai.agent.name"
_RUN, _TOOL, _CALL = "gen_ai.conversation.id", "gen_ai.tool.name", "gen_ai.tool.call.id"
_IN, _OUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
_FINISH, _ERROR = "gen_ai.response.finish_reasons", "error.type"
_FLUSH_S = 5.0

_root_ids: ContextVar[tuple[int, int] | None] = ContextVar("root_ids", default=None)


def trace_id_of(run_id: str) -> int:
    """The trace of a run: from its id, so that every process that works on it agrees."""
    return int.from_bytes(hashlib.sha256(b"trace" + run_id.encode()).digest()[:16], "big") or 1


def root_id_of(run_id: str) -> int:
    """The span that all others of the run stand under."""
    return int.from_bytes(hashlib.sha256(b"root" + run_id.encode()).digest()[:8], "big") or 1


class Traces:
    """Makes spans from entries once they are durable. What a crash repeats is told once."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider

    @asynccontextmanager
    async def observing(self, store: Store, owner: str) -> AsyncIterator[tuple[Store, Hear]]:
        """See Observer. What is left at the end is told before it is over."""
        provider = self._provider or default_provider()
        told = _Told(provider.get_tracer(SYSTEM), store, owner)
        task = asyncio.create_task(told.forever(), name="traces")
        try:
            yield store, told.queue.put_nowait
        finally:
            await told.finish(task)


def default_provider() -> TracerProvider:
    """The application's provider; where it has set none, one that exports by the environment's
    OTEL_EXPORTER_OTLP_ENDPOINT, where the exporter is installed."""
    found = trace.get_tracer_provider()
    if not isinstance(found, trace.ProxyTracerProvider):
        return found
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = provider_for_runs(resource=Resource.create({"service.name": "fsm-agent"}))
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError:
        log.warning("traces.no_exporter", install="opentelemetry-exporter-otlp-proto-http")
    else:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider  # type: ignore[no-any-return]


def provider_for_runs(**options: Any) -> Any:
    """A provider of the SDK in which a run's first span has the id that the others name."""
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class RunIds(RandomIdGenerator):
        """Random ids, but for the one span whose id is known beforehand."""

        def generate_span_id(self) -> int:
            ids = _root_ids.get()
            return ids[1] if ids else super().generate_span_id()

        def generate_trace_id(self) -> int:
            ids = _root_ids.get()
            return ids[0] if ids else super().generate_trace_id()

    return SdkProvider(id_generator=RunIds(), **options)


class _Known:
    """What later entries of a run refer to."""

    def __init__(self) -> None:
        self.seq = 0
        self.agent = ""
        self.created_ms = 0
        self.began: tuple[int, int] = (0, 0)  # attempt, when
        self.tools: dict[str, str] = {}
        self.intents: dict[str, tuple[Intended, int]] = {}
        self.asks: dict[str, tuple[Asked, int]] = {}
        self.takeovers = 0


class _Told:
    def __init__(self, tracer: Tracer, store: Store, owner: str) -> None:
        self.queue: asyncio.Queue[Event] = asyncio.Queue()
        self._tracer, self._store, self._owner = tracer, store, owner
        self._runs: dict[str, _Known] = {}

    async def forever(self) -> None:
        while True:
            event = await self.queue.get()
            try:
                if isinstance(event, EntryEvent):
                    await self._take(event)
            except Exception as error:  # spans are for looking at: no failure of theirs is a run's
                log.warning("traces.lost", run=event.run_id, why=repr(error))
            finally:
                self.queue.task_done()

    async def finish(self, task: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(_FLUSH_S):
                await self.queue.join()
        except TimeoutError:
            log.warning("traces.lost", why="the store did not answer in time")
        task.cancel()
        await asyncio.wait([task])

    async def _take(self, event: EntryEvent) -> None:
        known = self._runs.get(event.run_id)
        if known is None or event.seq > known.seq + 1:
            known = self._runs[event.run_id] = await self._remembered(event)
        if event.seq <= known.seq:
            return
        self._entry(event.run_id, known, event.seq, event.record, is_told=True)
        if any(isinstance(fact, (Answered, Failed)) for fact in event.record.deltas):
            self._runs.pop(event.run_id, None)

    async def _remembered(self, event: EntryEvent) -> _Known:
        """What other workers put on record before: their spans are theirs."""
        known = _Known()
        if event.seq == 1:
            return known
        try:
            entries = await self._store.journal(RunId(event.run_id))
            for entry in entries:
                if entry.seq < event.seq:
                    record = codec.decode(entry.body)
                    self._entry(event.run_id, known, entry.seq, record, is_told=False)
        except (CheckpointError, CorruptRecord) as error:
            log.warning("traces.history_lost", run=event.run_id, why=str(error))
        known.seq = max(known.seq, event.seq - 1)
        return known

    def _entry(
        self, run_id: str, known: _Known, seq: int, record: Record, *, is_told: bool
    ) -> None:
        known.seq = seq
        for fact in record.deltas:
            for name, start_ms, end_ms, attributes, error in _spans(known, fact, record.at_ms):
                if is_told:
                    attributes |= {_RUN: run_id, _AGENT: known.agent, "fsm_agent.seq": seq}
                    self._span(run_id, name, start_ms, end_ms, attributes, error)

    def _span(
        self, run_id: str, name: str, start_ms: int, end_ms: int, attributes: dict[str, Any],
        error: str,
    ) -> None:  # fmt: skip
        is_root = attributes[_OPERATION] == "invoke_agent"
        ids = (trace_id_of(run_id), root_id_of(run_id))
        parent = SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        context = Context() if is_root else trace.set_span_in_context(NonRecordingSpan(parent))
        links = [Link(parent)] if attributes.get("fsm_agent.takeover") else []
        attributes |= {"fsm_agent.worker": self._owner}
        with _own_ids(ids if is_root else None):
            kind = SpanKind.CLIENT if attributes[_OPERATION] == "chat" else SpanKind.INTERNAL
            span = self._tracer.start_span(
                name, context, kind, attributes, links, start_time=start_ms * 1_000_000
            )
        if error:
            span.set_attribute(_ERROR, error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(max(start_ms, end_ms) * 1_000_000)


@contextmanager
def _own_ids(ids: tuple[int, int] | None) -> Iterator[None]:
    token = _root_ids.set(ids)
    try:
        yield
    finally:
        _root_ids.reset(token)


_Span = tuple[str, int, int, dict[str, Any], str]


def _spans(known: _Known, fact: AnyDelta, at_ms: int) -> list[_Span]:
    """The spans that end with a fact; `known` learns what it says."""
    match fact:
        case Created():
            known.agent, known.created_ms = fact.agent, at_ms
        case Resumed():
            known.takeovers += fact.is_takeover
            if fact.is_takeover:
                told = {_OPERATION: "takeover", "fsm_agent.takeover": True}
                return [("takeover", fact.claimed_ms, at_ms, told, "")]
        case Began():
            known.began = (fact.attempt, at_ms)
        case Replied():
            known.tools |= {call.call_id: call.name for call in fact.calls}
            told = {
                _OPERATION: "chat",
                _IN: fact.usage.prompt_tokens,
                _OUT: fact.usage.completion_tokens,
                "fsm_agent.attempt": known.began[0],
            }
            if fact.finish_reason:
                told[_FINISH] = (fact.finish_reason,)
            return [("chat", known.began[1] or at_ms, at_ms, told, fact.violation or "")]
        case ModelFailed():
            told = {_OPERATION: "chat", "fsm_agent.attempt": known.began[0]}
            return [("chat", known.began[1] or at_ms, at_ms, told, fact.kind)]
        case Intended():
            known.intents[fact.call_id] = (fact, at_ms)
        case Settled():
            return _tool_span(known, fact, at_ms)
        case Asked():
            known.asks[fact.ask_id] = (fact, at_ms)
        case Ruled():
            return _wait_span(known, fact, at_ms)
        case Answered() | Failed():
            told = {_OPERATION: "invoke_agent", "fsm_agent.takeovers": known.takeovers}
            error = fact.reason if isinstance(fact, Failed) else ""
            name = f"invoke_agent {known.agent}"
            return [(name, known.created_ms or at_ms, at_ms, told, error)]
        case _:
            pass
    return []


def _tool_span(known: _Known, settled: Settled, at_ms: int) -> list[_Span]:
    if settled.call_id not in known.intents:
        return []  # it never started
    intent, started_ms = known.intents.pop(settled.call_id)
    name = known.tools.get(settled.call_id, "")
    told = {
        _OPERATION: "execute_tool",
        _TOOL: name,
        _CALL: settled.call_id,
        "fsm_agent.effect": intent.effect,
        "fsm_agent.attempt": intent.attempt,
    }
    error = "" if settled.status in ("success", "partial", "duplicate") else settled.status
    return [(f"execute_tool {name}", started_ms, at_ms, told, error)]


def _wait_span(known: _Known, ruled: Ruled, at_ms: int) -> list[_Span]:
    asked = known.asks.pop(ruled.ask_id, None)
    if asked is None:
        return []
    told = {
        _OPERATION: "wait_for_person",
        _TOOL: known.tools.get(ruled.call_id, ""),
        _CALL: ruled.call_id,
        "fsm_agent.ask": ruled.ask_id,
        "fsm_agent.verb": ruled.verb,
    }
    return [("wait_for_person", asked[1], at_ms, told, "")]
