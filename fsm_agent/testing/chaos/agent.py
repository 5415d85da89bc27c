"""The agent of the chaos fleet: a read, a keyed, an unsafe and an approved tool, with a ledger."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from fsm_agent.capabilities.agent import Agent
from fsm_agent.testing.chaos.ledger import record
from fsm_agent.tools.context import ToolContext
from fsm_agent.tools.effects import keyed
from fsm_agent.tools.registry import tool

LEDGER = "FSM_AGENT_CHAOS_LEDGER"  # the file in which effects are counted
TIMEOUT_S = 1.0  # of a tool; a call that was cut off is locked for little longer
PACE_S = 0.1  # before and after an effect, so that what strikes may strike there


async def _do(name: str, ctx: ToolContext) -> str:
    await asyncio.sleep(PACE_S)
    record(Path(os.environ[LEDGER]), name, ctx.run_id, ctx.idempotency_key)
    await asyncio.sleep(PACE_S)
    return f"{name}: ok"


@tool(effect="read", timeout_s=TIMEOUT_S)
async def look(order: str, ctx: ToolContext) -> str:
    """Look an order up."""
    await asyncio.sleep(PACE_S)
    return f"order {order}: 42 EUR"


@tool(effect=keyed(ttl_s=86_400), timeout_s=TIMEOUT_S)
async def hold(order: str, ctx: ToolContext) -> str:
    """Hold the money of an order, under a key."""
    return await _do("hold", ctx)


@tool(effect="unsafe", timeout_s=TIMEOUT_S)
async def pay(order: str, ctx: ToolContext) -> str:
    """Pay an order back."""
    return await _do("pay", ctx)


@tool(effect="unsafe", approval="always", timeout_s=TIMEOUT_S)
async def refund(order: str, ctx: ToolContext) -> str:
    """Pay an order back once more, if a person agrees."""
    return await _do("refund", ctx)


agent = Agent("chaos", tools=[look, hold, pay, refund])
