"""Metrics in Prometheus' text format: counters of this process, and gauges of the store."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from checkpoints.errors import CheckpointError
from checkpoints.model import Commit, Committed, Lease
from checkpoints.store import Store
from fsm_agent.run.delta import Asked, Failed, ModelFailed, Replied, Resumed, Settled
from fsm_agent.run.event import EntryEvent, Event
from fsm_agent.run.signal import decode_question

from .observer import Hear

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_ABOUT = {
    "fsm_agent_entries_total": "Entries that this process put on record, by trigger",
    "fsm_agent_takeovers_total": "Runs taken over from a worker that died",
    "fsm_agent_asks_total": "Requests for people that were opened, by kind",
    "fsm_agent_tool_calls_total": "Tool calls with a result, by status",
    "fsm_agent_model_calls_total": "Model calls that ended, by outcome",
    "fsm_agent_tokens_total": "Tokens billed, by direction",
    "fsm_agent_runs_ended_total": "Runs that ended without a result, by reason",
    "fsm_agent_commits_failed_total": "Commits that were refused or got no answer, by error",
}
Labels = tuple[tuple[str, str], ...]


class Histogram:
    """Times in buckets."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def lines(self, name: str, about: str) -> Iterable[str]:
        """As Prometheus reads it."""
        yield f"# HELP {name} {about}"
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, count in zip((*_BOUNDS_S, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum_s:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """What this process did. With `serve_at` it answers GET /metrics there meanwhile."""

    def __init__(self, *, serve_at: tuple[str, int] | None = None) -> None:
        self._serve_at = serve_at
        self.counters: Counter[tuple[str, Labels]] = Counter()
        self.commits = Histogram()

    @asynccontextmanager
    async def observing(self, store: Store, owner: str) -> AsyncIterator[tuple[Store, Hear]]:
        """See Observer."""
        server = None
        if self._serve_at:
            server = await asyncio.start_server(
                lambda reader, writer: self._answer(store, reader, writer), *self._serve_at
            )
        try:
            yield _Measured(store, self), self.hear
        finally:
            if server:
                server.close()

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        """Add to a counter."""
        self.counters[name, tuple(labels.items())] += by

    def hear(self, event: Event) -> None:
        """Count what an entry says."""
        if not isinstance(event, EntryEvent):
            return
        trigger = event.record.trigger
        self.count("fsm_agent_entries_total", trigger=trigger.value if trigger else "created")
        for fact in event.record.deltas:
            match fact:
                case Resumed(is_takeover=True):
                    self.count("fsm_agent_takeovers_total")
                case Asked():
                    self.count("fsm_agent_asks_total", kind=fact.kind)
                case Settled():
                    self.count("fsm_agent_tool_calls_total", status=fact.status)
                case Replied():
                    self.count("fsm_agent_model_calls_total", outcome=fact.violation or "ok")
                    usage = fact.usage
                    self.count("fsm_agent_tokens_total", usage.prompt_tokens, direction="in")
                    self.count("fsm_agent_tokens_total", usage.completion_tokens, direction="out")
                case ModelFailed():
                    self.count("fsm_agent_model_calls_total", outcome=fact.kind)
                case Failed():
                    self.count("fsm_agent_runs_ended_total", reason=fact.reason)
                case _:
                    pass

    def text(self) -> str:
        """The counters and the histogram."""
        lines: list[str] = []
        for name, about in _ABOUT.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} counter"]
            found = [(labels, n) for (each, labels), n in self.counters.items() if each == name]
            lines += [f"{name}{_braces(labels)} {count}" for labels, count in sorted(found)]
            if not found:
                lines.append(f"{name} 0")
        about = "How long commits took, from the call to the store's answer"
        return "\n".join([*lines, *self.commits.lines("fsm_agent_commit_seconds", about)]) + "\n"

    async def _answer(
        self, store: Store, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One request of a scraper."""
        try:
            async with asyncio.timeout(5):
                request = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)
                is_ours = request[:2] == [b"GET", b"/metrics"]
                body = (self.text() + await store_text(store)).encode() if is_ours else b""
                status = b"200 OK" if is_ours else b"404 Not Found"
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n"
                    b"Connection: close\r\n\r\n%b"
                    % (status, CONTENT_TYPE.encode(), len(body), body)
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()


async def store_text(store: Store) -> str:
    """What the store says: what is due, what waits for people, and whether it answers."""
    gauges: dict[str, tuple[str, Mapping[Labels, float]]] = {}
    try:
        now_ms = await store.now_ms()
        due = await store.due(limit=10_000)
        asks = await store.asks()
        oldest = await store.head(due[0]) if due else None
        lag_ms = now_ms - oldest.due_ms if oldest and oldest.due_ms else 0
        kinds = Counter(decode_question(ask.ask.body).kind for ask in asks)
        running = await store.runs(status="running", limit=10_000)
        gauges = {
            "fsm_agent_queue_depth": ("Runs that a worker should look at now", {(): len(due)}),
            "fsm_agent_queue_lag_seconds": (
                "How long the oldest of them is overdue", {(): max(0, lag_ms) / 1000}),
            "fsm_agent_open_approvals": (
                "Requests that wait for a person", {(): sum(kinds.values())}),
            "fsm_agent_in_doubt": ("Calls that nobody knows the outcome of",
                                   {(): kinds["in_doubt"]}),
            "fsm_agent_runs_running": ("Runs that a worker holds", {(): len(running)}),
        }  # fmt: skip
        is_up = 1
    except CheckpointError:
        is_up = 0
    gauges["fsm_agent_store_up"] = ("Whether the store answers", {(): is_up})
    lines: list[str] = []
    for name, (about, values) in gauges.items():
        lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_braces(labels)} {value:g}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Measured:
    """A store whose commits are timed."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store, self._metrics = store, metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, lease: Lease, commit: Commit) -> Committed:
        """See Store."""
        since = perf_counter()
        try:
            return await self._store.commit(lease, commit)
        except CheckpointError as error:
            self._metrics.count("fsm_agent_commits_failed_total", error=type(error).__name__)
            raise
        finally:
            self._metrics.commits.add(perf_counter() - since)
