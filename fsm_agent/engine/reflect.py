"""REFLECT: turn the verdict of the policies into an arrow."""

from __future__ import annotations

from typing import assert_never

from fsm_agent.capabilities.agent import Agent
from fsm_agent.reflection.policy import reflect as verdict_of
from fsm_agent.reflection.verdict import Continue, Finalise, Finish, Repair, Stop, Warn
from fsm_agent.run.delta import Answered, Failed, Finalising, Hinted
from fsm_agent.run.state import Trigger

from .deps import Deps
from .outcome import Move, Outcome
from .session import Session
from .think import reserve_of


async def reflect(session: Session, agent: Agent, deps: Deps) -> Outcome:
    """What follows from the turn that was made."""
    run = session.run
    # Twice: while a finish can still be forced, what it costs is kept back.
    shares = 2 if run.limits.on_exhausted == "finalise" else 1
    verdict = verdict_of(
        run,
        session.now_ms(),
        allowed=agent.allowed_labels(is_finalising=run.final_turns_left is not None),
        may_rescue=agent.may_rescue,
        next_reserve_tokens=shares * reserve_of(run, agent),
    )
    match verdict:
        case Continue():
            return Move(Trigger.CONTINUED)
        case Repair(text):
            return Move(Trigger.CONTINUED, (Hinted("repair", text),))
        case Warn(text):
            return Move(Trigger.CONTINUED, (Hinted("warning", text),))
        case Finalise(why, text):
            order = _order_to_finish(text, agent)
            begin = Finalising(why, run.limits.final_turns)
            return Move(Trigger.CONTINUED, (begin, Hinted("final", order)))
        case Finish(text, is_completed, why):
            return Move(Trigger.FINISHED, (Answered(text, is_completed, why),))
        case Stop(reason, message):
            return Move(Trigger.EXHAUSTED, (Failed(reason, message),))
        case _:
            assert_never(verdict)


def _order_to_finish(text: str, agent: Agent) -> str:
    labels = agent.allowed_labels(is_finalising=True)
    how = f" under the label ``{labels[0]}``" if labels else ""
    return f"{text} Call no more tools. Give your best final answer now{how}."
