"""How a run stood after one of its entries: state, budgets, calls, messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from fsm_agent.cli import asjson
from fsm_agent.cli.clean import one_line
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import put
from fsm_agent.cli.settings import current
from fsm_agent.reflection.budgets import worked_s
from fsm_agent.run.content import AssistantMessage, Message, ToolMessage, UserMessage
from fsm_agent.run.record import OpenCall, Run
from fsm_agent.versions import Replayed

_UNITS = {"wall_s": "seconds of work"}
SHOWN = 20  # messages on a terminal; --json has them all


async def replay(run_id: str, at: int | None) -> Replayed:
    """The run as its journal makes it, up to an entry. Reads only."""
    async with looking() as runtime:
        return await runtime.replay(run_id, at=at)


def show_standing(replayed: Replayed) -> None:
    """Put it on stdout: lines for people, or one JSON object."""
    if current().is_json:
        put(asjson.line(standing_json(replayed)))
        return
    for line in _lines(replayed):
        put(line)


def standing_json(replayed: Replayed) -> dict[str, Any]:
    """The standing as a JSON object."""
    run = replayed.run
    return {
        "event": "standing",
        "run_id": run.run_id,
        "seq": run.seq,
        "last_seq": replayed.last_seq,
        "chain": replayed.chain,
        "state": run.state.value,
        "agent": run.agent,
        "task": run.task,
        "origin": run.origin or None,
        "parent": run.parent or None,
        "budgets": {name: {"used": used, "limit": most} for name, used, most in _budgets(run)},
        "calls": [_call_json(call) for call in run.calls],
        "messages": [msgspec.to_builtins(message) for message in map(_named, run.messages)],
        "answer": run.answer.text if run.answer else None,
        "failure": run.failure.message if run.failure else None,
        "differences": list(replayed.differences),
    }


def _budgets(run: Run) -> Iterator[tuple[str, float, float]]:
    limits = run.limits
    yield "turns", run.turns, limits.turns
    yield "tokens", run.spent_tokens + run.reserved_tokens, limits.tokens
    yield "tool_calls", run.tool_calls, limits.tool_calls
    yield "wall_s", worked_s(run, run.updated_ms), limits.wall_s
    yield "errors", run.errors, limits.errors
    yield "repairs", run.repairs, limits.repairs


def _call_json(call: OpenCall) -> dict[str, Any]:
    return {
        "call_id": call.call.call_id,
        "tool": call.call.name,
        "arguments": call.arguments,
        "phase": call.phase,
        "starts": call.starts,
        "ask_id": call.ask.ask_id if call.ask else None,
        "status": call.result.status if call.result else None,
    }


def _named(message: Message) -> dict[str, Any]:
    """A message with its field names: on disk it is an array."""
    return {"role": _role(message)} | {
        name: getattr(message, name) for name in message.__struct_fields__
    }


def _role(message: Message) -> str:
    match message:
        case UserMessage():
            return "user"
        case AssistantMessage():
            return "assistant"
        case ToolMessage():
            return "tool"
        case _:
            return "note"


def _lines(replayed: Replayed) -> Iterator[str]:
    run = replayed.run
    yield f"run {run.run_id} after entry {run.seq} of {replayed.last_seq}  chain {replayed.chain}"
    if run.origin:
        yield f"  fork of    {run.origin}"
    yield f"  state      {run.state.value}"
    yield f"  agent      {one_line(run.agent, 64)}: {one_line(run.task, 100)}"
    used = (
        f"{_UNITS.get(n, n.replace('_', ' '))} {used:,.0f} of {most:,.0f}"
        for n, used, most in _budgets(run)
    )
    yield f"  budgets    {', '.join(used)}"
    for call in run.calls:
        yield f"  call       {call.call.call_id} {one_line(call.call.name, 64)} {_phase(call)}"
    if run.answer:
        yield f"  answer     {one_line(run.answer.text)}"
    if run.failure:
        yield f"  failure    {run.failure.reason}: {one_line(run.failure.message, 200)}"
    hidden = max(0, len(run.messages) - SHOWN)
    earlier = f", {hidden} earlier ones not shown (--json has all)" if hidden else ""
    chars = sum(len(message.text) for message in run.messages)
    yield f"  messages   {len(run.messages)}, {chars:,} characters{earlier}"
    for message in run.messages[hidden:]:
        yield f"    {_role(message):<9}  {_words(message)}"


def _phase(call: OpenCall) -> str:
    match call.phase:
        case "settled":
            return call.result.status if call.result else ""
        case "waiting":
            return f"waits for a person (request {call.ask.ask_id})" if call.ask else ""
        case "started":
            where = f" in run {call.origin}" if call.origin else ""
            return f"was started{where}, time {call.starts}, and has no result"
        case _:
            return "was approved" if call.is_approved else "has not been started"


def _words(message: Message) -> str:
    text = one_line(message.text, 120)
    if isinstance(message, ToolMessage):
        return f"{one_line(message.name, 64)} {message.status}: {text}"
    if isinstance(message, AssistantMessage):
        label = f"{message.label}:" if message.label else ""
        wants = ", ".join(one_line(call.name, 64) for call in message.calls)
        return " ".join(filter(None, (label, text, f"wants {wants}" if wants else "")))
    return text
