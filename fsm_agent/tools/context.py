"""What a running tool may know about its call, and say while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from fsm_agent.clock import Clock, SystemClock

_in_call: ContextVar[bool] = ContextVar("fsm_agent_in_call", default=False)


def is_in_call() -> bool:
    """Whether this code runs as part of a tool call."""
    return _in_call.get()


@contextmanager
def in_call() -> Iterator[None]:
    """What is started in the body, in a task or thread, runs as part of a tool call."""
    token = _in_call.set(True)
    try:
        yield
    finally:
        _in_call.reset(token)


def _say_nothing(text: str) -> None:
    pass


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """Given to a tool that has a parameter annotated `ToolContext`; the model does not see it.

    `idempotency_key` is the same for every attempt of this call, `attempt` counts from 1.
    """

    run_id: str
    call_id: str
    idempotency_key: str
    attempt: int = 1
    deadline_s: float = float("inf")  # on `clock.steady_s`; set when the call starts
    on_progress: Callable[[str], None] = _say_nothing  # called in the event loop; must not raise
    clock: Clock = msgspec.field(default_factory=SystemClock)
    cancelled: threading.Event = msgspec.field(default_factory=threading.Event)

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the result any more. Threads are never stopped: look."""
        return self.cancelled.is_set()

    def remaining_s(self) -> float:
        """Seconds until the call is given up; infinite where there is no limit."""
        return max(0.0, self.deadline_s - self.clock.steady_s())

    def progress(self, text: str) -> None:
        """Show `text` to whoever watches the run. It is not kept."""
        if not self.is_cancelled:
            self.on_progress(text)
