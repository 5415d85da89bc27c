"""The agent that the crash tests kill: one read, one keyed and one unsafe tool with approval."""

from __future__ import annotations

from collections.abc import Callable

from fsm_agent import Agent, ToolContext, keyed, tool
from fsm_agent.llm.model import Piece, Reply, RequestedCall, StepRequest
from fsm_agent.run.content import ToolMessage, Usage
from fsm_agent.testing.crash import Ledger

TOOL_TIMEOUT_S = 0.2


def make_desk(ledger: Ledger) -> Agent:
    @tool(effect="read", timeout_s=TOOL_TIMEOUT_S)
    def look_up(order: str) -> str:
        """Look an order up."""
        return f"order {order}: 42 EUR"

    @tool(effect=keyed(ttl_s=3600), timeout_s=TOOL_TIMEOUT_S)
    async def hold(order: str, ctx: ToolContext) -> str:
        """Hold the money of an order."""
        ledger.record("hold", ctx.idempotency_key)
        return "held"

    @tool(effect="unsafe", approval="always", timeout_s=TOOL_TIMEOUT_S, max_output_chars=100)
    def refund(order: str, amount: int) -> str:
        """Pay an order back."""
        ledger.record("refund", f"{order}:{amount}")
        return "paid back. " * 20  # too long to show: it is kept as a blob before its commit

    return Agent("desk", "Refund orders.", tools=[look_up, hold, refund])


class DeskModel:
    """Answers by what the request holds, so a resumed run is answered alike.

    First it looks the order up, then it holds and refunds in one batch, then it is done.
    """

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        done = [m.name for m in request.messages if isinstance(m, ToolMessage)]
        if "look_up" not in done:
            return self._calls(RequestedCall("look_up", {"order": "A7"}, "{}"))
        if "refund" not in done:
            return self._calls(
                RequestedCall("hold", {"order": "A7"}, "{}"),
                RequestedCall("refund", {"order": "A7", "amount": 42}, "{}"),
            )
        return Reply(label="FINISH", text="Order A7 was refunded.", usage=Usage(10, 5))

    def _calls(self, *calls: RequestedCall) -> Reply:
        return Reply(label="TOOL", text="", calls=calls, usage=Usage(10, 5))

    async def aclose(self) -> None:
        pass
