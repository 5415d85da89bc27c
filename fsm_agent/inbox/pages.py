"""The pages: what each shows. How it looks stands in the templates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from time import monotonic
from typing import Any, Literal, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from checkpoints.errors import CorruptEntry
from checkpoints.model import Status
from fsm_agent.audit import AuditRow
from fsm_agent.errors import UnknownTool
from fsm_agent.inbox import api_runs, approvals, reports
from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.approvals import Item
from fsm_agent.inbox.arguments import argument_rows, changes
from fsm_agent.inbox.context import context_of
from fsm_agent.inbox.desk import Desk, body_of, json_answer
from fsm_agent.inbox.problems import Problem
from fsm_agent.inbox.render import page
from fsm_agent.inbox.timeline import crash_test_of, entries_of
from fsm_agent.run.delta import Created, Ruled, Voted
from fsm_agent.run.picture import svg
from fsm_agent.telling import checks
from fsm_agent.telling.plain import plain, plain_event
from fsm_agent.telling.stands import Stand, stands
from fsm_agent.telling.timeline import totals_of
from fsm_agent.tools.approval import explain
from fsm_agent.tools.rule import rule_of

Filter = Literal["all", "asked", "mine", "unclaimed", "decided"]
FILTERS: dict[Filter, str] = {
    "all": "Waiting",
    "asked": "Asked of me",
    "unclaimed": "Nobody looks at it",
    "mine": "Claimed by me",
    "decided": "Decided by me",
}


async def home(request: Request, desk: Desk, actor: Actor) -> Response:
    """The front door leads to what waits."""
    return RedirectResponse("/inbox", 303)


async def inbox(request: Request, desk: Desk, actor: Actor) -> Response:
    """What waits for people."""
    chosen = request.query_params.get("show", "all")
    words = request.query_params.get("q", "").strip().lower()[:200]
    everything = await approvals.items(desk, actor)
    if chosen == "decided" or not everything:
        # Of those there may be thousands: they are read where they are shown.
        everything = await approvals.items(desk, actor, is_open=False)
    now_ms = desk.clock.wall_ms()
    groups = {name: [i for i in everything if _is_in(name, i, actor, now_ms)] for name in FILTERS}
    shown = groups.get(chosen, groups["all"])  # type: ignore[call-overload]
    if words:
        shown = [item for item in shown if words in _searched(item)]
    decided = [item for item in everything if not item.is_open]
    return page(
        request, "inbox.html", actor,
        items=shown, filters=FILTERS, chosen=chosen, q=words,
        counts={name: len(found) for name, found in groups.items()},
        last=max(decided, key=lambda i: i.request.ruling.at_ms if i.request.ruling else 0,
                 default=None),
    )  # fmt: skip


def _is_in(name: Filter, item: Item, actor: Actor, now_ms: int) -> bool:
    request = item.request
    match name:
        case "all":
            return item.is_open
        case "asked":
            return item.is_open and actor.is_among(approvals.asked_by(request, now_ms))
        case "unclaimed":
            return item.is_open and not request.claimed_by
        case "mine":
            return item.is_open and actor.is_also(request.claimed_by)
        case "decided":
            return request.ruling is not None and actor.is_also(request.ruling.by)


def _searched(item: Item) -> str:
    q = item.request.question
    parts = (q.tool, q.arguments, q.reason, q.agent, item.id, item.snapshot.title)
    return " ".join(parts).lower()


async def ask(request: Request, desk: Desk, actor: Actor) -> Response:
    """One request, and the buttons that decide it."""
    params = request.path_params
    item = await approvals.item_in(desk, actor, params["run_id"], params["ask_id"])
    context = await context_of(desk, item)
    arguments = item.request.question.arguments
    return page(
        request, "ask.html", actor,
        item=item, context=context, rows=argument_rows(arguments),
        diff=changes(context.previous, arguments) if context.previous else [],
        is_own=item.request.question.not_requester
        and actor.is_also(item.request.question.requester),
        may_decide=actor.may("decide"),
    )  # fmt: skip


async def runs(request: Request, desk: Desk, actor: Actor) -> Response:
    """Runs in a table."""
    given = request.query_params.get("status", "")
    status: Any = given if given in get_args(Status) else None
    wanted = api_runs.Wanted.of(request.query_params)
    found = await api_runs.seen_runs(desk, actor, status=status, limit=100, wanted=wanted)
    known: dict[str, Stand] = await stands(desk.runtime, [head for head, _ in found])
    # What may be chosen: what the newest runs have, whatever is chosen now.
    newest = [s for _, s in await api_runs.seen_runs(desk, actor, limit=200)]
    tenants = {s.tenant for s in newest} - {""} if actor.tenant is None else set()
    return page(
        request, "runs.html", actor,
        runs=found, stands=known, status=status or "", wanted=wanted,
        agents=sorted({s.agent for s in newest} | {wanted.agent} - {""}),
        tenants=sorted(tenants | ({wanted.tenant} if tenants and wanted.tenant else set())),
        may_operate=actor.may("operate"), is_over=_is_over,
    )  # fmt: skip


async def run(request: Request, desk: Desk, actor: Actor) -> Response:
    """A run from its first entry to its last."""
    run_id = request.path_params["run_id"]
    head, snapshot = await desk.seen_run(actor, run_id)
    events = await desk.runtime.history(run_id)
    result = await desk.runtime.result(run_id)
    states = [event.state for event in events]
    created = next(d for d in events[0].record.deltas if isinstance(d, Created))
    known = await stands(desk.runtime, [head])
    open_items = (
        await approvals.items(desk, actor, run_id=run_id) if not _is_over(head.status) else []
    )
    return page(
        request, "run.html", actor,
        head=head, snapshot=snapshot, result=result, stand=known[head.run_id],
        entries=entries_of(run_id, events), totals=totals_of(events), items=open_items,
        created=created, consents=await _consents(desk, run_id, head.status),
        picture=svg(pairwise(states), states[-1] if states else None, is_standalone=False,
                    title=f"The way of run {run_id}"),
        orphans=await desk.runtime.orphans(run_id), is_over=_is_over(head.status),
        may_operate=actor.may("operate"),
        crash_test=crash_test_of(_path_of(desk, actor, snapshot.agent), created.task),
    )  # fmt: skip


def _path_of(desk: Desk, actor: Actor, agent: str) -> str:
    """Where an agent's code lies. People of a tenant are told nothing of this machine's folders."""
    return "FILE.py:NAME" if actor.tenant else desk.paths.get(agent, "FILE.py:NAME")


def _is_over(status: Status) -> bool:
    return status in ("done", "error")


async def _consents(desk: Desk, run_id: str, status: Status) -> Sequence[Any]:
    return [] if _is_over(status) else await desk.runtime.consents(run_id)


async def workers(request: Request, desk: Desk, actor: Actor) -> Response:
    """Who works, what is due, and whether the store keeps its promises."""
    since = monotonic()
    now_ms = await desk.runtime.store.now_ms()
    took_ms = round((monotonic() - since) * 1000)
    facts = await desk.runtime.store.facts()
    running = await api_runs.seen_runs(desk, actor, status="running", limit=200)
    due = await desk.runtime.store.due(limit=1000)
    heads = [await desk.runtime.store.head(run_id) for run_id in due[:1]]
    lag_ms = max(0, now_ms - (heads[0].due_ms or now_ms)) if heads else 0
    return page(
        request, "workers.html", actor,
        running=running, now_ms=now_ms, backlog=len(due), lag_ms=lag_ms,
        checks=checks.store(facts, desk.address, took_ms), is_all=actor.tenant is None,
    )  # fmt: skip


async def policies(request: Request, desk: Desk, actor: Actor) -> Response:
    """What every tool of every agent asks of people."""
    rules = [
        (agent, [(tool, rule_of(tool.approval)) for tool in agent.registry])
        for agent in desk.agents.values()
    ]
    return page(request, "policies.html", actor, rules=rules)


class ExplainBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call that nobody made."""

    agent: str
    tool: str
    args: dict[str, Any]


