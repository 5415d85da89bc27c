"""How a call is put before a person: the fact in the journal, and what the person is shown."""

from __future__ import annotations

from typing import Any, NamedTuple

from fsm_agent.run.content import clean_text
from fsm_agent.run.delta import Asked, AskKind
from fsm_agent.run.record import OpenCall, Run
from fsm_agent.run.signal import Question
from fsm_agent.tools.arguments import Bound
from fsm_agent.tools.ask_user import ASK_USER
from fsm_agent.tools.effects import arguments_digest, class_of
from fsm_agent.tools.registry import Tool

_LETTERS: dict[AskKind, str] = {"approval": "a", "question": "q", "in_doubt": "d"}


class Request(NamedTuple):
    """A request for a person."""

    asked: Asked
    question: Question


def ask_approval(
    run: Run, call: OpenCall, tool: Tool[..., Any], arguments: str, why: str
) -> Request:
    """May the call run with exactly these arguments?"""
    return _request(run, call, tool, "approval", arguments, why)


def ask_in_doubt(
    run: Run, call: OpenCall, tool: Tool[..., Any], arguments: str, why: str, *, unlock_ms: int
) -> Request:
    """Did the call take effect? 'It did not, run it' may be said from `unlock_ms` on."""
    reason = f"The call was started and may have taken effect. {why}"
    return _request(run, call, tool, "in_doubt", arguments, reason, unlock_ms=unlock_ms)


def ask_question(run: Run, call: OpenCall, bound: Bound) -> Request:
    """The model's own question to the user."""
    options = tuple(bound.kwargs.get("options") or ())
    reason = str(bound.kwargs["question"])
    return _request(run, call, ASK_USER, "question", bound.arguments, reason, options=options)


def _request(
    run: Run,
    call: OpenCall,
    tool: Tool[..., Any],
    kind: AskKind,
    arguments: str,
    reason: str,
    *,
    options: tuple[str, ...] = (),
    unlock_ms: int = 0,
) -> Request:
    call_id, reason = call.call.call_id, clean_text(reason)
    # From the journal position: a request that is created again is the same request. And counted:
    # a decided one stays decided, so asking anew needs an id of its own.
    ask_id = f"{_LETTERS[kind]}{call_id[1:]}" + (f"-{call.asks}" if call.asks else "")
    return Request(
        Asked(
            ask_id=ask_id,
            call_id=call_id,
            kind=kind,
            digest=arguments_digest(tool.name, tool.version, arguments),
            reason=reason,
            unlock_ms=unlock_ms,
        ),
        Question(
            kind=kind,
            call_id=call_id,
            tool=tool.name,
            arguments=arguments,
            reason=reason,
            effect=class_of(tool.effect),
            agent=run.agent,
            options=options,
        ),
    )
