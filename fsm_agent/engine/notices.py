"""What a commit puts into the outbox: notices of requests, of their deadlines, of the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from checkpoints.model import Notice, RunId
from fsm_agent.run import news
from fsm_agent.run.delta import Asked
from fsm_agent.run.news import Needed, News, NewsType
from fsm_agent.run.record import Run
from fsm_agent.run.signal import Question

REMINDERS = (50, 90)  # percent of a request's time


class Opened(NamedTuple):
    """A request that becomes open with the commit."""

    asked: Asked
    question: Question


def notices(run: Run, opened: Sequence[Opened], now_ms: int) -> tuple[Notice, ...]:
    """Everything to tell of a commit that leaves the run like this. Ids depend on the run's
    journal only: a commit that is made again by another worker tells the same again."""
    return tuple(_notices(run, opened, now_ms))


def _notices(run: Run, opened: Sequence[Opened], now_ms: int) -> Iterator[Notice]:
    if opened:
        requests = tuple(_needed(each) for each in opened)
        yield _notice(
            run, f"{run.seq}.opened", "request.opened", {"requests": requests}, told_ms=now_ms
        )
    for each in opened:
        yield from _of_deadline(run, each, now_ms)
        yield from _of_escalation(run, each, now_ms)
    # A child's end is its parent's business, who is told of it anyhow.
    if run.is_over and not run.parent:
        yield _ending(run, now_ms)


def _of_deadline(run: Run, each: Opened, now_ms: int) -> Iterator[Notice]:
    if not each.asked.expires_ms:
        return
    for percent in REMINDERS:
        at_ms = now_ms + (each.asked.expires_ms - now_ms) * percent // 100
        facts = {"requests": (_needed(each),), "passed_percent": percent}
        name = f"{each.asked.ask_id}.{percent}"
        yield _notice(run, name, "request.reminder", facts, told_ms=at_ms, at_ms=at_ms)


def _of_escalation(run: Run, each: Opened, now_ms: int) -> Iterator[Notice]:
    for level, (after_ms, to) in enumerate(each.question.escalation, 1):
        at_ms = now_ms + after_ms
        facts = {"requests": (_needed(each),), "to": to}
        name = f"{each.asked.ask_id}.level{level}"
        yield _notice(run, name, "request.escalated", facts, told_ms=at_ms, at_ms=at_ms)


def _ending(run: Run, now_ms: int) -> Notice:
    if run.answer:
        facts = {"is_completed": run.answer.is_completed, "reason": run.answer.why}
        return _notice(run, "over", "run.done", facts, told_ms=now_ms)
    reason = run.failure.reason if run.failure else ""
    return _notice(run, "over", "run.error", {"reason": reason}, told_ms=now_ms)


def _needed(each: Opened) -> Needed:
    asked, question = each
    return Needed(
        asked.ask_id, asked.kind, question.tool, asked.expires_ms, question.quorum, question.to
    )


def _notice(
    run: Run, name: str, kind: NewsType, facts: dict[str, Any], *, told_ms: int, at_ms: int = 0
) -> Notice:
    told = News(kind, run.run_id, run.agent, told_ms, parent=run.parent, **facts)
    return Notice(
        notice_id=f"{run.run_id}.{name}",
        run_id=RunId(run.run_id),
        body=news.encode(told),
        at_ms=at_ms,
    )
