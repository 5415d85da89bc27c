"""How a run is ended where it stands: its child runs first, then every call gets a result."""

from __future__ import annotations

from contextlib import suppress

from checkpoints.errors import NotDurable
from fsm_agent.capabilities.agent import Agent
from fsm_agent.run.delta import AnyDelta, Failed, Settled
from fsm_agent.run.record import OpenCall
from fsm_agent.run.signal import CancelRequested
from fsm_agent.run.state import Trigger

from .children import cancel_children
from .deps import Deps
from .doubt import doubts_below, may_have_acted
from .outcome import Move
from .session import Session


async def ending(
    session: Session,
    agent: Agent,
    deps: Deps,
    failed: Failed,
    how: str,
    *,
    cancel: CancelRequested | None = None,
) -> Move:
    """The arrow that ends the run for the reason of `failed`; `how` completes 'The run …'.

    `cancel` is what its child runs are told, if it is not that reason. Nothing is on record before
    they have been told: a worker that dies in between leaves a run that the next one ends.
    """
    cancel = cancel or CancelRequested(failed.by or session.run.run_id, failed.message)
    has_children = any(call.delegated for call in session.run.calls)
    if has_children and session.has_staged and failed.reason != "host":
        # To end them may take long, and a result that is there must not be lost meanwhile. One that
        # the host's hook has failed on must not be there without the end.
        with suppress(NotDurable):
            await session.flush()
    spent = await cancel_children(session, agent, cancel, deps)
    if spent:
        session.stage(Trigger.PROGRESSED, *spent)
    # Whoever reads this run reads none of its children's: what is in doubt there is said here.
    doubts = await doubts_below(session.run, deps)
    calls = [call for call in session.run.calls if call.phase != "settled"]
    deltas: list[AnyDelta] = [_cut_off(c, how, doubts.get(c.call.call_id, "")) for c in calls]
    return Move(Trigger.CANCELLED, (*deltas, failed))


async def end_now(
    session: Session,
    agent: Agent,
    deps: Deps,
    failed: Failed,
    how: str,
    *,
    cancel: CancelRequested | None = None,
) -> None:
    """Stage the end of the run (see `ending`)."""
    move = await ending(session, agent, deps, failed, how, cancel=cancel)
    session.stage(move.trigger, *move.deltas)


def _cut_off(call: OpenCall, how: str, doubt: str) -> Settled:
    call_id = call.call.call_id
    if call.ask and call.ask.kind == "question":
        return Settled(call_id, "cancelled", f"The run {how} before the question was answered.")
    if doubt:
        text = f"The run {how} while a child run worked on this call. {doubt}"
        return Settled(call_id, "in_doubt", text)
    if may_have_acted(call):
        text = f"The run {how} while this call was under way. It may have taken effect."
        return Settled(call_id, "in_doubt", text)
    return Settled(call_id, "cancelled", f"The run {how} before this call had a result.")
