"""The API of requests: list, look, decide, claim, comment."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fsm_agent.inbox import approvals
from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.approvals import Item
from fsm_agent.inbox.context import context_of
from fsm_agent.inbox.deciding import decide
from fsm_agent.inbox.desk import Desk, body_of, json_answer, limit_of
from fsm_agent.inbox.feeds import digest_of
from fsm_agent.inbox.problems import Problem
from fsm_agent.run.content import canonical_json
from fsm_agent.run.delta import Verb

States = Literal["pending", "decided", "all"]


class DecisionBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is decided. Either `args_sha256` or the header If-Match says what was looked at."""

    verb: Verb
    decision_id: str | None = None
    args_sha256: str = ""
    reason: str = ""
    args: dict[str, Any] | None = None  # of `edit`: all of them
    answer: str | None = None
    standing: bool = False  # of `approve`: later calls that the rule asks about, in this run


class CommentBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Words about a request."""

    text: str


class NothingBody(msgspec.Struct, forbid_unknown_fields=True):
    """An empty object."""


async def list_approvals(request: Request, desk: Desk, actor: Actor) -> Response:
    """Requests in their order: in doubt, then by risk, deadline and age."""
    query = request.query_params
    state = _state(query.get("state", "pending"))
    found = await approvals.items(
        desk, actor, is_open=state == "pending", run_id=query.get("run_id")
    )
    if state == "decided":
        found = [item for item in found if not item.is_open]
    found = [item for item in found if _fits(item, actor, query.get("assignee", ""))]
    if asked := query.get("asked"):
        if asked != "me":
            raise Problem(422, "bad-query", "asked is me: of you, or of a group of yours.")
        now_ms = desk.clock.wall_ms()
        found = [i for i in found if actor.is_among(approvals.asked_by(i.request, now_ms))]
    if tool := query.get("tool"):
        found = [item for item in found if item.request.question.tool == tool]
    limit, after = limit_of(request), _cursor(query.get("cursor", ""))
    page = [item for item in found if item.order > after][:limit]
    more = bool(page) and page[-1].order < found[-1].order
    body = {
        "approvals": [approvals.plain(item) for item in page],
        "total": len(found),
        "cursor": _cursor_at(page[-1]) if more else None,
    }
    etag = f'W/"{digest_of(*(item.etag for item in page), len(found), limit)}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"ETag": etag})
    return json_answer(body, ETag=etag)


def _state(given: str) -> States:
    if given not in ("pending", "decided", "all"):
        raise Problem(422, "bad-query", "state is one of pending, decided, all.")
    return given  # type: ignore[return-value]


def _fits(item: Item, actor: Actor, assignee: str) -> bool:
    claimed_by = item.request.claimed_by
    match assignee:
        case "":
            return True
        case "me":
            return actor.is_also(claimed_by)
        case "none":
            return not claimed_by
        case _:
            return claimed_by == assignee


def _cursor_at(item: Item) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(item.order)).decode()


def _cursor(given: str) -> tuple[int, int, int, str]:
    if not given:
        return (-1, 0, 0, "")
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(given), type=tuple[int, int, int, str])
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise Problem(422, "bad-query", "This cursor is none that the list gave.") from error


async def show_approval(request: Request, desk: Desk, actor: Actor) -> Response:
    """One request, with all that helps to decide it."""
    item = await approvals.item_of(desk, actor, request.path_params["approval_id"])
    if request.headers.get("if-none-match") == item.etag:
        return Response(status_code=304, headers={"ETag": item.etag})
    context = await context_of(desk, item)
    return json_answer(approvals.plain(item) | context.plain(), ETag=item.etag)


async def decide_approval(request: Request, desk: Desk, actor: Actor) -> Response:
    """Decide. The same `decision_id` again gets the same answer."""
    body = await body_of(request, DecisionBody)
    item = await approvals.item_of(desk, actor, request.path_params["approval_id"])
    match = request.headers.get("if-match", "")
    if not match and not body.args_sha256:
        words = "Say what you looked at: args_sha256, or the header If-Match with the ETag."
        raise Problem(428, "nothing-seen", words)
    if _is_stale(item, match, actor):
        words = "It has changed since you looked at it. Look again before deciding."
        raise Problem(412, "stale", words, version=item.etag, args_sha256=item.request.digest)
    ruling = await decide(
        desk,
        actor,
        item,
        body.verb,
        decision_id=body.decision_id,
        channel="http" if not actor.is_ambient else "web",
        digest=body.args_sha256,
        reason=body.reason,
        arguments=_arguments(body),
        answer=body.answer,
        is_standing=body.standing,
    )
    told = {"id": item.id, "args_sha256": item.request.digest} | approvals.decision(ruling)
    return json_answer(told, Idempotent_Replay="true" if ruling.is_repeat else "false")


def _is_stale(item: Item, match: str, actor: Actor) -> bool:
    """Whether this person looked at something else. Not once they have spoken, or somebody has:
    then the store knows whether this is a repeat, and what to say to it."""
    if not match or match == "*" or not item.is_open:
        return False
    if any(actor.is_also(vote.by) for vote in item.request.votes):
        return False
    return item.etag not in (each.strip() for each in match.split(","))


def _arguments(body: DecisionBody) -> str | None:
    return None if body.args is None else canonical_json(body.args)


async def claim_approval(request: Request, desk: Desk, actor: Actor) -> Response:
    """Say that you look at it; others may still decide."""
    item = await _talked_about(request, desk, actor)
    r = item.request
    await desk.runtime.claim(r.run_id, r.ask_id, by=actor.name, digest=r.digest)
    return await _again(desk, actor, item)


async def release_approval(request: Request, desk: Desk, actor: Actor) -> Response:
    """Take your claim back."""
    item = await _talked_about(request, desk, actor)
    r = item.request
    await desk.runtime.release(r.run_id, r.ask_id, by=actor.name, digest=r.digest)
    return await _again(desk, actor, item)


async def comment_approval(request: Request, desk: Desk, actor: Actor) -> Response:
    """Say something; it decides nothing."""
    body = await body_of(request, CommentBody)
    item = await approvals.item_of(desk, actor, request.path_params["approval_id"])
    r = item.request
    await desk.runtime.comment(r.run_id, r.ask_id, body.text, by=actor.name, digest=r.digest)
    return await _again(desk, actor, item)


async def _talked_about(request: Request, desk: Desk, actor: Actor) -> Item:
    await body_of(request, NothingBody)
    return await approvals.item_of(desk, actor, request.path_params["approval_id"])


async def _again(desk: Desk, actor: Actor, item: Item) -> Response:
    item = await approvals.item_of(desk, actor, item.id)
    return json_answer(approvals.plain(item), ETag=item.etag)
