"""What a signed link opens: a page that shows a request, and decides once a button is pressed."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import structlog
from starlette.requests import Request
from starlette.responses import Response

from checkpoints.errors import AlreadyDecided, CheckpointError
from fsm_agent.errors import AgentError
from fsm_agent.inbox import approvals
from fsm_agent.inbox.approvals import Item
from fsm_agent.inbox.arguments import argument_rows
from fsm_agent.inbox.deciding import decide
from fsm_agent.inbox.desk import Desk, desk_of
from fsm_agent.inbox.links import BadLink, Link, open_link, verb_in
from fsm_agent.inbox.problems import Problem, problem_of
from fsm_agent.inbox.render import page
from fsm_agent.run.content import clean_text
from fsm_agent.telling.words import RULED_WORDS

log = structlog.get_logger(__name__)

_WHY = {
    "forged": (404, "This link is not one of ours", "It may have been cut off or changed."),
    "expired": (410, "This link has run out", "Ask for a new one, or log in to the inbox."),
    "verb": (403, "This link is not for that", "It allows less than what was pressed."),
    "used": (409, "This link was used", "It counts once. What was decided with it stands."),
}


async def link_page(request: Request) -> Response:
    """Shows, and never decides: mail scanners and previews open links by themselves."""
    desk = desk_of(request)
    try:
        link = _opened(request, desk)
        item = await _item(desk, link)
    except BadLink as error:
        return _refused(request, error.kind, "show")
    except (Problem, AgentError, CheckpointError) as error:
        problem = problem_of(error)
        return _page(request, problem.status, "This cannot be decided", problem.words)
    if item.request.ruling:
        return _page(request, 200, "It is decided already", _ruled(item), item=item, link=link)
    if item.request.digest != link.digest:
        words = "What is asked has changed since this link was made. Ask for a new one."
        return _page(request, 412, "This link is for something else", words)
    heading = {"approval": "May it run?", "question": "A question for you"}
    kind = item.request.question.kind
    return _page(
        request, 200, f"{heading.get(kind, 'Did it happen?')} {item.request.question.tool}", "",
        item=item, link=link, verbs=[verb for verb in link.verbs if verb in item.verbs],
    )  # fmt: skip


async def press_link(request: Request) -> Response:
    """Decides, once, as the person that the link was made for."""
    desk = desk_of(request)
    try:
        link = _opened(request, desk)
        form = await _form(request)
        verb = verb_in(link, form.get("verb", ""))
        item = await _item(desk, link)
        actor = desk.auth.by_link(link.audience)
        # The field stands beside every button, and only two of them mean it.
        answer = form.get("answer", "") if verb in ("answer", "happened") else ""
        ruling = await decide(
            desk, actor, item, verb,
            decision_id=link.decision_id, channel="link", digest=link.digest,
            reason=form.get("reason", ""),
            answer=answer if verb == "answer" or answer.strip() else None,
        )  # fmt: skip
    except BadLink as error:
        return _refused(request, error.kind, "decide")
    except AlreadyDecided as error:
        words = f"{RULED_WORDS.get(error.verb, error.verb)} by {error.by}. That decision stands."
        return _page(request, 409, "It was decided before", words.capitalize())
    except (Problem, AgentError, CheckpointError) as error:
        problem = problem_of(error)
        return _page(request, problem.status, "It was not recorded", problem.words)
    if ruling.is_repeat:
        return _refused(request, "used", "decide", run_id=link.run_id, ask_id=link.ask_id)
    more = f" {ruling.missing} more must agree." if ruling.missing else ""
    words = f"{item.request.question.tool} {RULED_WORDS[verb]} by {ruling.by}.{more}"
    return _page(request, 200, "Recorded", words)


def _opened(request: Request, desk: Desk) -> Link:
    return open_link(desk.keys, request.path_params["token"], desk.clock.wall_ms() / 1000)


async def _item(desk: Desk, link: Link) -> Item:
    reader = desk.auth.by_link(link.audience)
    return await approvals.item_in(desk, reader, link.run_id, link.ask_id)


async def _form(request: Request) -> dict[str, str]:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/x-www-form-urlencoded":
        raise Problem(415, "not-a-form", "The page of the link sends a form.")
    try:
        given = parse_qs((await request.body()).decode(), max_num_fields=8)
    except ValueError as error:
        raise Problem(422, "bad-body", "The form cannot be read.") from error
    return {name: clean_text(values[-1]) for name, values in given.items()}


def _refused(request: Request, kind: str, doing: str, **more: Any) -> Response:
    log.warning("inbox.link_refused", why=kind, doing=doing, **more)
    status, heading, words = _WHY.get(kind, _WHY["forged"])
    return _page(request, status, heading, words)


def _ruled(item: Item) -> str:
    ruling = item.request.ruling
    assert ruling
    return f"{item.request.question.tool} {RULED_WORDS[ruling.verb]} by {ruling.by}."


def _page(
    request: Request,
    status: int,
    heading: str,
    words: str,
    *,
    item: Item | None = None,
    link: Link | None = None,
    verbs: Any = (),
) -> Response:
    rows = argument_rows(item.request.question.arguments) if item else []
    return page(
        request, "link.html", None, status_code=status,
        heading=heading, words=words, item=item, link=link, verbs=verbs, rows=rows,
    )  # fmt: skip
