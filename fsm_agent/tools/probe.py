"""Whether a call that was cut off had its effect: asking the tool's own check."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Mapping
from typing import Any

from .checks import arguments_for
from .context import ToolContext
from .effects import CannotTell, Done, NotDone, Probed, ProbeResult
from .functions import is_async
from .registry import Tool
from .results import cause_of
from .running import Ended, start

PROBE_TIMEOUT_S = 30.0


async def run_probe(
    tool: Tool[..., Any],
    context: ToolContext,
    kwargs: Mapping[str, Any],
    *,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> ProbeResult:
    """Ask the check of a probed tool about the call with `kwargs`.

    A check that raises, hangs or returns something else cannot tell.
    """
    if not isinstance(tool.effect, Probed):
        return CannotTell(f"the tool {tool.name} has no check")
    check = tool.effect.check
    check = check.function if isinstance(check, Tool) else check
    given = arguments_for(check, context, kwargs)
    call = functools.partial(check, **given)
    running = start(call, is_async=is_async(check), name=f"check {tool.name}")
    try:
        await asyncio.wait({running}, timeout=timeout_s)
        if not running.done():
            return CannotTell(f"the check took over {timeout_s:g} s")
    finally:
        running.cancel()
    return _answer(running.result() if not running.cancelled() else Ended(error=_cut_off()))


def _cut_off() -> Exception:
    return RuntimeError("the check cancelled itself")


def _answer(ended: Ended) -> ProbeResult:
    if isinstance(ended.error, KeyboardInterrupt):
        raise ended.error
    if ended.error is not None:
        return CannotTell(f"the check failed: {cause_of(ended.error)}")
    if isinstance(ended.value, Done | NotDone | CannotTell):
        return ended.value
    if inspect.iscoroutine(ended.value):
        ended.value.close()
    kind = type(ended.value).__name__
    return CannotTell(f"the check returned {kind}, not done(…), not_done() or cannot_tell(…)")
