"""The runtime of a command: one that only looks needs no model, one that works checks it first."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from fsm_agent.capabilities.agent import Agent
from fsm_agent.cli.settings import current
from fsm_agent.cli.spans import kept_s
from fsm_agent.engine.deps import EngineSettings
from fsm_agent.errors import UsageError
from fsm_agent.llm.model import Piece, Reply, StepRequest, Use
from fsm_agent.run.event import Event
from fsm_agent.runtime import Runtime

NO_STEP = StepRequest(instructions="", messages=())


class _NoModel:
    """The model of a command that never asks one."""

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        raise UsageError("this command does not ask a model.")

    def name_of(self, use: Use) -> str:
        # Whoever starts a run with a limit on money is told at once if its model has no price.
        return os.environ.get("FSM_AGENT_MODEL", "") if use == "step" else ""

    async def aclose(self) -> None:
        pass


def looking() -> AbstractAsyncContextManager[Runtime]:
    """A runtime to look, decide and say with: no key is needed."""
    return Runtime.open(current().store, model=_NoModel(), is_live=False, webhooks=())


@asynccontextmanager
async def working(
    on_event: Callable[[Event], None], *, lease_s: float | None = None
) -> AsyncIterator[Runtime]:
    """A runtime to work with."""
    from fsm_agent.llm.client import OpenAIModel

    model = OpenAIModel(is_live=True)
    settings = EngineSettings(keep_s=kept_s())
    if lease_s is not None:
        settings = replace(settings, lease_s=lease_s)
    try:
        async with Runtime.open(
            current().store, model=model, on_event=on_event, settings=settings
        ) as runtime:
            yield runtime
    finally:
        await model.aclose()


def check_model(agent: Agent) -> None:
    """Make sure that a model can be asked at all. Raises MissingSetting, naming the setting."""
    from fsm_agent.llm.client import OpenAIModel

    # Not a second client: it connects to nothing before its first step.
    OpenAIModel(model=agent.model).endpoint(NO_STEP)
