"""LLM agents as an explicit state machine whose every transition is a fenced checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsm_agent.capabilities.agent import Agent
    from fsm_agent.capabilities.chat import chat
    from fsm_agent.capabilities.hooks import Hooks
    from fsm_agent.capabilities.phase import Capability, Phase
    from fsm_agent.capabilities.plan import plan
    from fsm_agent.capabilities.react import react
    from fsm_agent.capabilities.research import research
    from fsm_agent.capabilities.solve import solve
    from fsm_agent.context.policies import Context, Summary
    from fsm_agent.notify.webhook import Webhook
    from fsm_agent.reflection.critic import Critic
    from fsm_agent.reflection.money import Price
    from fsm_agent.reflection.scene import Progress
    from fsm_agent.reflection.settings import Reflection
    from fsm_agent.run.content import Source
    from fsm_agent.run.limits import Limits
    from fsm_agent.runtime import Result, Runtime, run_sync
    from fsm_agent.tools import (
        McpServer,
        Resources,
        Tool,
        ToolContext,
        cannot_tell,
        done,
        keyed,
        mcp_servers,
        mcp_tools,
        not_done,
        partial,
        pause,
        probed,
        terminate,
        tool,
        tool_from,
        with_files,
        with_sources,
    )
    from fsm_agent.tools.ask_user import ask_user

# Imported on first use: a room of its own, such as `fsm_agent.testing.script`, or `--help`, should
# not pay for the store and the engine.
_HOMES = {
    "Agent": "fsm_agent.capabilities.agent",
    "Capability": "fsm_agent.capabilities.phase",
    "Hooks": "fsm_agent.capabilities.hooks",
    "Phase": "fsm_agent.capabilities.phase",
    "chat": "fsm_agent.capabilities.chat",
    "plan": "fsm_agent.capabilities.plan",
    "react": "fsm_agent.capabilities.react",
    "research": "fsm_agent.capabilities.research",
    "solve": "fsm_agent.capabilities.solve",
    "Context": "fsm_agent.context.policies",
    "Critic": "fsm_agent.reflection.critic",
    "Price": "fsm_agent.reflection.money",
    "Progress": "fsm_agent.reflection.scene",
    "Reflection": "fsm_agent.reflection.settings",
    "Summary": "fsm_agent.context.policies",
    "Limits": "fsm_agent.run.limits",
    "Result": "fsm_agent.runtime",
    "Runtime": "fsm_agent.runtime",
    "run_sync": "fsm_agent.runtime",
    "McpServer": "fsm_agent.tools",
    "Resources": "fsm_agent.tools",
    "Source": "fsm_agent.run.content",
    "Tool": "fsm_agent.tools",
    "ToolContext": "fsm_agent.tools",
    "cannot_tell": "fsm_agent.tools",
    "done": "fsm_agent.tools",
    "keyed": "fsm_agent.tools",
    "mcp_servers": "fsm_agent.tools",
    "mcp_tools": "fsm_agent.tools",
    "not_done": "fsm_agent.tools",
    "partial": "fsm_agent.tools",
    "pause": "fsm_agent.tools",
    "probed": "fsm_agent.tools",
    "terminate": "fsm_agent.tools",
    "tool": "fsm_agent.tools",
    "tool_from": "fsm_agent.tools",
    "with_files": "fsm_agent.tools",
    "with_sources": "fsm_agent.tools",
    "Webhook": "fsm_agent.notify.webhook",
    "ask": "fsm_agent.tools",
    "ask_user": "fsm_agent.tools.ask_user",
    "ask_user_within": "fsm_agent.tools.ask_user",
}

__all__ = [
    "Agent",
    "Capability",
    "Context",
    "Critic",
    "Hooks",
    "Limits",
    "McpServer",
    "Phase",
    "Price",
    "Progress",
    "Reflection",
    "Resources",
    "Result",
    "Runtime",
    "Source",
    "Summary",
    "Tool",
    "ToolContext",
    "Webhook",
    "ask",
    "ask_user",
    "ask_user_within",
    "cannot_tell",
    "chat",
    "done",
    "keyed",
    "mcp_servers",
    "mcp_tools",
    "not_done",
    "partial",
    "pause",
    "plan",
    "probed",
    "react",
    "research",
    "run_sync",
    "solve",
    "terminate",
    "tool",
    "tool_from",
    "with_files",
    "with_sources",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fsm_agent' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # asked for once
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
