"""Asking a hook of the host: it may be sync or async, absent, slow, or wrong."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from fsm_agent.run.content import clean_text
from fsm_agent.run.delta import Failed

MAX_WORDS_CHARS = 100_000  # of one hook's answer


class HostFailed(Exception):
    """A hook raised, or returned what it may not. The run ends with `failed`."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"hook {name}: {why}")
        self.failed = Failed("host", clean_text(f"the host's hook {name} {why}"))


async def ask_host(
    hook: Callable[..., Any] | None, name: str, timeout_s: float, *given: Any
) -> str | None:
    """What the hook says; None where there is no hook. Raises HostFailed."""
    if hook is None:
        return None
    limit, task = asyncio.timeout(timeout_s), asyncio.current_task()
    try:
        async with limit:
            said = hook(*given)
            if inspect.isawaitable(said):
                said = await said
    except asyncio.CancelledError:
        if task is None or task.cancelling():
            raise  # ours: the process stops
        raise HostFailed(name, "was cancelled from within.") from None
    except (KeyboardInterrupt, GeneratorExit):
        raise  # of the process
    except BaseException as error:  # `sys.exit` in a hook ends the run, not the worker
        late = f"did not return within {timeout_s:g} s." if limit.expired() else ""
        raise HostFailed(name, late or f"failed: {error!r}.") from error
    if said is None:
        return None
    if not isinstance(said, str):
        raise HostFailed(name, f"returned {type(said).__name__}, not words or None.")
    return clean_text(said)[:MAX_WORDS_CHARS]
