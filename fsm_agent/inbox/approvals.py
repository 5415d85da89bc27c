"""What people are asked, as the API and the pages show it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec

from checkpoints.errors import RunNotFound
from checkpoints.model import Head, Ruling, RunId
from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.desk import Desk, read_snapshot
from fsm_agent.inbox.feeds import digest_of
from fsm_agent.inbox.problems import Problem, not_found
from fsm_agent.people import verbs_of
from fsm_agent.run import codec
from fsm_agent.waiting import Request

Risk = Literal["in doubt", "high", "medium", "low"]
State = Literal["pending", "approved", "edited", "rejected", "answered", "settled", "expired"]

_RISKS: dict[str, Risk] = {"unsafe": "high", "keyed": "medium", "probed": "medium"}
_ORDER: tuple[Risk, ...] = ("in doubt", "high", "medium", "low")
_STATES: dict[str, State] = {
    "approve": "approved", "edit": "edited", "reject": "rejected", "answer": "answered",
    "happened": "settled", "rerun": "settled", "fail": "settled", "expire": "expired",
}  # fmt: skip
_KINDS = {"approval": "tool_call", "question": "input", "in_doubt": "reconcile"}


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A request with the run that it belongs to."""

    request: Request
    head: Head
    snapshot: codec.Snapshot

    @property
    def id(self) -> str:
        """Run and request: neither may hold a dot."""
        return f"{self.request.run_id}.{self.request.ask_id}"

    @property
    def risk(self) -> Risk:
        """What is at stake, by the effect class of the tool."""
        question = self.request.question
        if question.kind == "in_doubt":
            return "in doubt"
        return "low" if question.kind == "question" else _RISKS.get(question.effect, "low")

    @property
    def state(self) -> State:
        ruling = self.request.ruling
        return _STATES.get(ruling.verb, "settled") if ruling else "pending"

    @property
    def is_open(self) -> bool:
        return self.request.ruling is None

    @property
    def missing(self) -> int:
        """How many more people must agree."""
        return max(0, self.request.question.quorum - len(self.request.votes)) if self.is_open else 0

    @property
    def verbs(self) -> tuple[str, ...]:
        """What may be decided."""
        return verbs_of(self.request) if self.is_open else ()

    @property
    def etag(self) -> str:
        """Changes with everything that a person is shown of it."""
        r = self.request
        ruled = r.ruling.verb if r.ruling else ""
        return f'"{digest_of(r.digest, r.votes, r.comments, ruled, r.claimed_by)}"'

    @property
    def order(self) -> tuple[int, int, int, str]:
        """What is in doubt first, then by risk, deadline and age."""
        due_ms = self.request.expires_ms or 2**53
        return (_ORDER.index(self.risk), due_ms, self.request.opened_ms, self.id)


def asked_by(request: Request, now_ms: int) -> list[str]:
    """Whom the tool's author wants to be asked, and whom else by now."""
    reached = [to for after_ms, to in request.question.escalation
               if request.opened_ms + after_ms <= now_ms]  # fmt: skip
    return [name for name in (request.question.to, *reached) if name]


def plain(item: Item) -> dict[str, Any]:
    """The JSON of a request in a list."""
    r, q = item.request, item.request.question
    return {
        "id": item.id,
        "run_id": r.run_id,
        "ask_id": r.ask_id,
        "kind": _KINDS[q.kind],
        "state": item.state,
        "risk": item.risk,
        "agent": q.agent,
        "tool": q.tool,
        "effect": q.effect,
        "args": q.arguments,
        "args_sha256": r.digest,
        "reason": q.reason,
        "rule": q.rule,
        "options": list(q.options),
        "verbs": list(item.verbs),
        "opened_ms": r.opened_ms,
        "expires_ms": r.expires_ms or None,
        "on_expiry": q.on_expiry if r.expires_ms else None,
        "unlock_ms": r.unlock_ms or None,
        "quorum": q.quorum,
        "missing": item.missing,
        "votes": [{"verb": v.verb, "by": v.by, "at": v.at_ms} for v in r.votes],
        "comments": [{"by": c.by, "at": c.at_ms, "text": c.text} for c in r.comments],
        "to": q.to or None,
        "escalation": [{"to": to, "at": r.opened_ms + after} for after, to in q.escalation],
        "taints": [msgspec.structs.asdict(taint) for taint in q.taints],
        "evidence": [msgspec.structs.asdict(orphan) for orphan in r.evidence],
        "claimed_by": r.claimed_by or None,
        "decision": decision(r.ruling) if r.ruling else None,
        "run_status": item.head.status,
        "run_title": item.snapshot.title,
        "parent_run_id": q.parent or None,
    }


def decision(ruling: Ruling) -> dict[str, Any]:
    """A decision as it was recorded: the same for the first answer and for every repeat."""
    return {"verb": ruling.verb, "by": ruling.by, "at": ruling.at_ms, "missing": ruling.missing}


async def items(
    desk: Desk, actor: Actor, *, is_open: bool = True, run_id: str | None = None
) -> list[Item]:
    """The requests of runs that this person sees, in their order; decided ones are the newest
    thousand of each partition. Raises Problem for a run that is not there for them."""
    if run_id is not None:
        await desk.seen_run(actor, run_id)
    requests = await desk.runtime.requests(run_id, is_open=is_open)
    heads = await _heads(desk, {request.run_id for request in requests})
    found = []
    for request in requests:
        if (head := heads.get(request.run_id)) is None:
            continue
        snapshot = read_snapshot(head)
        if actor.sees(snapshot.tenant):
            found.append(Item(request=request, head=head, snapshot=snapshot))
    return sorted(found, key=lambda item: item.order)


async def item_of(desk: Desk, actor: Actor, approval_id: str) -> Item:
    """One request by its id. Raises Problem or BadRunId."""
    run_id, dot, ask_id = approval_id.partition(".")
    if not dot or not ask_id.replace("-", "").isalnum() or len(ask_id) > 64 or not ask_id.isascii():
        raise Problem(400, "bad-approval-id", "An approval's id is RUN.ASK, such as r-7f3k.a4-0.")
    return await item_in(desk, actor, run_id, ask_id)


async def item_in(desk: Desk, actor: Actor, run_id: str, ask_id: str) -> Item:
    """One request of a run. Raises Problem or BadRunId."""
    head, snapshot = await desk.seen_run(actor, run_id)
    for request in await desk.runtime.requests(run_id, is_open=False):
        if request.run_id == run_id and request.ask_id == ask_id:
            return Item(request=request, head=head, snapshot=snapshot)
    raise not_found(f"run {run_id!r} has no request {ask_id!r}.")


async def _heads(desk: Desk, run_ids: Collection[str]) -> dict[str, Head]:
    async def head(run_id: str) -> Head | None:
        try:
            return await desk.runtime.store.head(RunId(run_id))
        except RunNotFound:
            return None  # it was purged since

    found: Sequence[Head | None] = await asyncio.gather(*map(head, run_ids))
    return {head.run_id: head for head in found if head}
