"""What a call asks for when it is tried again after its time ran out: less."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from fsm_agent.run.content import canonical_json

from .arguments import Bound
from .registry import Tool

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
        again = tool.bind(canonical_json(dict(less)))
    except (Exception, SystemExit):  # the rule is the host's code; the call goes on without it
        return bound
    return again if isinstance(again, Bound) else bound


def halved(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` with every limit of a known name halved, down to 1."""
    return {
        name: max(1, value // 2) if name in HALVED and _is_count(value) else value
        for name, value in arguments.items()
    }


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1
