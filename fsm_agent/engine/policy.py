"""Whether a call may start unasked: the tool's rule, the run's sums, and standing consents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fsm_agent.run.delta import Consented, Judged
from fsm_agent.run.person import identity
from fsm_agent.run.record import OpenCall, Run
from fsm_agent.run.taint import taints
from fsm_agent.run.tally import Numbers, SoFar
from fsm_agent.tools.approval import Verdict, needs_approval
from fsm_agent.tools.arguments import Bound
from fsm_agent.tools.registry import Tool
from fsm_agent.tools.rule import Rule, rule_of


def judge(
    run: Run, call: OpenCall, tool: Tool[..., Any], bound: Bound, ahead: Iterable[Numbers]
) -> Judged | None:
    """The verdict on a call: the one on record, or a new one. None: its tool has no rule.

    `ahead` are the calls of the tool that start with this one and are not counted in the run yet.
    """
    if call.verdict:
        return call.verdict
    rule = rule_of(tool.approval)
    if rule is None:
        return None
    so_far = run.so_far.get(tool.name, SoFar())
    for numbers in ahead:
        so_far = so_far.plus(numbers)
    found = taints(run, bound.arguments) if rule.if_tainted else ()
    verdict = needs_approval(tool, bound.kwargs, so_far, found)
    call_id = call.call.call_id
    if consent := _consent(run, tool, rule, verdict):
        why = f"{consent.by} agreed to all such calls of this run"
        return Judged(call_id, False, why, rule.name, consent.consent_id, verdict.numbers)
    return Judged(call_id, verdict.asks, verdict.reason, rule.name, "", verdict.numbers)


def _consent(run: Run, tool: Tool[..., Any], rule: Rule, verdict: Verdict) -> Consented | None:
    """A standing consent that answers for the person who would be asked.

    It stands for one person, so not for a quorum; and not where the rule failed, or where the
    arguments hold words that no person said, since nobody agreed to that.
    """
    if not verdict.asks or not verdict.is_sure or rule.quorum > 1:
        return None
    for consent in run.consents:
        fits = consent.tool == tool.name and consent.rule in ("", rule.name)
        is_own = identity(consent.by) == identity(run.requester)
        if fits and not (rule.not_requester and is_own):
            return consent
    return None
