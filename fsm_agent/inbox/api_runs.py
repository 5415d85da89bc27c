"""The API of runs: list, look, start, cancel, resume."""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple, get_args

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from checkpoints.errors import RunBusy
from checkpoints.model import Head, RunId, Status
from fsm_agent.errors import did_you_mean
from fsm_agent.inbox import approvals
from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.desk import Desk, body_of, json_answer, limit_of, read_snapshot
from fsm_agent.inbox.problems import Problem
from fsm_agent.run import codec
from fsm_agent.run.limits import Limits
from fsm_agent.runtime import Runtime, new_run_id
from fsm_agent.telling.plain import plain

LOOKED = 2_000  # runs that are looked through for those of a filter
WAKE_MS = 5_000  # a lease that is given back at once, so this is long


class LimitsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Limits that differ from the agent's own."""

    turns: int | None = None
    tokens: int | None = None
    tool_calls: int | None = None
    wall_s: float | None = None


class StartBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A new run. Who asks for it, and their tenant, are not said here but known."""

    agent: str
    task: str
    run_id: str | None = None
    limits: LimitsBody | None = None


class CancelBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Why a run is to end."""

    reason: str = ""


class SayBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A further message of the user."""

    text: str


class ForkBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A new run from the first entries of this one. What follows them happens anew."""

    at: int | None = None  # a whole step; the last one possible
    run_id: str | None = None  # of the new run: the same body with it is the same fork
    say: str = ""  # a further message of the user


def summary(head: Head, snapshot: codec.Snapshot) -> dict[str, Any]:
    """A run as lists show it."""
    return {
        "run_id": head.run_id,
        "status": head.status,
        "state": snapshot.state.value,
        "agent": snapshot.agent,
        "title": snapshot.title,
        "tenant": snapshot.tenant or None,
        "seq": head.seq,
        "turns": snapshot.turns,
        "spent_tokens": snapshot.spent_tokens,
        "asks": list(snapshot.asks),
        "ending": snapshot.ending or None,
        "parent": snapshot.parent or None,
        "children": list(snapshot.children),
        "owner": head.owner if head.lease_until_ms else None,
        "lease_until_ms": head.lease_until_ms or None,
        "due_ms": head.due_ms,
        "recoveries": head.recoveries,
        "created_ms": head.created_ms,
        "updated_ms": head.updated_ms,
    }


class Wanted(NamedTuple):
    """Which runs a list should hold. '': any."""

    agent: str = ""
    tenant: str = ""
    words: str = ""  # in lower case; all of them together, somewhere in what a row shows

    @classmethod
    def of(cls, query: QueryParams) -> Wanted:
        """From `agent`, `tenant` and `q` of an address."""
        named = [query.get(name, "").strip()[:200] for name in ("agent", "tenant", "q")]
        return cls(named[0], named[1], named[2].lower())

    def holds(self, head: Head, snapshot: codec.Snapshot) -> bool:
        """Whether a run is one of them."""
        shown = (head.run_id, snapshot.agent, snapshot.title, head.owner, snapshot.tenant)
        return (
            self.agent in ("", snapshot.agent)
            and self.tenant in ("", snapshot.tenant)
            and self.words in " ".join(shown).lower()
        )


async def seen_runs(
    desk: Desk,
    actor: Actor,
    *,
    status: Status | None = None,
    limit: int = 50,
    wanted: Wanted | None = None,
) -> list[tuple[Head, codec.Snapshot]]:
    """The newest runs that this person sees, and that are `wanted`."""
    wanted = wanted or Wanted()
    # Of some among many there may be few: look further than what is wanted.
    is_all = actor.tenant is None and wanted == Wanted()
    heads = await desk.runtime.runs(status=status, limit=limit if is_all else LOOKED)
    pairs = [(head, read_snapshot(head)) for head in heads]
    return [pair for pair in pairs if actor.sees(pair[1].tenant) and wanted.holds(*pair)][:limit]


async def list_runs(request: Request, desk: Desk, actor: Actor) -> Response:
    """Runs, newest first."""
    query = request.query_params
    status = query.get("status")
    if status is not None and status not in get_args(Status):
        raise Problem(422, "bad-query", f"status is one of {', '.join(get_args(Status))}.")
    found = await seen_runs(
        desk,
        actor,
        status=status,  # type: ignore[arg-type]
        limit=limit_of(request),
        wanted=Wanted.of(query),
    )
    return json_answer({"runs": [summary(*pair) for pair in found]})


