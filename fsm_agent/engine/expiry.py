"""Requests whose time is up: their end is a decision like any other, made by the store's clock."""

from __future__ import annotations

from checkpoints.errors import AlreadyDecided, AskNotExpired
from checkpoints.model import Decision
from fsm_agent.run.delta import Asked, AskedOn, Verb
from fsm_agent.run.signal import Decided, encode

from .deps import Deps
from .session import Session

DEADLINE = "the deadline"


async def expire_due(session: Session, deps: Deps) -> None:
    """Record the end of each open request whose deadline has passed, and read what was decided.

    The script that takes decisions takes this one: a person who was faster stays first. Raises
    what `Session.flush` raises.
    """
    now_ms = session.now_ms()
    due = [ask for ask in session.run.open_asks if 0 < ask.expires_ms <= now_ms]
    if not due:
        return
    await session.flush()  # a request must be in the store before its end can be
    for ask in due:
        try:
            await deps.store.decide(session.lease.run_id, ask.ask_id, _end_of(ask))
        except AlreadyDecided:
            pass  # by a person; it is in the mailbox
        except AskNotExpired:
            continue  # this clock was ahead of the store's
    await session.read_mail()


def soonest_s(session: Session) -> float | None:
    """How long until the next deadline, at least a moment; None: there is none."""
    ends = [ask.expires_ms for ask in session.run.open_asks if ask.expires_ms]
    return max(0.01, (min(ends) - session.now_ms()) / 1000) if ends else None


def _end_of(ask: Asked) -> Decision:
    # The same id from every worker: they repeat one decision, and do not compete.
    is_approval = isinstance(ask, AskedOn) and ask.on_expiry == "approve"
    verb: Verb = "approve" if is_approval else "expire"
    decided = Decided(ask.ask_id, verb, DEADLINE, "nobody decided in time", channel="deadline")
    return Decision(
        decision_id=f"expiry:{ask.ask_id}",
        verb=verb,
        by=DEADLINE,
        digest=ask.digest,
        body=encode(decided),
        is_expiry=True,
    )
