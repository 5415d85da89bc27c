"""What a call asks for when it is tried again after its time ran out: less."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import structlog

from fsm_agent.run.content import canonical_json

from .arguments import Bound
from .registry import Tool

log = structlog.get_logger(__name__)

HALVED = ("limit", "max_results", "count")


def smaller(tool: Tool[..., Any], bound: Bound) -> Bound:
    """The arguments for another try after a timeout; the same ones where nothing can be smaller.

    A rule that fails, or gives what the tool does not take, changes nothing.
    """
    if tool.fallback is None:
        return bound
    given = json.loads(bound.arguments)
    try:
        less = halved(given) if tool.fallback == "halve" else tool.fallback(copy.deepcopy(given))
        again = tool.bind(canonical_json(msgspec.to_builtins(dict(less), str_keys=True)))
    except (Exception, SystemExit) as error:  # the host's code; the call goes on without it
        log.warning("tool.fallback_failed", tool=tool.name, why=repr(error))
        return bound
    if isinstance(again, Bound):
        return again
    log.warning("tool.fallback_failed", tool=tool.name, why=again.problem)
    return bound


def halved(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` with every limit of a known name halved, down to 1."""
    return {
        name: max(1, value // 2) if name in HALVED and _is_count(value) else value
        for name, value in arguments.items()
    }


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1
