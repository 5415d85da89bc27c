"""Whether a person has to be asked before a call runs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fsm_agent.errors import UsageError
from fsm_agent.run.taint import Taint, in_words
from fsm_agent.run.tally import Numbers, SoFar, numbers_of

from .arguments import Refused
from .registry import Tool
from .results import cause_of
from .rule import Rule, rule_of


class Verdict(msgspec.Struct, frozen=True):
    """Whether to ask, and why: for the person who is asked."""

    asks: bool
    reason: str = ""
    rule: str = ""  # its name; '': the tool has none
    # False: no consent to what the rule asks covers it. It failed, so it is not known whether it
    # would have asked; or the arguments hold words that no person said.
    is_sure: bool = True
    numbers: Numbers = {}  # what the call adds to the sums that the rule sees


def needs_approval(
    tool: Tool[..., Any],
    kwargs: Mapping[str, Any],
    so_far: SoFar | None = None,
    taints: Sequence[Taint] = (),
) -> Verdict:
    """Whether the call with these bound arguments needs a person.

    `taints` are words of the arguments that no person said: for rules with `if_tainted`.

    Fails closed: of all that a predicate may return, only False lets the call run unasked.
    """
    rule = rule_of(tool.approval)
    if rule is None:
        return Verdict(False)
    # A copy: a predicate that changes its arguments must not change what runs.
    numbers = numbers_of(kwargs) if rule.sees_so_far else {}
    asks, reason, is_sure = _asked(tool.name, rule, copy.deepcopy(dict(kwargs)), so_far or SoFar())
    if rule.if_tainted and taints:
        told = in_words(taints[0])
        asks, is_sure, reason = True, False, f"{reason}; {told}" if reason else told
    return Verdict(asks, reason, rule.name, is_sure, numbers)


def explain(tool: Tool[..., Any], arguments: str, so_far: SoFar | None = None) -> Verdict:
    """The verdict on a call that nobody made: a dry run. `arguments` is JSON.

    Raises UsageError if they do not fit the tool.
    """
    bound = tool.bind(arguments)
    if isinstance(bound, Refused):
        raise UsageError(f"{tool.name}: {bound.problem}")
    return needs_approval(tool, bound.kwargs, so_far)


def _asked(
    tool_name: str, rule: Rule, kwargs: dict[str, Any], so_far: SoFar
) -> tuple[bool, str, bool]:
    """Whether to ask, the reason, and whether the rule was sure."""
    if rule.when is True:
        return True, f"{tool_name} always needs approval", True
    if rule.when is None:
        return False, "", True
    predicate: Any = rule.when
    try:
        wants = predicate(kwargs, so_far) if rule.sees_so_far else predicate(kwargs)
    except (Exception, SystemExit) as error:
        return True, f"the approval rule failed: {cause_of(error)}", False
    if wants is False:
        return False, "", True
    if wants is True:
        return True, f"{tool_name} needs approval for these arguments", True
    if isinstance(wants, str) and wants.strip():
        return True, wants.strip(), True
    if inspect.iscoroutine(wants):
        wants.close()
    problem = f"the approval rule returned {wants!r:.100}, neither False, True nor a reason"
    return True, problem, False
