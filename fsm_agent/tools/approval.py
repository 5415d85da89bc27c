"""Whether a person has to be asked before a call runs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from .registry import Tool
from .results import cause_of


class Verdict(msgspec.Struct, frozen=True):
    """Whether to ask, and why: for the person who is asked."""

    asks: bool
    reason: str = ""


def needs_approval(tool: Tool[..., Any], kwargs: Mapping[str, Any]) -> Verdict:
    """Whether the call with these bound arguments needs a person.

    Fails closed: of all that a predicate may return, only False lets the call run unasked.
    """
    if tool.approval == "never":
        return Verdict(False)
    if tool.approval == "always":
        return Verdict(True, f"{tool.name} always needs approval")
    try:
        # A copy: a predicate that changes its arguments must not change what runs.
        wants: Any = tool.approval(copy.deepcopy(dict(kwargs)))
    except Exception as error:
        return Verdict(True, f"the approval rule failed: {cause_of(error)}")
    return _verdict(tool.name, wants)


def _verdict(tool_name: str, wants: Any) -> Verdict:
    if wants is False:
        return Verdict(False)
    if wants is True:
        return Verdict(True, f"{tool_name} needs approval for these arguments")
    if isinstance(wants, str) and wants.strip():
        return Verdict(True, wants.strip())
    if inspect.iscoroutine(wants):
        wants.close()
    return Verdict(
        True, f"the approval rule returned {wants!r:.100}, neither False, True nor a reason"
    )
