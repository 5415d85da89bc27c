"""Trying a call again: what each failure means, and for how long.

Every attempt of one call carries the same op id, so a repeat of what was applied changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .connect import refused
from .errors import StoreDiverged, StoreUnavailable
from .steady import monotonic
from .transport import Ambiguous, ReplyError, Unreachable

T = TypeVar("T")

# The server said no for now, and nothing was applied.
NOT_NOW = frozenset(
    {"OOM", "READONLY", "NOREPLICAS", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK"}
    | {"BUSY", "MISCONF", "NOSCRIPT"}
)
# It will say no again: a loop would only fill its log.
NEVER = frozenset({"NOAUTH", "WRONGPASS", "NOPERM", "MOVED", "CROSSSLOT", "NOPROTO"})
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


async def settle(
    once: Callable[[], Awaitable[T]],
    *,
    address: str,
    until: float,
    renew_connection: Callable[[str], None],
    jitter: Callable[[], float],
) -> T:
    """Call `once` until it has an answer; the last try begins before monotonic time `until`.

    There is always one try; `jitter` gives 0 to 1. Raises StoreUnavailable, whose `applied` is None
    if any try may have been applied, and StoreDiverged for an error that our scripts do not make.
    """
    applied: bool | None = False
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await once()
        except Unreachable as error:
            last: Exception = error
        except Ambiguous as error:
            applied, last = None, error
        except ReplyError as error:
            if error.code in NEVER:
                raise refused(address, error) from error
            if error.code not in NOT_NOW:
                raise StoreDiverged(f"the store at {address} answered: {error}") from error
            if error.code == "READONLY":
                # The primary was demoted: its name may lead to the new one by now.
                renew_connection("the server is read-only")
            last = error
        # Half of the pause at random: a hundred runs must not come back in one instant.
        wait_s = pause_s * (0.5 + jitter() / 2)
        if monotonic() + wait_s >= until:
            raise StoreUnavailable(_words(address, last, applied), applied=applied) from last
        await asyncio.sleep(wait_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _words(address: str, last: Exception, applied: bool | None) -> str:
    if isinstance(last, Unreachable):
        reason = str(last)
    elif isinstance(last, ReplyError) and last.code == "OOM":
        reason = f"the store at {address} is out of memory ({last}). Raise maxmemory or free some."
    elif isinstance(last, ReplyError):
        reason = f"the store at {address} refuses for now: {last}."
    else:
        reason = f"the store at {address} does not answer ({last})."
    return (
        reason
        if applied is False
        else f"{reason} It is unknown whether the last write was applied."
    )
