"""An agent whose tools are as they were, but for the points around each call and its line in the
ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from fsm_agent.capabilities.agent import Agent
from fsm_agent.capabilities.delegate import AgentTool
from fsm_agent.run.content import canonical_json
from fsm_agent.tools.ask_user import is_question
from fsm_agent.tools.context import ToolContext
from fsm_agent.tools.outcomes import opened
from fsm_agent.tools.process import run_in_process
from fsm_agent.tools.registry import Tool
from fsm_agent.tools.results import CannotShow, text_of

from .ledger import Ledger
from .points import Points


@dataclass(frozen=True, eq=False, kw_only=True)
class PointedTool(Tool[..., Any]):
    """A tool with a point before each call and one after it, and both noted in the ledger.

    Between the two points the user's own function runs, in a task, a thread or a process as ever.
    """

    inner: Tool[..., Any]
    points: Points
    ledger: Ledger

    @property
    def is_async(self) -> bool:
        return self.inner.is_async or self.inner.isolation == "process"

    def call(self, kwargs: Mapping[str, Any], context: ToolContext) -> Any:
        """See Tool."""
        if self.inner.isolation == "process":
            return self._isolated(kwargs, context)
        return (self._awaited if self.inner.is_async else self._called)(kwargs, context)

    def _called(self, kwargs: Mapping[str, Any], context: ToolContext) -> Any:
        number = self._enter(context)
        try:
            value = self.inner.call(kwargs, context)
        except BaseException:
            self._leave(number, context)
            raise
        self._leave(number, context, value)
        return value

    async def _awaited(self, kwargs: Mapping[str, Any], context: ToolContext) -> Any:
        number = self._enter(context)
        try:
            value = await self.inner.call(kwargs, context)
        except BaseException:
            self._leave(number, context)
            raise
        self._leave(number, context, value)
        return value

    async def _isolated(self, kwargs: Mapping[str, Any], context: ToolContext) -> Any:
        arguments = canonical_json(msgspec.to_builtins(dict(kwargs), str_keys=True))
        limit_s = context.remaining_s()
        number = self._enter(context)
        try:
            value = await run_in_process(self.inner, arguments, context, timeout_s=limit_s)
        except BaseException:
            self._leave(number, context)
            raise
        self._leave(number, context, value.value)
        return value

    def _enter(self, context: ToolContext) -> int:
        number = self.points.enter(f"tool {self.name}")
        self.ledger.started(self.name, context.idempotency_key)
        return number

    def _leave(self, number: int, context: ToolContext, value: Any = None) -> None:
        self.ledger.ended(self.name, context.idempotency_key, _told(value))
        self.points.pass_(f"tool {self.name}", number, "after")


def _told(value: Any) -> str:
    try:
        return text_of(opened(value).value)
    except (CannotShow, TypeError, ValueError):
        return ""


def pointed_agent(agent: Agent, points: Points, ledger: Ledger) -> Agent:
    """The agent with every tool pointed, and the agents that it delegates to as well."""
    return agent.with_tools([_pointed(tool, points, ledger) for tool in agent.registry])


def _pointed(tool: Tool[..., Any], points: Points, ledger: Ledger) -> Tool[..., Any]:
    if isinstance(tool, AgentTool):
        return replace(tool, agent=pointed_agent(tool.agent, points, ledger))
    if is_question(tool):
        return tool  # answered by a person, and never called
    settings = {each.name: getattr(tool, each.name) for each in fields(Tool)}
    # Its own process is started from within the call: then the points are around it.
    settings |= {"isolation": "none", "resources": None, "place": None}
    return PointedTool(**settings, inner=tool, points=points, ledger=ledger)
