"""OBSERVE: take what people said since the last turn into the conversation."""

from __future__ import annotations

from fsm_agent.capabilities.agent import Agent
from fsm_agent.run.content import clean_text
from fsm_agent.run.delta import AnyDelta, Entered, Hinted, ModelFailed, Observed
from fsm_agent.run.signal import Said
from fsm_agent.run.state import Trigger

from .deps import Deps
from .host import ask_host
from .outcome import Move, Outcome
from .session import Session


async def observe(session: Session, agent: Agent, deps: Deps) -> Outcome:
    """Drain the mailbox of further messages, oldest first; a repeat of one is dropped.

    Also where a run enters its first phase, and where the host may say something before the turn.
    """
    observed: list[AnyDelta] = []
    if not session.run.phase and (first := agent.capability.first).name:
        observed.append(Entered(first.name))
    for signal_id, signal in list(session.signals.items()):
        if not isinstance(signal, Said):
            continue
        session.consume(signal_id)
        if signal_id not in session.run.signals:
            observed.append(Observed(clean_text(signal.text), signal_id))
    if said := await _said_by_host(session, agent):
        observed.append(Hinted("host", said))
    return Move(Trigger.OBSERVED, tuple(observed))


async def _said_by_host(session: Session, agent: Agent) -> str | None:
    run, hooks = session.run, agent.hooks
    is_retry = isinstance(run.last, ModelFailed)
    if is_retry or agent.due_calls(run):
        return None  # not a turn of its own
    return await ask_host(hooks.before_turn, "before_turn", hooks.timeout_s, run)
