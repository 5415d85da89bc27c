"""What nobody knows of a child run that came to no answer: whether a call of it took effect."""

from __future__ import annotations

from checkpoints.errors import CheckpointError, RunNotFound, StoreUnavailable
from checkpoints.model import RunId
from fsm_agent.errors import AgentError
from fsm_agent.run import codec
from fsm_agent.run.delta import Settled
from fsm_agent.run.record import OpenCall, Run, replay

from .deps import Deps


async def doubt_in(child: str, deps: Deps) -> str:
    """In a sentence, which call of the run is in doubt; '' if none is, also below it.

    A run that ended so has that on record. Of one that others still hold, or that stopped midway,
    a call that was started and cannot be repeated counts too. Raises what `Store.journal` raises.
    """
    try:
        entries = await deps.store.journal(RunId(child))
    except RunNotFound:
        return ""  # it never began
    records = [codec.decode(entry.body) for entry in entries]
    settled = [d for r in records for d in r.deltas if isinstance(d, Settled)]
    doubted = [result.call_id for result in settled if result.status == "in_doubt"]
    run = replay(child, records)
    doubted += [c.call.call_id for c in run.calls if not c.result and may_have_acted(c)]
    if doubted:
        return f"Call {doubted[0]} of run {child} is in doubt: it may have taken effect."
    for below in run.children:
        if found := await doubt_in(below, deps):
            return found
    return ""


async def doubts_below(run: Run, deps: Deps) -> dict[str, str]:
    """The same of each child run whose call has no result yet, by call. Raises StoreUnavailable."""
    found = {}
    for call in run.calls:
        if not call.delegated or call.result:
            continue
        child = call.delegated.child
        try:
            found[call.call.call_id] = await doubt_in(child, deps)
        except StoreUnavailable:
            raise
        except (AgentError, CheckpointError):
            # It keeps its parent from nothing, and hides nothing either.
            found[call.call.call_id] = f"Run {child} cannot be read: it may have taken effect."
    return {call_id: doubt for call_id, doubt in found.items() if doubt}


def may_have_acted(call: OpenCall) -> bool:
    """Whether a call without a result may have had an effect that a repeat would have twice."""
    return call.intent is not None and call.intent.effect not in ("read", "idempotent")
