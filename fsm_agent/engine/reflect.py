"""REFLECT: turn the verdict of the policies, and of the critic, into an arrow."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from fsm_agent.capabilities.agent import Agent, Offer
from fsm_agent.reflection import critic, progress
from fsm_agent.reflection.policy import reflect as verdict_of
from fsm_agent.reflection.policy import within_limits
from fsm_agent.reflection.scene import Scene
from fsm_agent.reflection.verdict import (
    Continue,
    Finalise,
    Finish,
    Repair,
    Steer,
    Stop,
    Verdict,
    Warn,
)
from fsm_agent.run.delta import (
    Answered,
    AnyDelta,
    Barred,
    Criticised,
    Entered,
    Failed,
    Finalising,
    Hinted,
    Replied,
)
from fsm_agent.run.record import Run
from fsm_agent.run.state import Trigger

from .consult import Question, consult
from .costs import reserve_of
from .deps import Deps
from .host import ask_host
from .outcome import Move, Outcome
from .session import Session


async def reflect(session: Session, agent: Agent, deps: Deps) -> Outcome:
    """What follows from the turn that was made.

    Raises HostFailed where a hook does, and Interrupted from the critic's call.
    """
    offer = agent.offer(session.run)
    told: tuple[AnyDelta, ...] = await _told_by_host(session, agent)
    scene = _scene(session, agent, deps, offer)
    facts: tuple[AnyDelta, ...] = (scene.assessed,) if scene.assessed else ()
    verdict = verdict_of(session.run, scene, agent.reflection.policies)
    if isinstance(verdict, (Continue, Warn, Steer)):
        said, criticised = await _criticise(session, agent, deps)
        facts = (*facts, *criticised)
        # What the policies said stays, unless the critic has more to say.
        if isinstance(said, Finish) or isinstance(verdict, Continue):
            verdict = said
        elif isinstance(said, Warn):
            facts = (*facts, Hinted("warning", said.text))
    if isinstance(verdict, (Continue, Warn, Steer)) and session.run.final_turns_left is None:
        verdict = await _forced_by_host(session.run, agent) or verdict
    if isinstance(verdict, Repair):
        verdict = Repair(await _correction(session.run, agent, verdict.text))
    return _move(verdict, facts, told, session.run, agent, offer)


def _scene(session: Session, agent: Agent, deps: Deps, offer: Offer) -> Scene:
    run, is_finalising = session.run, session.run.final_turns_left is not None
    # Twice: while a finish can still be forced, what it costs is kept back.
    shares = 2 if run.limits.on_exhausted == "finalise" else 1
    reserve = reserve_of(run, session.window, agent, deps.model)
    scene = Scene(
        now_ms=session.now_ms(),
        allowed=offer.labels,
        may_rescue=agent.may_rescue and offer.is_last and _may_answer(run, agent),
        next_reserve_tokens=shares * reserve.reserve_tokens,
        next_reserve_micros=shares * reserve.micros,
        progress=agent.reflection.progress,
        may_repeat=agent.reflection.may_repeat,
    )
    return scene if is_finalising else replace(scene, assessed=progress.assess(run, scene))


async def _criticise(
    session: Session, agent: Agent, deps: Deps
) -> tuple[Verdict, tuple[AnyDelta, ...]]:
    """What the critic says of the turn, with the facts of its call; nothing where it is not due."""
    judge = agent.critic
    if judge is None or not judge.is_due(session.run):
        return Continue(), ()
    question = Question(
        "critic", judge.model, judge.prompt(), judge.question(session.run), judge.max_tokens
    )
    said = await consult(session, agent, deps, question)
    # A text that cannot be read, such as none at all, is the verdict 'unknown'.
    word, text = judge.read(said.text)
    facts: tuple[AnyDelta, ...] = (
        Criticised(word, text, said.usage, said.problem),
        *said.charged,
    )
    return critic.verdict_of(word, text), facts


def _move(
    verdict: Verdict,
    facts: tuple[AnyDelta, ...],
    told: tuple[AnyDelta, ...],
    run: Run,
    agent: Agent,
    offer: Offer,
) -> Move:
    match verdict:
        case Continue():
            return Move(Trigger.CONTINUED, (*facts, *_advance(run, agent, offer), *told))
        case Repair(text):
            return Move(Trigger.CONTINUED, (*facts, Hinted("repair", text), *told))
        case Warn(text):
            hint = _in_its_phase(_advance(run, agent, offer), Hinted("warning", text))
            return Move(Trigger.CONTINUED, (*facts, *hint, *told))
        case Steer(text, barred):
            bars = (Barred(barred),) if barred else ()
            hint = _in_its_phase(_advance(run, agent, offer), *bars, Hinted("warning", text))
            return Move(Trigger.CONTINUED, (*facts, *hint, *told))
        case Finalise(why, text):
            order = _order_to_finish(text, agent)
            begin = Finalising(why, run.limits.final_turns)
            return Move(Trigger.CONTINUED, (*facts, begin, Hinted("final", order), *told))
        case Finish(text, is_completed, why):
            return Move(Trigger.FINISHED, (*facts, Answered(text, is_completed, why)))
        case Stop(reason, message):
            return Move(Trigger.EXHAUSTED, (*facts, Failed(reason, message)))
        case _:
            assert_never(verdict)


def _advance(run: Run, agent: Agent, offer: Offer) -> tuple[AnyDelta, ...]:
    """The facts that follow from a good reply, or from the results of a batch, in its phase."""
    if run.final_turns_left is not None:
        return ()
    facts = offer.phase.advance(run) if _good_reply(run) else ()
    agent.capability.check(facts)
    return facts


def _in_its_phase(advance: tuple[AnyDelta, ...], *hints: AnyDelta) -> tuple[AnyDelta, ...]:
    """Both, unless the run enters another phase: the hints are about the one it stays in."""
    if any(isinstance(fact, Entered) for fact in advance):
        return advance
    return (*advance, *hints)


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
