"""Chat: an agent that talks with a person, message after message.

Each message is a run. `Runtime.start(agent, text, continues=RUN)` begins one with the conversation
of the run before it; while a run goes on, `Runtime.say` adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fsm_agent.labels.protocol import LabelProtocol
from fsm_agent.tools.registry import Tool

from .agent import Agent

CHAT = LabelProtocol(
    allowed=("FINISH", "TOOL", "THINK", "PAUSE"),
    terminal=frozenset({"FINISH"}),
    intermediate=frozenset({"THINK", "PAUSE"}),
    final=frozenset({"FINISH", "PAUSE"}),
    tool_label="TOOL",
    meanings={
        "FINISH": "your answer to the person; it is their turn then.",
        "PAUSE": "something the person should read now; you go on working in the next turn.",
    },
)


def chat(
    name: str,
    instructions: str = "You talk with a person. Be brief, and say what you do not know.",
    *,
    tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
    **settings: Any,
) -> Agent:
    """An agent for conversations. `settings` are those of Agent."""
    return Agent(name, instructions, tools=tools, protocol=CHAT, **settings)
