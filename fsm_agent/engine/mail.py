"""What people said about the calls of a batch, taken from the mailbox into the journal."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from fsm_agent.capabilities.agent import Agent
from fsm_agent.run.delta import AnyDelta, Asked, AskedOn, Commented, Failed
from fsm_agent.run.record import OpenCall
from fsm_agent.run.signal import Consent, Decided, Revoke, Stirred
from fsm_agent.run.state import Trigger
from fsm_agent.run.tally import numbers_of
from fsm_agent.tools.arguments import Bound
from fsm_agent.tools.effects import arguments_digest

from .decisions import objection_to, refused, result_of, ruled, standing, voted
from .session import Session


@dataclass
class Taken:
    """What the engine has to do besides: a deadline may end the run, a gap may be answered for."""

    ending: Failed | None = None
    rerun: set[str] = field(default_factory=set)
    stirred: set[str] = field(default_factory=set)  # child runs that can go on


def take_mail(session: Session, agent: Agent) -> Taken:
    """Stage each decision, vote and standing consent that waits, an entry each."""
    taken = Taken()
    for signal_id, said in list(session.signals.items()):
        match said:
            case Decided():
                _take_decision(session, agent, signal_id, said, taken)
            case Stirred(child):
                session.consume(signal_id)
                taken.stirred.add(child)
            case Consent() | Revoke():
                word = standing(signal_id, said, None, at_ms=session.now_ms())
                session.consume(signal_id)
                session.stage(Trigger.PROGRESSED, word)
    return taken


def _take_decision(
    session: Session, agent: Agent, signal_id: str, decided: Decided, taken: Taken
) -> None:
    call = next((c for c in session.run.calls if c.ask and c.ask.ask_id == decided.ask_id), None)
    if call is None or call.ask is None:
        session.signals.pop(signal_id, None)  # of a request that no longer waits
        return
    decided_ms = session.mailed_ms.get(signal_id, 0)
    session.consume(signal_id)
    if signal_id.startswith("vote:"):
        vote = voted(call.ask, decided, decided_ms=decided_ms)
        session.stage(Trigger.PROGRESSED, vote)
        return
    session.stage(Trigger.PROGRESSED, *_facts(session, agent, call, call.ask, decided, decided_ms))
    if decided.verb == "rerun":
        taken.rerun.add(call.call.call_id)
    if decided.verb == "expire" and isinstance(call.ask, AskedOn):
        taken.ending = taken.ending or _ending(call, call.ask)


def _facts(
    session: Session, agent: Agent, call: OpenCall, ask: Asked, decided: Decided, decided_ms: int
) -> list[AnyDelta]:
    """The decision, what it changes, and the call's result where it has one by it."""
    at_ms = session.now_ms()
    facts: list[AnyDelta] = [
        Commented(ask.ask_id, ask.call_id, said.by, said.at_ms, said.text)
        for said in session.comments.get(ask.ask_id, ())
    ]
    digest = ""
    # Beside another verb they change nothing: the call's own arguments run, and count.
    edited = decided.arguments if decided.verb == "edit" else None
    if edited is not None and call.call.name in agent.registry.names:
        tool = agent.registry.get(call.call.name)
        bound = tool.bind(edited)
        shown = bound.arguments if isinstance(bound, Bound) else edited
        digest = arguments_digest(tool.name, tool.version, shown)
        if isinstance(bound, Bound) and call.verdict and call.verdict.numbers:
            # The verdict stands, but what counts against limits is what will run.
            numbers = numbers_of(bound.kwargs)
            facts.append(msgspec.structs.replace(call.verdict, numbers=numbers))
    facts.append(ruled(ask, decided, at_ms=at_ms, decided_ms=decided_ms, edited_digest=digest))
    if objection := objection_to(session.run, call, ask, decided, decided_ms):
        return [*facts, refused(ask, decided, objection)]
    if result := result_of(call, ask, decided):
        facts.append(result)
    if decided.is_standing and decided.verb == "approve":
        facts.append(standing("", decided, call, at_ms=at_ms))
    return facts


def _ending(call: OpenCall, ask: AskedOn) -> Failed | None:
    if ask.on_expiry != "fail_run":
        return None
    message = (
        f"nobody decided request {ask.ask_id} ({call.call.name}) in time, and without a decision "
        "this run cannot go on"
    )
    return Failed("expired", message)
