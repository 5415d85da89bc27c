"""ReAct on native tool calls: for models that call tools well and will not follow labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fsm_agent.tools.registry import Tool

from .agent import Agent


def react(
    name: str,
    instructions: str = "You are a helpful assistant.",
    *,
    tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
    **settings: Any,
) -> Agent:
    """Think, act, observe without labels: a tool call acts, and text alone is the answer.

    `settings` are those of Agent. With labels, a plain Agent does the same.
    """
    return Agent(name, instructions, tools=tools, protocol=None, **settings)
