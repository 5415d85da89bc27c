"""How much longer a stream is waited for, and which limit ended the wait."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Literal

from fsm_agent.llm.limits import Limits

Waiting = Literal["first chunk", "next chunk", "end of the reply", "trailer"]


class Patience:
    """One timeout that is moved as a stream goes on.

    A cancellation from outside stays one: TimeoutError is raised only for our own limits.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: Waiting = "first chunk"
        self.limit_s = limits.first_s
        self._timeout = asyncio.timeout(None)
        self._ends_at = 0.0

    async def __aenter__(self) -> Patience:
        await self._timeout.__aenter__()
        self._ends_at = asyncio.get_running_loop().time() + self.limits.whole_s
        self.allow(self.limits.first_s, "first chunk")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    def allow(self, seconds: float, waiting: Waiting) -> None:
        """Wait so long from now, but never past the limit for the whole."""
        until = asyncio.get_running_loop().time() + seconds
        if until > self._ends_at:
            until, waiting, seconds = self._ends_at, "end of the reply", self.limits.whole_s
        self.waiting, self.limit_s = waiting, seconds
        self._timeout.reschedule(until)
