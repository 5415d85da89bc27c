"""Working on what is due now, and no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fsm_agent.capabilities.agent import Agent

from .pool import Worker, Works

Result = TypeVar("Result")


async def work_due_once(
    runtime: Works[Result],
    agents: Mapping[str, Agent],
    *,
    on_result: Callable[[Result], Any] = lambda result: None,
) -> int:
    """Work on every run that is due now and whose agent is among `agents` (by name).

    Returns how many were worked on. A run that another worker holds, or that cannot be worked on
    here, is left as it is, with a log line that says why. Raises what
    `Worker.work_until_idle` raises.
    """
    return await Worker(runtime, agents, on_result=on_result).work_until_idle()
