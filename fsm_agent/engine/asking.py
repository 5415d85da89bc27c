"""How a call is put before a person: the fact in the journal, and what the person is shown."""

from __future__ import annotations

from typing import Any, NamedTuple

from fsm_agent.run.content import EffectClass, clean_text
from fsm_agent.run.delta import Asked, AskedOn, AskKind, Judged
from fsm_agent.run.record import OpenCall, Run
from fsm_agent.run.signal import Question
from fsm_agent.run.taint import taints
from fsm_agent.tools.arguments import Bound
from fsm_agent.tools.dispatch import Result
from fsm_agent.tools.effects import arguments_digest, class_of
from fsm_agent.tools.registry import Tool
from fsm_agent.tools.rule import Rule, rule_of

_LETTERS: dict[AskKind, str] = {"approval": "a", "question": "q", "in_doubt": "d"}


class Subject(NamedTuple):
    """What a request says of the call's tool, which may be gone by now."""

    name: str
    version: str
    effect: EffectClass


def subject_of(tool: Tool[..., Any]) -> Subject:
    """The tool as requests speak of it."""
    return Subject(tool.name, tool.version, class_of(tool.effect))


class Request(NamedTuple):
    """A request for a person."""

    asked: Asked
    question: Question
    judged: Judged | None = None  # the verdict that led to it, where it is not on record yet


def ask_approval(
    run: Run, call: OpenCall, tool: Tool[..., Any], arguments: str, why: str, *, now_ms: int
) -> Request:
    """May the call run with exactly these arguments?"""
    rule = rule_of(tool.approval)
    about = subject_of(tool)
    return _request(run, call, about, "approval", arguments, why, rule=rule, now_ms=now_ms)


def ask_in_doubt(
    run: Run, call: OpenCall, about: Subject, arguments: str, why: str, *, unlock_ms: int
) -> Request:
    """Did the call take effect? 'It did not, run it' may be said from `unlock_ms` on."""
    reason = f"The call was started and may have taken effect. {why}"
    return _request(run, call, about, "in_doubt", arguments, reason, unlock_ms=unlock_ms)


def ask_question(
    run: Run, call: OpenCall, tool: Tool[..., Any], bound: Bound, *, now_ms: int
) -> Request:
    """The model's own question to the user."""
    options = tuple(bound.kwargs.get("options") or ())
    reason, rule = str(bound.kwargs["question"]), rule_of(tool.approval)
    return _request(
        run, call, subject_of(tool), "question", bound.arguments, reason,
        options=options, rule=rule, now_ms=now_ms,
    )  # fmt: skip


def ask_pause(run: Run, call: OpenCall, tool: Tool[..., Any], result: Result) -> Request:
    """The question of a tool that has run: the answer is its result."""
    assert result.question
    shown = tool.bind(call.arguments)
    arguments = shown.arguments if isinstance(shown, Bound) else call.arguments
    options, reason = result.question.options, result.question.question
    about = subject_of(tool)
    return _request(run, call, about, "question", arguments, reason, options=options)


def ask_anew(run: Run, call: OpenCall, tool: Tool[..., Any], arguments: str) -> Request:
    """What the tool asked in the run that this one is a fork of: the answer is its result."""
    return _request(run, call, subject_of(tool), "question", arguments, call.asked)


def _request(
    run: Run,
    call: OpenCall,
    about: Subject,
    kind: AskKind,
    arguments: str,
    reason: str,
    *,
    options: tuple[str, ...] = (),
    unlock_ms: int = 0,
    rule: Rule | None = None,
    now_ms: int = 0,
) -> Request:
    call_id, reason = call.call.call_id, clean_text(reason)
    # From the journal position: a request that is created again is the same request. And counted:
    # a decided one stays decided, so asking anew needs an id of its own.
    ask_id = f"{_LETTERS[kind]}{call_id[1:]}" + (f"-{call.asks}" if call.asks else "")
    asked = Asked(
        ask_id=ask_id,
        call_id=call_id,
        kind=kind,
        digest=arguments_digest(about.name, about.version, arguments),
        reason=reason,
        unlock_ms=unlock_ms,
    )
    rule = rule or Rule()
    return Request(
        _on_terms(asked, rule, now_ms),
        Question(
            kind=kind,
            call_id=call_id,
            tool=about.name,
            arguments=arguments,
            reason=reason,
            effect=about.effect,
            agent=run.agent,
            options=options,
            rule=rule.name if kind == "approval" else "",
            on_expiry=rule.on_expiry,
            quorum=rule.quorum,
            requester=run.requester if rule.not_requester else "",
            not_requester=rule.not_requester,
            parent=run.parent,
            to=rule.to,
            escalation=rule.escalation,
            taints=() if kind == "question" else taints(run, arguments),
        ),
    )


def _on_terms(asked: Asked, rule: Rule, now_ms: int) -> Asked:
    if rule.expires_s is None and rule.quorum == 1 and not rule.not_requester:
        return asked
    expires_ms = now_ms + int(rule.expires_s * 1000) if rule.expires_s is not None else 0
    return AskedOn(
        asked.ask_id, asked.call_id, asked.kind, asked.digest, asked.reason,
        expires_ms, asked.unlock_ms, rule.on_expiry, rule.quorum, rule.not_requester,
    )  # fmt: skip
