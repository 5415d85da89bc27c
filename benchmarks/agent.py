"""The agent that is measured: a model and a tool that take no time, and messages of 1 KiB."""

from __future__ import annotations

from collections.abc import Callable

from fsm_agent import Agent, Limits, tool
from fsm_agent.llm.model import Piece, Reply, RequestedCall, StepRequest
from fsm_agent.run.content import Usage

PAYLOAD = "x" * 1024


@tool(effect="idempotent")
async def note(number: int) -> str:
    """Take a note and give it back: 1 KiB."""
    return PAYLOAD


class InstantModel:
    """Calls the tool in every turn with a new argument, and finishes after `turns` calls."""

    def __init__(self, turns: int) -> None:
        self._turns, self._made = turns, 0

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        self._made += 1
        if self._made > self._turns:
            return Reply(label="FINISH", text="done", usage=Usage(10, 1))
        call = RequestedCall("note", {"number": self._made}, "{}")
        return Reply(label="TOOL", text="", calls=(call,), usage=Usage(10, 1))

    async def aclose(self) -> None:
        pass


def make_agent() -> Agent:
    limits = Limits(turns=10**6, tokens=10**12, tool_calls=10**6, wall_s=1e9)
    return Agent("bench", "Take notes.", tools=[note], limits=limits)
