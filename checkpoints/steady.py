"""The one steady clock of leases and time limits: that of the event loop that runs."""

from __future__ import annotations

import asyncio


def monotonic() -> float:
    """Seconds that never jump. In a loop of asyncio's own it is `time.monotonic`.

    The loop's and not the machine's, so that a loop with a virtual clock moves leases as well.
    """
    return asyncio.get_running_loop().time()
