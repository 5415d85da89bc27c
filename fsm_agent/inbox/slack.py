"""Buttons in Slack: a signed callback becomes a decision, once, however often it is sent."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any
from urllib.parse import parse_qs

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from checkpoints.errors import CheckpointError
from fsm_agent.errors import AgentError
from fsm_agent.inbox import approvals
from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.auth import StaticUsers
from fsm_agent.inbox.deciding import decide
from fsm_agent.inbox.desk import Desk, desk_of, json_answer
from fsm_agent.inbox.links import BadLink, open_link, verb_in
from fsm_agent.inbox.problems import Problem, problem_of
from fsm_agent.inbox.users import actor_of
from fsm_agent.waiting import Request as Asked

log = structlog.get_logger(__name__)

WINDOW_S = 300
_LABELS = {"approve": "Approve", "reject": "Reject", "happened": "It happened",
           "rerun": "It did not, run it", "fail": "Nobody knows"}  # fmt: skip


class _User(msgspec.Struct):
    id: str


class _Button(msgspec.Struct):
    action_ts: str
    value: str = ""
    action_id: str = ""


class _Payload(msgspec.Struct):
    type: str
    user: _User
    actions: list[_Button] = []


async def slack_hook(request: Request) -> Response:
    """Raises Problem 401 for a signature that is not Slack's, or is more than 5 minutes old."""
    desk = desk_of(request)
    raw = await request.body()
    check_signature(
        desk.slack_secret,
        raw,
        request.headers.get("x-slack-request-timestamp", ""),
        request.headers.get("x-slack-signature", ""),
        desk.clock.wall_ms() / 1000,
    )
    payload = _payload(request, raw)
    if payload.type != "block_actions" or len(payload.actions) != 1:
        raise Problem(422, "bad-body", "This takes one pressed button at a time.")
    try:
        return json_answer(_said(await _decided(desk, payload.user.id, payload.actions[0])))
    except BadLink as error:
        log.warning("inbox.link_refused", why=error.kind, channel="slack")
        return json_answer(_said(f"That button does not count any more ({error.kind})."))
    except (AgentError, CheckpointError, Problem) as error:
        # Slack shows what a 200 says; any other status it shows as 'something went wrong'.
        return json_answer(_said(problem_of(error).words))


def check_signature(secret: str, raw: bytes, stamp: str, signature: str, now_s: float) -> None:
    """Slack's v0 scheme over the raw body. Raises Problem."""
    if not secret:
        raise Problem(404, "not-found", "This inbox takes nothing from Slack.")
    is_fresh = stamp.isascii() and stamp.isdigit() and len(stamp) < 12
    is_fresh = is_fresh and abs(now_s - int(stamp)) <= WINDOW_S
    wanted = (
        "v0=" + hmac.digest(secret.encode(), b"v0:" + stamp.encode() + b":" + raw, "sha256").hex()
    )
    is_signed = hmac.compare_digest(wanted.encode(), signature.encode("utf-8", "replace"))
    if not (is_fresh and is_signed):
        why = "signature" if is_fresh else "timestamp"
        log.warning("inbox.hook_refused", why=why, channel="slack")
        raise Problem(401, "bad-signature", "This did not come from Slack, or not just now.")


def _payload(request: Request, raw: bytes) -> _Payload:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/x-www-form-urlencoded":
        raise Problem(415, "not-a-form", "Slack sends forms.")
    try:
        given = parse_qs(raw.decode(), strict_parsing=True, max_num_fields=5)
        return msgspec.json.decode(given["payload"][0], type=_Payload)
    except (ValueError, KeyError, msgspec.MsgspecError, RecursionError) as error:
        raise Problem(422, "bad-body", "The form has no payload that can be read.") from error


async def _decided(desk: Desk, slack_id: str, button: _Button) -> str:
    """What came of it, in words. Raises BadLink and what `decide` raises."""
    actor = _actor(desk, slack_id)
    link = open_link(desk.keys, button.value, desk.clock.wall_ms() / 1000)
    verb = verb_in(link, button.action_id.removeprefix("fsm:"))
    if not actor.may("decide"):
        raise Problem(403, "not-allowed", f"A {actor.role} may not decide.")
    item = await approvals.item_in(desk, actor, link.run_id, link.ask_id)
    if not actor.is_also(link.audience):
        raise BadLink("made for somebody else")
    marks = (item.id, button.action_ts, slack_id)
    ruling = await decide(
        desk, actor, item, verb, digest=link.digest, channel="slack",
        decision_id=hashlib.sha256("\n".join(marks).encode()).hexdigest(),
    )  # fmt: skip
    more = f", {ruling.missing} more needed" if ruling.missing else ""
    return f"{item.request.question.tool}: {ruling.verb} by {ruling.by}{more}."


def _actor(desk: Desk, slack_id: str) -> Actor:
    user = desk.auth.users.by_slack(slack_id) if isinstance(desk.auth, StaticUsers) else None
    if user is None:
        words = "This inbox does not know you: have your id in Slack put into its file of users."
        raise Problem(403, "not-allowed", words)
    return actor_of(user, "slack")


def _said(text: str) -> dict[str, Any]:
    return {"response_type": "ephemeral", "replace_original": False, "text": text}


def blocks(request: Asked, token: str, url: str, verbs: tuple[str, ...]) -> list[dict[str, Any]]:
    """A message with buttons, for whoever sends it: names and a link, and no arguments.

    `token` is a signed link for the one person that it is sent to.
    """
    tool = request.question.tool[:80].replace("<", "").replace(">", "").replace("&", "and")
    buttons = [
        {"type": "button", "action_id": f"fsm:{verb}", "value": token,
         "text": {"type": "plain_text", "text": _LABELS.get(verb, verb)}}
        for verb in verbs if verb in _LABELS
    ]  # fmt: skip
    buttons.append({"type": "button", "action_id": "open", "url": url,
                    "text": {"type": "plain_text", "text": "Look first"}})  # fmt: skip
    text = f"`{tool}` waits for you (hash {request.digest[:8]})"
    return [
        {"type": "section", "text": {"type": "mrkdwn", "text": text}},
        {"type": "actions", "elements": buttons},
    ]
