"""The terms of a request in words: until when, how many people, who has spoken."""

from __future__ import annotations

import time

import click

from fsm_agent.cli.clean import one_line
from fsm_agent.cli.failures import clock
from fsm_agent.cli.person import operator
from fsm_agent.runtime import Request
from fsm_agent.telling.words import RULED_WORDS, seconds

_ENDS = {
    "reject": "then it is refused",
    "fail_run": "then the run ends",
    "approve": "THEN IT RUNS UNASKED",
}
_DIM, _LOUD = "dim", "bold yellow"


def terms_of(request: Request) -> list[tuple[str, str]]:
    """Pairs of a style and a line, as asking.described has them; none for a plain request."""
    question, lines = request.question, []
    if request.expires_ms:
        left_ms = int(request.expires_ms - time.time() * 1000)
        left = f"in {seconds(left_ms)}" if left_ms > 0 else "passed"
        end = "nobody answered" if question.kind == "question" else _ENDS[question.on_expiry]
        if question.kind == "question":
            end = _ENDS["fail_run"] if question.on_expiry == "fail_run" else f"then {end}"
        style = _LOUD if question.on_expiry == "approve" else _DIM
        lines.append((style, f"until   {clock(request.expires_ms)} ({left}), {end}"))
    if question.to or question.escalation:
        lines.append((_DIM, f"asked   {_whom(request)}"))
    if question.quorum > 1:
        lines.append((_DIM, f"needs   {question.quorum} people, {len(request.votes)} so far"))
    for vote in request.votes:
        words = RULED_WORDS.get(vote.verb, vote.verb)
        lines.append((_DIM, f"        {words} by {one_line(vote.by, 64)} at {clock(vote.at_ms)}"))
    if question.not_requester:
        lines.append((_DIM, f"not by  {one_line(question.requester, 64)}, who started the run"))
    if request.claimed_by:
        who = one_line(request.claimed_by, 64)
        lines.append((_DIM, f"claimed by {who} at {clock(request.claimed_ms)}"))
    for comment in request.comments:
        text = f"{one_line(comment.by, 64)}: {one_line(comment.text, 300)}"
        lines.append((_DIM, f"said    {text}"))
    return lines


def _whom(request: Request) -> str:
    """'support, since 12:10:00 leads, from 13:00:00 head of support'."""
    now_ms = time.time() * 1000
    names = [one_line(request.question.to, 64)] if request.question.to else []
    for after_ms, to in request.question.escalation:
        at_ms = request.opened_ms + after_ms
        word = "since" if at_ms <= now_ms else "from"
        names.append(f"{word} {clock(at_ms)} {one_line(to, 64)}")
    return ", ".join(names)


def auth_of(by: str) -> str:
    """How it is known that `by` is who they say: the system's user, or nothing but the word."""
    return "os_user" if by == operator() else "claimed"


hash_option = click.option(
    "--hash", "digest", metavar="PREFIX", help="Of the request, where runs below ask one as well."
)
by_option = click.option("--by", metavar="NAME", help="Who does it.  [default: the OS user]")