async def show_run(request: Request, desk: Desk, actor: Actor) -> Response:
    """How a run stands, what it answered, and what it asks."""
    run_id = request.path_params["run_id"]
    head, snapshot = await desk.seen_run(actor, run_id)
    etag = f'"{head.seq}-{head.status}-{head.mail}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"ETag": etag})
    result = await desk.runtime.result(run_id)
    found = await approvals.items(desk, actor, run_id=run_id)
    told = summary(head, snapshot) | plain(result)
    told["approvals"] = [approvals.plain(item) for item in found]
    return json_answer(told, ETag=etag)


async def start_run(request: Request, desk: Desk, actor: Actor) -> Response:
    """Put a run on record. The same body with the same `run_id` again is the same run."""
    body = await body_of(request, StartBody)
    agent = desk.agents.get(body.agent)
    if agent is None:
        known = ", ".join(sorted(desk.agents)) or "none"
        hint = did_you_mean(body.agent, desk.agents)
        words = f"This inbox has no agent {body.agent!r}.{hint} It has: {known}."
        raise Problem(422, "unknown-agent", words)
    run_id = new_run_id() if body.run_id is None else body.run_id
    limits = _limits(agent.limits, body.limits)
    await desk.runtime.start(
        agent,
        body.task,
        run_id=run_id,
        limits=limits,
        requester=actor.name,
        tenant=actor.tenant or "",
    )
    head, snapshot = await desk.seen_run(actor, run_id)
    return json_answer(summary(head, snapshot), 201, Location=f"/v1/runs/{run_id}")


def _limits(ours: Limits, wanted: LimitsBody | None) -> Limits:
    if wanted is None:
        return ours
    given = {name: value for name, value in msgspec.structs.asdict(wanted).items()
             if value is not None}  # fmt: skip
    if any(value <= 0 for value in given.values()):
        raise Problem(422, "bad-body", "A limit is more than 0.")
    return msgspec.structs.replace(ours, **given)


async def cancel_run(request: Request, desk: Desk, actor: Actor) -> Response:
    """Ask the run to end at its next commit point."""
    body = await body_of(request, CancelBody)
    run_id = request.path_params["run_id"]
    await desk.seen_run(actor, run_id)
    is_new = await desk.runtime.cancel(run_id, by=actor.name, reason=body.reason)
    return json_answer({"run_id": run_id, "cancel": "asked", "is_new": is_new}, 202)


async def fork_run(request: Request, desk: Desk, actor: Actor) -> Response:
    """Begin a new run with the first entries of this one; a worker takes it up."""
    body = await body_of(request, ForkBody)
    run_id = request.path_params["run_id"]
    await desk.seen_run(actor, run_id)
    new_id = new_run_id() if body.run_id is None else body.run_id
    fork = await desk.runtime.fork(
        run_id, at=body.at, new_id=new_id, say=body.say, by=actor.name, is_due=True
    )
    return json_answer(plain(fork), 201, Location=f"/v1/runs/{fork.run_id}")


async def say_to_run(request: Request, desk: Desk, actor: Actor) -> Response:
    """Give the run a further message, for its next turn."""
    body = await body_of(request, SayBody)
    run_id = request.path_params["run_id"]
    await desk.seen_run(actor, run_id)
    await desk.runtime.say(run_id, body.text, by=actor.name)
    return json_answer({"run_id": run_id, "said": True}, 202)


async def resume_run(request: Request, desk: Desk, actor: Actor) -> Response:
    """Make the run due now, so that a worker looks at it. One that is worked on is left alone."""
    run_id = request.path_params["run_id"]
    await desk.seen_run(actor, run_id)
    is_busy = False
    try:
        await wake(desk.runtime, run_id)
    except RunBusy:
        is_busy = True
    head, snapshot = await desk.seen_run(actor, run_id)
    return json_answer(summary(head, snapshot) | {"was_running": is_busy}, 202)


async def wake(runtime: Runtime, run_id: str) -> None:
    """Make a run due now. Raises RunBusy, RunClosed or RunNotFound."""
    # Taken up and given back at once: the one way to say 'now' that leaves no word in its mailbox.
    store = runtime.store
    claim = await store.claim(
        RunId(run_id), owner="inbox", nonce=secrets.token_hex(16), term_ms=WAKE_MS
    )
    await store.release(claim.lease, due_ms=claim.server_ms)
