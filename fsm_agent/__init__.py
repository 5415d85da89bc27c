"""LLM agents as an explicit state machine whose every transition is a fenced checkpoint."""

from fsm_agent.capabilities.agent import Agent
from fsm_agent.run.limits import Limits
from fsm_agent.runtime import Result, Runtime, run_sync
from fsm_agent.tools import (
    Tool,
    ToolContext,
    cannot_tell,
    done,
    keyed,
    not_done,
    probed,
    tool,
)
from fsm_agent.tools.ask_user import ask_user

__all__ = [
    "Agent",
    "Limits",
    "Result",
    "Runtime",
    "Tool",
    "ToolContext",
    "ask_user",
    "cannot_tell",
    "done",
    "keyed",
    "not_done",
    "probed",
    "run_sync",
    "tool",
]
