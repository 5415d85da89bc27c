"""What the next model call would set aside, and what the last one cost."""

from __future__ import annotations

from math import ceil

from fsm_agent.capabilities.agent import Agent
from fsm_agent.context.window import Window
from fsm_agent.errors import BadAgent
from fsm_agent.llm.model import Model, name_of
from fsm_agent.reflection.money import ANY_MODEL, Price
from fsm_agent.run.content import Usage
from fsm_agent.run.delta import Charged, Reserved
from fsm_agent.run.record import Run

MAX_BILLED_TOKENS = 2**40  # of one call: more is no count


def price_for(agent: Agent, client: Model, model: str | None = None) -> Price | None:
    """What a call of `model` costs, of the agent's own by default; None: nobody said so."""
    if not agent.prices:
        return None
    return agent.price(model or agent.model or name_of(client, "step"))


def reserve_of(run: Run, window: Window, agent: Agent, client: Model) -> Reserved:
    """What the next turn may cost at the most, roughly: the window, and the reply."""
    # More than the budget means that the window is about to be cut.
    asked = window.overhead_tokens + min(window.tokens(run), window.budget(run))
    prompt = ceil(asked * run.token_scale)
    price = price_for(agent, client)
    return Reserved(
        run.attempts + 1,
        prompt + agent.reply_tokens,
        prompt_tokens=asked,
        micros=price.micros(prompt, agent.reply_tokens) if price else 0,
    )


def has_room(run: Run, tokens: int, micros: int) -> bool:
    """Whether the budgets have room for a call. A reserve that an attempt left behind counts."""
    most = run.limits.micros
    if most is not None and run.spent_micros + run.reserved_micros + micros > most:
        return False
    return run.spent_tokens + run.reserved_tokens + tokens <= run.limits.tokens


def check_prices(run: Run, agent: Agent, client: Model) -> None:
    """Raises BadAgent where the run has a limit on money, and nobody said what one of its models
    costs."""
    if run.limits.micros is None:
        return
    asked = {"its model": agent.model}
    if agent.critic:
        asked["its critic"] = agent.critic.model
    if agent.context.summary:
        asked["its summaries"] = agent.context.summary.model
    for what, model in asked.items():
        if price_for(agent, client, model) is None:
            name = model or agent.model or name_of(client, "step") or ANY_MODEL
            raise BadAgent(
                f"run {run.run_id!r} may spend {run.limits.money:g}, and agent {agent.name!r} has "
                f"no price for {what}. "
                f"Give Agent(…, prices={{{name!r}: Price(input=…, output=…)}})."
            )


def charge(price: Price | None, usage: Usage, cached_tokens: int = 0) -> tuple[Charged, ...]:
    """What a call has cost; nothing where nobody said what it costs."""
    if price is None:
        return ()
    cached = min(max(cached_tokens, 0), usage.prompt_tokens)
    return (Charged(price.micros(usage.prompt_tokens, usage.completion_tokens, cached), cached),)


def sane(usage: Usage) -> Usage:
    """What a server says it billed, as far as it is a count: a budget must not shrink by it."""
    counts = (usage.prompt_tokens, usage.completion_tokens)
    prompt, completion = (min(max(count, 0), MAX_BILLED_TOKENS) for count in counts)
    return Usage(prompt, completion, usage.is_estimate)
