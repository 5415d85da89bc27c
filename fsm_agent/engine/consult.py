"""A model call beside the run's own turns: its reserve is on record first, its cost comes after."""

from __future__ import annotations

from typing import NamedTuple

from fsm_agent.capabilities.agent import Agent
from fsm_agent.context.tokens import tokens_of
from fsm_agent.errors import MissingSetting, ProviderError
from fsm_agent.llm.model import Piece, StepRequest
from fsm_agent.run.content import Usage, UserMessage, clean_text
from fsm_agent.run.delta import AnyDelta, Charged, Purpose, Reserved
from fsm_agent.run.record import Run
from fsm_agent.run.state import Trigger

from .costs import charge, has_room, price_for, sane
from .deps import Deps
from .session import Session

NOTHING = Usage(0, 0, is_estimate=True)


class Consulted(NamedTuple):
    """What came of the call. With a problem there is no text; the usage may be billed."""

    text: str
    usage: Usage
    problem: str = ""
    charged: tuple[Charged, ...] = ()


class Question(NamedTuple):
    """What a model is asked besides the run: with no tools, no labels, and no history."""

    purpose: Purpose
    model: str | None
    instructions: str
    text: str
    max_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """By plain estimate."""
        return tokens_of(len(self.instructions) + len(self.text))


async def consult(
    session: Session, agent: Agent, deps: Deps, question: Question, *facts: AnyDelta
) -> Consulted:
    """Ask once. `facts` go into the entry that says that the call begins.

    Never raises for a model that fails: nothing of the run depends on the answer. Without room in
    the budgets nothing is asked. Raises Interrupted if a cancel request came.
    """
    run = session.run
    reserved = reserve_for(run, agent, deps, question)
    if not has_room(run, reserved.reserve_tokens, reserved.micros):
        # What an attempt before this one left behind was perhaps billed: it counts here.
        left = Usage(run.reserved_tokens, 0, is_estimate=True)
        return Consulted("", left, "no budget left for it", _charged(run.reserved_micros))
    session.stage(Trigger.BEGAN, *facts, reserved)
    await session.flush()
    try:
        with session.interruptible():
            reply = await deps.model.step(_request(agent, question), _ignore)
    except ProviderError as error:
        # What was refused or never arrived costs nothing; a broken stream may have been billed.
        is_billed = error.status is None and error.kind != "unreachable"
        usage = Usage(reserved.reserve_tokens, 0, is_estimate=True) if is_billed else NOTHING
        billed_micros = reserved.micros if is_billed else 0
        return Consulted("", usage, _cause(error), _charged(billed_micros))
    except MissingSetting as error:
        return Consulted("", NOTHING, _cause(error))
    billed = sane(reply.usage) if reply.usage and reply.usage.total_tokens else None
    usage = billed or Usage(question.prompt_tokens, tokens_of(len(reply.text)), is_estimate=True)
    charged = charge(price_for(agent, deps.model, question.model), usage, reply.cached_tokens)
    if not reply.text.strip():
        return Consulted("", usage, "the model said nothing", charged)
    return Consulted(clean_text(reply.text.strip()), usage, "", charged)


def reserve_for(run: Run, agent: Agent, deps: Deps, question: Question) -> Reserved:
    """What the call may cost at the most, roughly."""
    prompt = int(question.prompt_tokens * run.token_scale) + 1
    price = price_for(agent, deps.model, question.model)
    return Reserved(
        run.attempts + 1,
        prompt + question.max_tokens,
        purpose=question.purpose,
        prompt_tokens=question.prompt_tokens,
        micros=price.micros(prompt, question.max_tokens) if price else 0,
    )


def _charged(micros: int) -> tuple[Charged, ...]:
    return (Charged(micros),) if micros else ()


def _request(agent: Agent, question: Question) -> StepRequest:
    return StepRequest(
        instructions=question.instructions,
        messages=(UserMessage(question.text),),
        model=question.model or agent.model,
        max_tokens=question.max_tokens,
    )


def _ignore(piece: Piece) -> None:
    """The text is no word of the run: nobody watches it come."""


def _cause(error: Exception) -> str:
    return clean_text(str(error))[:300]
