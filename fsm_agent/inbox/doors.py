"""Logging in and out, and the page that asks for it."""

from __future__ import annotations

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.auth import COOKIE, new_session
from fsm_agent.inbox.desk import MARK, Desk, body_of, desk_of, json_answer
from fsm_agent.inbox.problems import Problem
from fsm_agent.inbox.render import page

log = structlog.get_logger(__name__)


class LoginBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A token, in exchange for a session."""

    token: str


async def login_page(request: Request) -> Response:
    """Where a token is given."""
    return page(request, "login.html", None)


async def log_in(request: Request) -> Response:
    """A session for whoever has a token. Raises Problem 401."""
    desk = desk_of(request)
    if MARK not in request.headers:
        raise Problem(403, "no-mark", "A browser must send the header X-Inbox with this.")
    body = await body_of(request, LoginBody)
    actor = desk.auth.by_token(body.token)
    if actor is None:
        log.warning("inbox.login_refused", mode=desk.auth.mode)
        raise Problem(401, "wrong-token", "This is no token of this inbox.")
    until_s = int(desk.clock.wall_ms() / 1000 + desk.settings.session_s)
    answer = json_answer({"name": actor.name, "role": actor.role})
    answer.set_cookie(
        COOKIE,
        new_session(desk.keys, desk.auth, actor, until_s),
        max_age=int(desk.settings.session_s),
        httponly=True,
        samesite="strict",
        secure=desk.settings.is_https,
        path="/",
    )
    return answer


async def log_out(request: Request, desk: Desk, actor: Actor) -> Response:
    """Forget the session in this browser."""
    answer = json_answer({"out": True})
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer
