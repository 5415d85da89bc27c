"""What simulated runs do: an agent with a tool of each class, a scripted model, and a ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from random import Random

from fsm_agent.capabilities.agent import Agent
from fsm_agent.errors import ProviderError
from fsm_agent.llm.model import Piece, Reply, RequestedCall, StepRequest
from fsm_agent.run.content import AssistantMessage, ToolMessage, Usage, UserMessage
from fsm_agent.run.limits import Limits
from fsm_agent.tools.context import ToolContext
from fsm_agent.tools.effects import ProbeResult, done, keyed, not_done, probed
from fsm_agent.tools.registry import tool

TOOL_TIMEOUT_S = 2.0
KINDS = ("look", "put", "hold", "pay", "refund", "post")
Plan = tuple[tuple[tuple[str, int], ...], ...]  # the calls of each turn: a tool and a number


@dataclass
class World:
    """Everything outside the store."""

    chance: Random
    note: Callable[[str], None] = lambda text: None
    plans: dict[str, Plan] = field(default_factory=dict)  # by task
    effects: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # tool, call, key
    asked: Counter[str] = field(default_factory=Counter)  # model calls that went out, by task
    breaks: Callable[[], bool] = lambda: False  # whether the model fails now
    strike: Callable[[], None] = lambda: None  # perhaps the machine dies or pauses, right now

    def sent(self, name: str, call: str) -> int:
        """How often the effect of a call was sent."""
        return sum(
            n for (tool_, call_, _), n in self.effects.items() if (tool_, call_) == (name, call)
        )

    def keys(self, name: str, call: str) -> int:
        """With how many keys."""
        return sum((tool_, call_) == (name, call) for tool_, call_, _ in self.effects)


WORLD: ContextVar[World] = ContextVar("fsm_agent_simulated_world")


def text_of(name: str, number: int) -> str:
    """What a tool returns."""
    return f"{name} {number}: ok"


async def _work(name: str, number: int, ctx: ToolContext, *, has_effect: bool = True) -> str:
    """Take some time before an effect and some after it."""
    world = WORLD.get()
    world.strike()
    await asyncio.sleep(world.chance.choice([0.001, 0.05, 0.6]))
    if has_effect:
        world.effects[name, f"{ctx.run_id} {ctx.call_id}", ctx.idempotency_key] += 1
        world.note(f"effect {name} {ctx.run_id} {ctx.call_id}")
    world.strike()
    await asyncio.sleep(world.chance.choice([0.001, 0.05, 0.6]))
    return text_of(name, number)


async def _was_posted(number: int, ctx: ToolContext) -> ProbeResult:
    await asyncio.sleep(0.05)
    if WORLD.get().sent("post", f"{ctx.run_id} {ctx.call_id}"):
        return done(text_of("post", number))
    return not_done()


@cache
def agent() -> Agent:
    """One agent for all simulations: building its schemas takes longer than running it."""

    @tool(effect="read", timeout_s=TOOL_TIMEOUT_S)
    async def look(number: int, ctx: ToolContext) -> str:
        """Look something up."""
        return await _work("look", number, ctx, has_effect=False)

    @tool(effect="idempotent", timeout_s=TOOL_TIMEOUT_S)
    async def put(number: int, ctx: ToolContext) -> str:
        """Set something."""
        return await _work("put", number, ctx)

    @tool(effect=keyed(ttl_s=86_400), timeout_s=TOOL_TIMEOUT_S)
    async def hold(number: int, ctx: ToolContext) -> str:
        """Hold some money, under a key."""
        return await _work("hold", number, ctx)

    @tool(effect=probed(check=_was_posted), timeout_s=TOOL_TIMEOUT_S)
    async def post(number: int, ctx: ToolContext) -> str:
        """Post something that can be looked for."""
        return await _work("post", number, ctx)

    @tool(effect="unsafe", timeout_s=TOOL_TIMEOUT_S)
    async def pay(number: int, ctx: ToolContext) -> str:
        """Pay."""
        return await _work("pay", number, ctx)

    @tool(effect="unsafe", approval="always", timeout_s=TOOL_TIMEOUT_S)
    async def refund(number: int, ctx: ToolContext) -> str:
        """Pay back, if a person agrees."""
        return await _work("refund", number, ctx)

    limits = Limits(tokens=10**9, failures=10**6, wall_s=10**6)
    return Agent("simulated", tools=[look, put, hold, post, pay, refund], limits=limits)


class Model:
    """Answers by what the request holds: a request that is sent again is answered alike."""

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        world = WORLD.get()
        task = next(m.text for m in request.messages if isinstance(m, UserMessage))
        world.asked[task] += 1
        await asyncio.sleep(world.chance.choice([0.01, 0.1, 1.0]))
        if world.breaks():
            raise ProviderError("server_error", "says the weather", is_retryable=True, status=503)
        plan = world.plans[task]
        turn = sum(isinstance(m, AssistantMessage) for m in request.messages)
        if turn < len(plan):
            calls = tuple(RequestedCall(n, {"number": i}, "{}") for n, i in plan[turn])
            return Reply(label="TOOL", text="", calls=calls, usage=Usage(10, 5))
        said = "; ".join(m.text for m in request.messages if isinstance(m, ToolMessage))
        return Reply(label="FINISH", text=said, usage=Usage(10, 5))

    async def aclose(self) -> None:
        pass


def drawn_plan(chance: Random, kinds: tuple[str, ...]) -> Plan:
    """One to three turns of one to three calls."""
    numbers = iter(range(1, 100))
    return tuple(
        tuple((chance.choice(kinds), next(numbers)) for _ in range(chance.randint(1, 3)))
        for _ in range(chance.randint(1, 3))
    )