async def explain_call(request: Request, desk: Desk, actor: Actor) -> Response:
    """Whether a call would need a person. Nothing runs but the rule."""
    body = await body_of(request, ExplainBody)
    agent = desk.agents.get(body.agent)
    if agent is None:
        raise Problem(422, "unknown-agent", f"This inbox has no agent {body.agent!r}.")
    try:
        tool = agent.registry.get(body.tool)
    except UnknownTool as error:
        raise Problem(422, "unknown-tool", str(error)) from error
    verdict = explain(tool, msgspec.json.encode(body.args).decode())
    return json_answer(plain(verdict))


async def audit(request: Request, desk: Desk, actor: Actor) -> Response:
    """Who decided what, from a journal whose chain was checked just now."""
    run_id = request.query_params.get("run", "").strip()
    person = request.query_params.get("by", "").strip().lower()[:200]
    rows: Sequence[AuditRow] = ()
    broken, checked = "", 0
    if run_id:
        head, _ = await desk.seen_run(actor, run_id)
        try:
            rows = await desk.runtime.audit(run_id)
            checked = head.seq
        except CorruptEntry as error:
            broken = str(error)
        rows = [row for row in rows if person in str(getattr(row.fact, "by", "")).lower()]
    newest = await api_runs.seen_runs(desk, actor, limit=20)
    return page(
        request, "audit.html", actor,
        run_id=run_id, by=person, rows=rows, broken=broken, checked=checked, newest=newest,
        plain=plain, is_word=lambda fact: isinstance(fact, (Ruled, Voted)),
    )  # fmt: skip


async def audit_export(request: Request, desk: Desk, actor: Actor) -> Response:
    """The audit of a run as JSON lines."""
    run_id = request.path_params["run_id"]
    await desk.seen_run(actor, run_id)
    lines = [json_answer(plain(row)).body for row in await desk.runtime.audit(run_id)]
    return _lines(lines, f"audit-{run_id}.jsonl")


async def journal_export(request: Request, desk: Desk, actor: Actor) -> Response:
    """The journal of a run as JSON lines."""
    run_id = request.path_params["run_id"]
    await desk.seen_run(actor, run_id)
    events = await desk.runtime.history(run_id)
    return _lines([json_answer(plain_event(each)).body for each in events], f"{run_id}.jsonl")


def _lines(lines: Sequence[bytes | memoryview], name: str) -> Response:
    kept = {"Content-Disposition": f'attachment; filename="{name}"'}
    body = b"".join(bytes(line) + b"\n" for line in lines)
    return Response(body, headers=kept, media_type="application/x-ndjson")


async def crash_reports(request: Request, desk: Desk, actor: Actor) -> Response:
    """The crash reports that lie in the folder the inbox was given."""
    found = reports.listed(desk.reports) if desk.reports else []
    return page(request, "crash.html", actor, reports=found, folder=desk.reports)


async def crash_report(request: Request, desk: Desk, actor: Actor) -> Response:
    """One crash report, as a grid of points and faults."""
    if desk.reports is None:
        raise Problem(404, "not-found", "This inbox was given no folder of crash reports.")
    report = reports.read(desk.reports, request.path_params["name"])
    return page(request, "crash_report.html", actor, report=report)
