"""Which routes there are, and what becomes of what they raise."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from checkpoints.errors import CheckpointError
from fsm_agent.errors import AgentError
from fsm_agent.inbox import (
    agui,
    api_approvals,
    api_runs,
    doors,
    link_pages,
    openapi,
    pages,
    slack,
    streams,
)
from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.desk import Desk, body_of, guarded, json_answer
from fsm_agent.inbox.guard import Guard
from fsm_agent.inbox.problems import Problem, not_found, problem_of
from fsm_agent.inbox.render import HOME, page
from fsm_agent.observability.metrics import CONTENT_TYPE, store_text


async def static(request: Request) -> Response:
    """A file that belongs to the pages."""
    name = request.path_params["name"]
    if name not in _STATIC:
        raise not_found()
    kept = {"Cache-Control": "public, max-age=31536000, immutable"} if request.url.query else {}
    media = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response((HOME / "static" / name).read_bytes(), headers=kept, media_type=media)


_STATIC = frozenset(each.name for each in (HOME / "static").iterdir())


async def healthy(request: Request) -> Response:
    """Whether this process answers; it says nothing else to strangers."""
    return json_answer({"ok": True})


async def metrics(request: Request, desk: Desk, actor: Actor) -> Response:
    """What the store says, for Prometheus. It counts every tenant's runs."""
    if actor.tenant is not None:
        raise Problem(403, "not-allowed", "Metrics count the runs of all tenants.")
    return Response(await store_text(desk.runtime.store), media_type=CONTENT_TYPE)


async def no_run(request: Request, desk: Desk, actor: Actor) -> Response:
    """Whatever is no run id: such as a path with a slash in it."""
    raise Problem(400, "bad-run-id", "This is not a run id: 1 to 64 letters, digits, '-' or '_'.")


async def revoke(request: Request, desk: Desk, actor: Actor) -> Response:
    """End a standing consent."""
    await body_of(request, api_approvals.NothingBody)
    run_id = request.path_params["run_id"]
    await desk.seen_run(actor, run_id)
    await desk.runtime.revoke(run_id, request.path_params["consent_id"], by=actor.name)
    return json_answer({"run_id": run_id, "revoked": request.path_params["consent_id"]})


def _get(path: str, handler: Any, **options: Any) -> Route:
    return Route(path, guarded(handler, **options), methods=["GET"], name=handler.__name__)


def _post(path: str, handler: Any, action: Any) -> Route:
    return Route(path, guarded(handler, action), methods=["POST"], name=handler.__name__)


def _open(path: str, endpoint: Callable[..., Any], method: str = "GET") -> Route:
    """A route for people who are not known: each has a credential of its own, or says nothing."""
    return Route(path, endpoint, methods=[method], name=endpoint.__name__)


def routes() -> list[BaseRoute]:
    """The table. Ids in it are run ids and ask ids, checked where they are used."""
    run, approval = "/v1/runs/{run_id}", "/v1/approvals/{approval_id}"
    return [
        _get("/v1/approvals", api_approvals.list_approvals),
        _get(approval, api_approvals.show_approval),
        _post(f"{approval}/decision", api_approvals.decide_approval, "decide"),
        _post(f"{approval}/claim", api_approvals.claim_approval, "decide"),
        _post(f"{approval}/release", api_approvals.release_approval, "decide"),
        _post(f"{approval}/comment", api_approvals.comment_approval, "decide"),
        _get("/v1/inbox/events", streams.inbox_events),
        _get("/v1/runs", api_runs.list_runs),
        _post("/v1/runs", api_runs.start_run, "operate"),
        _get(run, api_runs.show_run),
        _get(f"{run}/events", streams.run_events),
        _post(f"{run}/cancel", api_runs.cancel_run, "operate"),
        _post(f"{run}/resume", api_runs.resume_run, "operate"),
        _post(f"{run}/fork", api_runs.fork_run, "operate"),
        _post(f"{run}/say", api_runs.say_to_run, "operate"),
        _post(f"{run}/consents/{{consent_id}}/revoke", revoke, "operate"),
        _get("/v1/runs/{rest:path}", no_run),
        _post("/agui/{agent}", agui.agui, "operate"),
        _post("/v1/policies/explain", pages.explain_call, "look"),
        _open("/v1/openapi.json", openapi.document),
        _get("/", pages.home),
        _get("/inbox", pages.inbox),
        _get("/runs", pages.runs),
        _get("/runs/{run_id}", pages.run),
        _get("/runs/{run_id}/journal.jsonl", pages.journal_export),
        _get("/runs/{run_id}/audit.jsonl", pages.audit_export),
        _get("/runs/{run_id}/asks/{ask_id}", pages.ask),
        _get("/runs/{rest:path}", no_run),
        _get("/workers", pages.workers),
        _get("/policies", pages.policies),
        _get("/audit", pages.audit),
        _get("/metrics", metrics, action="look"),
        _get("/crash", pages.crash_reports),
        _get("/crash/{name}", pages.crash_report),
        _open("/login", doors.login_page),
        _open("/login", doors.log_in, "POST"),
        _post("/logout", doors.log_out, "look"),
        _open("/a/{token}", link_pages.link_page),
        _open("/a/{token}", link_pages.press_link, "POST"),
        _open("/hooks/slack", slack.slack_hook, "POST"),
        _open("/static/{name}", static),
        _open("/healthz", healthy),
    ]


def build(desk: Desk) -> ASGIApp:
    """The application. Close `desk.feeds` when it ends."""
    app = Starlette(
        routes=routes(),
        exception_handlers={Exception: _on_error, HTTPException: _on_http, Problem: _on_error}
        | dict.fromkeys((AgentError, CheckpointError), _on_error)
        | {ClientDisconnect: _on_gone},
    )
    app.state.desk = desk
    return Guard(app, desk.settings)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {404: "not-found", 405: "wrong-method"}.get(error.status_code, "refused")
    problem = Problem(error.status_code, kind, error.detail, headers=dict(error.headers or {}))
    return _answer(request, problem)


async def _on_gone(request: Request, error: Exception) -> Response:
    """Whoever asked went away while they still sent. Nobody reads this answer."""
    return Response(status_code=499)


async def _on_error(request: Request, error: Exception) -> Response:
    return _answer(request, problem_of(error))


def _answer(request: Request, problem: Problem) -> Response:
    """A page where a person looks, JSON for everything else."""
    is_page = "text/html" in request.headers.get("accept", "") and request.method in ("GET", "HEAD")
    if not is_page or request.url.path.startswith("/v1/"):
        return problem.response()
    if problem.status == 401:
        return page(request, "login.html", None, status_code=401)
    actor = getattr(request.state, "actor", None)
    answer = page(request, "problem.html", actor, status_code=problem.status, problem=problem)
    answer.headers.update(problem.headers)
    return answer
