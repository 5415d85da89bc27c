"""How much longer a stream is waited for, and which limit ended the wait."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Literal

from fsm_agent.llm.limits import Limits

Waiting = Literal["first chunk", "next chunk", "end of the reply", "trailer"]


class Patience:
    """One timeout that is moved as a stream goes on.

    A cancellation from outside stays one: TimeoutError is raised only for our own limits. Moving it
    to later costs nothing: the timer rings at its old time, and is set anew then.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: Waiting = "first chunk"
        self.limit_s = limits.first_s
        self._timeout = asyncio.timeout(None)
        self._until = self._ends_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Patience:
        await self._timeout.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + self.limits.whole_s
        self.allow(self.limits.first_s, "first chunk")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def allow(self, seconds: float, waiting: Waiting) -> None:
        """Wait so long from now, but never past the limit for the whole."""
        until = self._loop.time() + seconds
        if until > self._ends_at:
            until, waiting, seconds = self._ends_at, "end of the reply", self.limits.whole_s
        self.waiting, self.limit_s, self._until = waiting, seconds, until
        if self._timer is None or until < self._timer.when():
            self._set(until)

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        if self._loop.time() < self._until:
            self._set(self._until)
        else:
            self._timeout.reschedule(self._loop.time())
