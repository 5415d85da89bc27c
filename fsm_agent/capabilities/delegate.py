"""An agent as another agent's tool: its call is the work of a child run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from fsm_agent.errors import BadAgent
from fsm_agent.tools.effects import Idempotent
from fsm_agent.tools.registry import Tool
from fsm_agent.tools.rule import Approval
from fsm_agent.tools.schema import read_signature

if TYPE_CHECKING:
    from .agent import Agent


@dataclass(frozen=True, eq=False, kw_only=True)
class AgentTool(Tool[..., Any]):
    """A tool whose calls an agent works on, each in a run of its own."""

    agent: Agent
    share: float = 0.5  # of the tokens that the parent has left, for all such calls of a batch


def delegate(
    task: Annotated[str, "What the agent should do, in full: it sees nothing else."],
) -> str:
    """Give a task to another agent, and get its answer."""
    raise RuntimeError("an agent's tool is worked on by the engine, which never calls it")


def agent_tool(
    agent: Agent,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval = "never",
    share: float = 0.5,
    max_output_chars: int = 20_000,
    concurrency: int | None = None,
    version: str = "1",
) -> AgentTool:
    """See Agent.as_tool."""
    chosen = name if name is not None else agent.name
    if not 0 < share <= 1:
        raise BadAgent(f"agent {agent.name!r} as a tool: share={share} must be above 0, at most 1.")
    signature = read_signature(delegate, chosen, {})
    about = description or f"Give a task to {agent.name}. {agent.instructions[:500]}"
    return AgentTool(
        function=delegate,
        name=chosen,
        # To start it again is to go on with the same child run, which knows its own effects.
        effect=Idempotent(),
        approval=approval,
        timeout_s=max(1.0, min(agent.limits.wall_s, 86_400.0)),
        max_output_chars=max_output_chars,
        concurrency=concurrency,
        version=version,
        signature=replace(signature, description=about),
        agent=agent,
        share=share,
    )
