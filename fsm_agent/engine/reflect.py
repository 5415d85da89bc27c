"""REFLECT: turn the verdict of the policies into an arrow."""

from __future__ import annotations

from typing import assert_never

from fsm_agent.capabilities.agent import Agent, Offer
from fsm_agent.reflection.policy import reflect as verdict_of
from fsm_agent.reflection.policy import within_limits
from fsm_agent.reflection.verdict import Continue, Finalise, Finish, Repair, Stop, Warn
from fsm_agent.run.delta import Answered, AnyDelta, Entered, Failed, Finalising, Hinted, Replied
from fsm_agent.run.record import Run
from fsm_agent.run.state import Trigger

from .deps import Deps
from .host import ask_host
from .outcome import Move, Outcome
from .session import Session
from .think import reserve_of


async def reflect(session: Session, agent: Agent, deps: Deps) -> Outcome:
    """What follows from the turn that was made. Raises HostFailed where a hook does."""
    run, offer = session.run, agent.offer(session.run)
    told = await _told_by_host(session, agent)
    # Twice: while a finish can still be forced, what it costs is kept back.
    shares = 2 if run.limits.on_exhausted == "finalise" else 1
    verdict = verdict_of(
        run,
        session.now_ms(),
        allowed=offer.labels,
        may_rescue=agent.may_rescue and offer.is_last and _may_answer(run, agent),
        next_reserve_tokens=shares * reserve_of(run, agent),
    )
    if isinstance(verdict, Continue | Warn) and run.final_turns_left is None:
        verdict = await _forced_by_host(run, agent) or verdict
    match verdict:
        case Continue():
            return Move(Trigger.CONTINUED, (*_advance(run, agent, offer), *told))
        case Repair(text):
            text = await _correction(run, agent, text)
            return Move(Trigger.CONTINUED, (Hinted("repair", text), *told))
        case Warn(text):
            facts = _advance(run, agent, offer)
            if not any(isinstance(fact, Entered) for fact in facts):
                facts = (*facts, Hinted("warning", text))  # it is about the phase it stays in
            return Move(Trigger.CONTINUED, (*facts, *told))
        case Finalise(why, text):
            order = _order_to_finish(text, agent)
            begin = Finalising(why, run.limits.final_turns)
            return Move(Trigger.CONTINUED, (begin, Hinted("final", order), *told))
        case Finish(text, is_completed, why):
            return Move(Trigger.FINISHED, (Answered(text, is_completed, why),))
        case Stop(reason, message):
            return Move(Trigger.EXHAUSTED, (Failed(reason, message),))
        case _:
            assert_never(verdict)


def _advance(run: Run, agent: Agent, offer: Offer) -> tuple[AnyDelta, ...]:
    """The facts that follow from a good reply, or from the results of a batch, in its phase."""
    if run.final_turns_left is not None:
        return ()
    facts = offer.phase.advance(run) if _good_reply(run) else ()
    agent.capability.check(facts)
    return facts


def _good_reply(run: Run) -> Replied | None:
    return run.last if isinstance(run.last, Replied) and run.last.violation is None else None


def _may_answer(run: Run, agent: Agent) -> bool:
    """Whether an unlabelled text would do as the answer: the host cannot be asked about one."""
    if agent.hooks.validate_terminal or not isinstance(run.last, Replied):
        return False
    return not agent.objection_to(run, run.last.text)[0]


# -- the host ---------------------------------------------------------------------------------


async def _told_by_host(session: Session, agent: Agent) -> tuple[Hinted, ...]:
    """What the host tells the model after an intermediate reply, which is on record then."""
    reply, hooks = _good_reply(session.run), agent.hooks
    if hooks.on_intermediate is None or reply is None or session.run.calls:
        return ()
    await session.flush()
    said = await ask_host(
        hooks.on_intermediate, "on_intermediate", hooks.timeout_s, session.run, reply
    )
    return (Hinted("host", said),) if said else ()


async def _forced_by_host(run: Run, agent: Agent) -> Finalise | Finish | None:
    hooks = agent.hooks
    said = await ask_host(hooks.force_finalize, "force_finalize", hooks.timeout_s, run)
    return within_limits(run, Finalise("host", said)) if said else None


async def _correction(run: Run, agent: Agent, text: str) -> str:
    hooks = agent.hooks
    violation = run.last.violation if isinstance(run.last, Replied) else None
    said = await ask_host(
        hooks.repair_message, "repair_message", hooks.timeout_s, run, violation or "", text
    )
    return said or text


def _order_to_finish(text: str, agent: Agent) -> str:
    protocol = agent.protocol
    labels = [label for label in protocol.allowed if label in protocol.terminal] if protocol else []
    how = f" under the label ``{labels[0]}``" if labels else ""
    return f"{text} Call no more tools. Give your best final answer now{how}."
