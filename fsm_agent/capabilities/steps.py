"""A list of steps as the model writes it: read, put before a person, and shown again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from fsm_agent.run.record import OpenCall, PlanStep, Run
from fsm_agent.tools.registry import Tool, tool
from fsm_agent.tools.rule import Approval

from .phase import Wanted

MAX_STEP_CHARS = 400
_MARK = (
    r"[-*+•‣–]\s+",
    r"\(?\d{1,3}[.):]\s+",  # not the 1.5 of a sentence
    r"\d{1,3}[、．：]\s*",
    r"step\s+\d{1,3}\s*[.:)-]\s+",
)
_ITEM = re.compile(rf"[ \t]{{0,3}}(?:{'|'.join(_MARK)})(?=\S)", re.IGNORECASE)


def listed(text: str) -> tuple[str, ...]:
    """The items of a list: JSON strings, bulleted or numbered lines, else one item a line.

    What stands before the first bullet is an introduction; what stands below one belongs to it.
    """
    if (strings := _json_strings(text)) is not None:
        return strings
    lines = [line for line in text.splitlines() if line.strip() and not _is_fence(line)]
    if not any(map(_ITEM.match, lines)):
        return tuple(line.strip() for line in lines)
    items: list[str] = []
    for line in lines:
        if found := _ITEM.match(line):
            items.append(line[found.end() :].strip())
        elif items:
            items[-1] = f"{items[-1]} {line.strip()}"
    return tuple(items)


def _json_strings(text: str) -> tuple[str, ...] | None:
    body = "\n".join(line for line in text.strip().splitlines() if not _is_fence(line))
    try:
        found = msgspec.json.decode(body.encode(), type=list[str])
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return tuple(item.strip() for item in found if item.strip())


def _is_fence(line: str) -> bool:
    return line.lstrip().startswith("```")


def reads_steps(tool_name: str, most: int) -> Callable[[Run, str], Sequence[Wanted] | str]:
    """Reads a reply's text as one call of the tool that accepts a plan."""

    def read(run: Run, text: str) -> Sequence[Wanted] | str:
        steps = listed(text)
        if problem := _problem(steps, most):
            return f"{problem} Write one item a line, numbered."
        return (Wanted(tool_name, {"steps": list(steps)}),)

    return read


def _problem(steps: Sequence[str], most: int) -> str:
    if not any(step.strip() for step in steps):
        return "The text has no items."
    if len(steps) > most:
        return f"The text has {len(steps)} items, {most} are possible."
    long = next((step for step in steps if len(step) > MAX_STEP_CHARS), None)
    if long:
        return f"An item has {len(long)} characters, {MAX_STEP_CHARS} are possible."
    return ""


def plan_tool(name: str, most: int, review: Approval) -> Tool[..., Any]:
    """The tool that a plan is a call of, so that people decide on it as on any call."""

    def accept(steps: Annotated[list[str], "What is to be done, in order."]) -> str:
        """Put the plan on record, once whoever has to see it has seen it."""
        if problem := _problem(steps, most):
            raise ValueError(problem)
        return "This is the plan now."

    return tool(accept, name=name, effect="read", approval=review)


def accepted(run: Run, tool_name: str) -> tuple[str, ...] | None:
    """The steps of a plan that has just been accepted, as a person left them; None if none was."""
    for call in run.calls:
        if call.call.name == tool_name and _has_run(call):
            steps = json.loads(call.arguments)["steps"]
            return tuple(step.strip() for step in steps if step.strip())
    return None


def _has_run(call: OpenCall) -> bool:
    # A person who answers in the plan's place has said something, but has not accepted it.
    is_answer = bool(call.ruling and call.ruling.verb == "answer")
    return bool(call.result and call.result.status == "success" and not is_answer)


def shown(run: Run) -> str:
    """The plan as the model is shown it, with where it stands; '' without one."""
    if not run.plan:
        return ""
    now = run.open_steps[0] if run.open_steps else -1
    lines = [
        f"{index + 1}. {step.text}{_mark(step, is_now=index == now)}"
        for index, step in enumerate(run.plan)
    ]
    return "The plan:\n" + "\n".join(lines)


def _mark(step: PlanStep, *, is_now: bool) -> str:
    if step.status != "open":
        return f" [{step.status}]"
    return " [now]" if is_now else ""
