"""What a tool's check may ask for, and what it is given."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from fsm_agent.errors import BadAgent

from .context import ToolContext
from .effects import Check


def refuse_check(check: Check, parameters: frozenset[str], tool_name: str) -> None:
    """Raises BadAgent where a check needs something that nobody can give it."""
    contexts = _context_names(check)
    for p in inspect.signature(check).parameters.values():
        by_name = p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        is_given = p.name in parameters or p.name in contexts or p.name == "key"
        if by_name and not is_given and p.default is p.empty:
            raise BadAgent(
                f"tool {tool_name!r}: its check wants {p.name!r}, which is no parameter of"
                " the tool. A check may take these by name, `key`, and a ToolContext."
            )
        if p.kind is p.POSITIONAL_ONLY:
            raise BadAgent(f"tool {tool_name!r}: the check's {p.name!r} is positional-only.")


def arguments_for(check: Check, context: ToolContext, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What the check is called with: of what there is, that which it declares."""
    contexts = _context_names(check)
    wanted = inspect.signature(check).parameters
    offered = {"key": context.idempotency_key, **kwargs, **dict.fromkeys(contexts, context)}
    if any(p.kind is p.VAR_KEYWORD for p in wanted.values()):
        return offered
    return {name: value for name, value in offered.items() if name in wanted}


def _context_names(check: Check) -> frozenset[str]:
    try:
        hints = typing.get_type_hints(check)
    except (NameError, TypeError):
        hints = getattr(check, "__annotations__", {})
    return frozenset(n for n, hint in hints.items() if hint in (ToolContext, "ToolContext"))
