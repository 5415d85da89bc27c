"""The one way in which anything of the web decides."""

from __future__ import annotations

import hashlib

import structlog

from checkpoints.errors import CheckpointError, DecisionStale
from checkpoints.model import Ruling
from fsm_agent.errors import AgentError, NotAllowed
from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.approvals import Item
from fsm_agent.inbox.desk import Desk
from fsm_agent.run.delta import Verb
from fsm_agent.run.person import identity

log = structlog.get_logger(__name__)


async def decide(
    desk: Desk,
    actor: Actor,
    item: Item,
    verb: Verb,
    *,
    decision_id: str | None,
    channel: str,
    digest: str = "",
    reason: str = "",
    arguments: str | None = None,
    answer: str | None = None,
    is_standing: bool = False,
) -> Ruling:
    """Record what this person decides, under their one name, by `Runtime.decide`.

    `decision_id` is the caller's own: it counts for this person only. Raises what
    `Runtime.decide` raises, after a log line.
    """
    request = item.request
    try:
        _check_alias(actor, item, verb)
        if item.is_open and digest not in ("", request.digest):
            # It may be that of a run below, which this person did not name.
            raise DecisionStale(request.ask_id, request.digest)
        return await desk.runtime.decide(
            request.run_id,
            request.ask_id,
            verb,
            by=actor.name,
            reason=reason,
            arguments=arguments,
            answer=answer,
            digest=request.digest,
            decision_id=own_id(actor, item, decision_id) if decision_id else None,
            agent=desk.agents.get(request.question.agent),
            is_standing=is_standing,
            channel=channel,
            auth=actor.auth,
        )
    except (AgentError, CheckpointError) as error:
        log.warning(
            "inbox.decision_refused",
            run_id=request.run_id,
            ask_id=request.ask_id,
            verb=verb,
            by=actor.name,
            channel=channel,
            why=str(error),
        )
        raise


def _check_alias(actor: Actor, item: Item, verb: Verb) -> None:
    """Raises NotAllowed for whoever started the run, or is one of several who agreed to it, under
    another of their names."""
    request, question = item.request, item.request.question
    if verb in ("reject", "fail"):
        return
    if question.not_requester and actor.is_also(question.requester):
        raise NotAllowed(
            f"{actor.name!r} is {question.requester!r}, who started run {request.run_id!r},"
            f" and may not decide request {request.ask_id!r}: somebody else has to."
        )
    own = identity(actor.name)  # of a second vote under one name the store itself knows
    for vote in request.votes:
        if actor.is_also(vote.by) and identity(vote.by) != own:
            raise NotAllowed(
                f"{actor.name!r} is {vote.by!r}, who has spoken on request {request.ask_id!r}"
                " already: somebody else has to."
            )


def own_id(actor: Actor, item: Item, decision_id: str) -> str:
    """A decision id that nobody else can repeat, nor for another request."""
    parts = (identity(actor.name), item.id, decision_id)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
