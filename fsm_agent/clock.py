"""Time as it is handed to everything that needs it: a wall clock, a steady one, and a wait."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What may be asked about time. Tests move one by hand."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""

    def steady_s(self) -> float:
        """Seconds that never jump, for measuring spans."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
