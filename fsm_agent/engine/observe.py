"""OBSERVE: take what people said since the last turn into the conversation."""

from __future__ import annotations

from fsm_agent.capabilities.agent import Agent
from fsm_agent.run.content import clean_text
from fsm_agent.run.delta import Observed
from fsm_agent.run.signal import Said
from fsm_agent.run.state import Trigger

from .deps import Deps
from .outcome import Move, Outcome
from .session import Session


async def observe(session: Session, agent: Agent, deps: Deps) -> Outcome:
    """Drain the mailbox of further messages, oldest first; a repeat of one is dropped."""
    observed: list[Observed] = []
    for signal_id, signal in list(session.signals.items()):
        if not isinstance(signal, Said):
            continue
        session.consume(signal_id)
        if signal_id not in session.run.signals:
            observed.append(Observed(clean_text(signal.text), signal_id))
    return Move(Trigger.OBSERVED, tuple(observed))
