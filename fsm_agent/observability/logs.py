"""Logs: one event a line, with run, seq and worker, and without secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, assert_never

import structlog

from checkpoints.store import Store
from fsm_agent.run.delta import Asked, Failed, Resumed, Ruled, Settled
from fsm_agent.run.event import EntryEvent, Event, LiveEvent, ParkedEvent
from fsm_agent.run.redaction import Redactor

from .observer import Hear

log = structlog.get_logger("fsm_agent")
LONGEST = 2_000  # of a field


class Redacting:
    """A structlog processor: the last one before a record becomes text."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def __call__(
        self, logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """The record without secrets, and without a traceback's local variables."""
        error = event.pop("exc_info", None)
        if error:
            event["error"] = repr(error) if isinstance(error, BaseException) else str(error)
        kept = {name: self._short(value) for name, value in event.items()}
        cleaned: dict[str, Any] = self._redactor.plain(kept)
        return cleaned

    @staticmethod
    def _short(value: Any) -> Any:
        if isinstance(value, (int, float, bool)) or value is None:
            return value
        if isinstance(value, (dict, list, tuple)):
            return value
        text = str(value)
        return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def json_processors(redactor: Redactor) -> list[Any]:
    """One JSON object a line, for what collects logs."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        Redacting(redactor),
        structlog.processors.JSONRenderer(ensure_ascii=True),
    ]


class EntryLog:
    """Logs each entry once it is durable, and where a run waits."""

    @asynccontextmanager
    async def observing(self, store: Store, owner: str) -> AsyncIterator[tuple[Store, Hear]]:
        """See Observer."""
        told = log.bind(worker=owner)

        def hear(event: Event) -> None:
            match event:
                case EntryEvent():
                    _tell(told, event)
                case ParkedEvent():
                    told.info("run.parked", run=event.run_id, status=event.status,
                              asks=list(event.ask_ids))  # fmt: skip
                case LiveEvent():
                    pass
                case _:
                    assert_never(event)

        yield store, hear


def _tell(told: Any, event: EntryEvent) -> None:
    place = {"run": event.run_id, "seq": event.seq}
    trigger = event.record.trigger
    told.info("run.moved", **place, state=event.state.value, trigger=trigger and trigger.value)
    for fact in event.record.deltas:
        match fact:
            case Resumed(is_takeover=True):
                told.warning("run.taken_over", **place, token=fact.token)
            case Asked(kind="in_doubt"):
                told.warning("call.in_doubt", **place, call=fact.call_id, ask=fact.ask_id)
            case Asked():
                told.info("person.asked", **place, call=fact.call_id, ask=fact.ask_id)
            case Ruled():
                told.info("person.decided", **place, ask=fact.ask_id, verb=fact.verb, by=fact.by)
            case Settled():
                told.info("call.settled", **place, call=fact.call_id, status=fact.status,
                          took_ms=fact.took_ms)  # fmt: skip
            case Failed():
                told.warning("run.failed", **place, reason=fact.reason, why=fact.message)
            case _:
                pass
