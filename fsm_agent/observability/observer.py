"""What watches a runtime from outside: it hears events, and may stand before the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from checkpoints.store import Store
from fsm_agent.errors import MissingSetting, UsageError
from fsm_agent.run.event import Event

Hear = Callable[[Event], None]


class Observer(Protocol):
    """Something that watches while a runtime is open. It changes nothing of what happens."""

    def observing(
        self, store: Store, owner: str
    ) -> AbstractAsyncContextManager[tuple[Store, Hear]]:
        """The store to use, perhaps a measured one, and what is told of each event."""


def from_environment() -> Sequence[Observer]:
    """What is switched on: FSM_AGENT_LOG=info, FSM_AGENT_METRICS=HOST:PORT, FSM_AGENT_OTEL=1.

    Raises UsageError or MissingSetting for a switch that cannot be used here.
    """
    found: list[Observer] = []
    if os.environ.get("FSM_AGENT_LOG", "").lower() in ("info", "debug"):
        from .logs import EntryLog

        found.append(EntryLog())
    if place := os.environ.get("FSM_AGENT_METRICS"):
        from .metrics import Metrics

        found.append(Metrics(serve_at=_place(place)))
    if os.environ.get("FSM_AGENT_OTEL", "").lower() in ("1", "true", "on"):
        try:
            from .traces import Traces
        except ModuleNotFoundError as error:
            raise MissingSetting(
                f"FSM_AGENT_OTEL needs {error.name}. Install it: pip install 'fsm-agent[otel]'."
            ) from error
        found.append(Traces())
    return found


def _place(given: str) -> tuple[str, int]:
    host, _, port = given.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"FSM_AGENT_METRICS={given!r} is no address. Use 127.0.0.1:9464.")
    return host.strip("[]") or "127.0.0.1", int(port)
