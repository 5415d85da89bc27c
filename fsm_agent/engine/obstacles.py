"""What keeps an agent's code from going on with a stored run: looked up, never changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from fsm_agent.capabilities.agent import Agent
from fsm_agent.run.record import OpenCall, Run
from fsm_agent.tools.arguments import Refused
from fsm_agent.tools.effects import arguments_digest, class_of
from fsm_agent.tools.registry import Tool

from .versions import changes_for, has_let_go

ObstacleKind = Literal["tool_gone", "arguments", "approval_void", "effect", "parks", "unreadable"]


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """Something of a live run that other code cannot serve as it stands."""

    run_id: str
    agent: str
    kind: ObstacleKind
    reason: str  # a sentence for people
    seq: int = 0  # the run's last entry
    call_id: str = ""
    tool: str = ""
    ask_id: str = ""  # the open request that is concerned


def obstacles(run: Run, agent: Agent) -> Iterator[Obstacle]:
    """What the agent cannot serve of the run: parts that make it park, and its open calls."""
    found = changes_for(run, agent)
    if found and agent.on_change == "park":
        yield Obstacle(
            run_id=run.run_id,
            agent=run.agent,
            kind="parks",
            reason=f"it would park, as its agent says: {', '.join(found)}",
            seq=run.seq,
        )
    for call in run.calls:
        if not call.result and (problem := _problem_of(run, call, agent)):
            kind, reason = problem
            yield Obstacle(
                run_id=run.run_id,
                agent=run.agent,
                kind=kind,
                reason=reason,
                seq=run.seq,
                call_id=call.call.call_id,
                tool=call.call.name,
                ask_id=call.ask.ask_id if call.ask else "",
            )


def _problem_of(run: Run, call: OpenCall, agent: Agent) -> tuple[ObstacleKind, str] | None:
    was = _stands(call)
    if not was or call.call.problem:
        return None  # the model is told what is wrong with it, as with any call
    name = call.call.name
    if name not in agent.registry:
        if has_let_go(run.versioned, name):
            return None
        return "tool_gone", f"call {call.call.call_id} {was}, and there is no tool {name} any more"
    tool = agent.registry.get(name)
    bound = tool.bind(call.arguments)
    if isinstance(bound, Refused):
        return "arguments", (
            f"call {call.call.call_id} {was}, and {name} takes other arguments now:"
            f" {bound.problem.rstrip('.')}"
        )
    digest = arguments_digest(tool.name, tool.version, bound.arguments)
    named = (
        call.ask.digest
        if call.ask
        else call.ruling.digest
        if call.is_approved and call.ruling
        else ""
    )
    if named and named != digest and not call.intent:
        return "approval_void", (
            f"call {call.call.call_id} {was}, and {name} is not what was shown:"
            " a person would be asked again"
        )
    return _changed_effect(call, tool, was)


def _stands(call: OpenCall) -> str:
    """What the call waits for or has behind it, so that code must be able to serve it."""
    if call.ask:
        return f"waits for a person (request {call.ask.ask_id})"
    if call.intent or call.starts:
        return "was started and has no result"
    return "was approved" if call.is_approved else ""


def _changed_effect(
    call: OpenCall, tool: Tool[..., object], was: str
) -> tuple[ObstacleKind, str] | None:
    effect = class_of(tool.effect)
    if not call.intent or call.ask or effect == call.intent.effect:
        return None
    if {effect, call.intent.effect} == {"read", "idempotent"}:
        return None
    return "effect", (
        f"call {call.call.call_id} {was}: as {call.intent.effect}, and {tool.name} is {effect} now."
        " A person would be asked what became of it"
    )
