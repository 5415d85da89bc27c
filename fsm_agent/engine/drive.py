"""The one loop: handler, machine, commit, until the run is over or given back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fsm_agent.capabilities.agent import Agent
from fsm_agent.run.delta import Failed
from fsm_agent.run.signal import CancelRequested
from fsm_agent.run.state import State, Trigger

from .act import act
from .deps import Deps
from .ending import end_now
from .host import HostFailed
from .observe import observe
from .outcome import Outcome, Park
from .reflect import reflect
from .session import Interrupted, Session
from .think import think

Handler = Callable[[Session, Agent, Deps], Awaitable[Outcome]]
HANDLERS: dict[State, Handler] = {
    State.OBSERVE: observe,
    State.THINK: think,
    State.ACT: act,
    State.REFLECT: reflect,
}


async def drive(session: Session, agent: Agent, deps: Deps) -> Park | None:
    """Move the run until it is over (None) or waits (Park); all of it is on record then.

    An arrow is only staged here. Handlers flush before they do anything outside, so entries with
    no effect between them share a commit. Raises what `Session.flush` and the handlers raise.
    """
    if session.has_acceptance and session.run.state is State.ACT:
        session.stage(Trigger.PROGRESSED)  # all its calls may wait for people, who come later
    while not session.run.is_over:
        if session.has_new_mail:
            await session.read_mail()
        if session.cancel:
            await _end_cancelled(session, agent, deps, session.cancel)
            break
        try:
            outcome = await HANDLERS[session.run.state](session, agent, deps)
        except Interrupted:
            continue
        except HostFailed as error:
            await end_now(session, agent, deps, error.failed, "was ended by its host")
            break
        if isinstance(outcome, Park):
            if session.cancel:
                continue  # it came in the handler's last wait, and would count as seen
            await session.flush(outcome)
            return outcome
        session.stage(outcome.trigger, *outcome.deltas)
    await session.flush()
    return None


async def _end_cancelled(
    session: Session, agent: Agent, deps: Deps, cancel: CancelRequested
) -> None:
    """End the run because somebody said so."""
    why = f": {cancel.reason}" if cancel.reason else ""
    failed = Failed("cancelled", f"cancelled by {cancel.by or 'somebody'}{why}", by=cancel.by)
    await end_now(session, agent, deps, failed, "was cancelled", cancel=cancel)
