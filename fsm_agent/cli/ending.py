"""How a run came out, in words and as an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fsm_agent.cli import asjson, asking, failures
from fsm_agent.cli.clean import cleaned, one_line
from fsm_agent.cli.hints import Hint, say_hints
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import current
from fsm_agent.cli.views import View
from fsm_agent.run.limits import Limits
from fsm_agent.runtime import Request, Result
from fsm_agent.telling.early import early, turns


def end(
    result: Result,
    *,
    view: View | None = None,
    requests: Sequence[Request] = (),
    limits: Limits | None = None,
) -> int:
    """Say how it came out, and what can be done next. The exit code."""
    if current().is_json:
        for request in requests:
            put(asjson.line(asjson.request(request)))
        put(asjson.line(asjson.result(result)))
    if result.status == "done":
        return _end_answered(result, view, limits)
    if result.status == "error":
        say(f"error: run {result.run_id} failed ({result.reason}): {one_line(result.message, 500)}")
        return failures.FAILED
    if result.status == "waiting":
        _end_waiting(result, requests)
        return failures.WAITING
    say(f"run {result.run_id} is {result.status}.")
    return failures.FAILED


def _end_answered(result: Result, view: View | None, limits: Limits | None) -> int:
    is_shown = view is not None and view.has_answer and sys.stdout.isatty()
    if not current().is_json and not is_shown:
        put(cleaned(result.answer or ""))
    used = f"{turns(result.turns)}, {result.spent_tokens:,} tokens"
    if result.spent_money:
        used = f"{used}, {result.spent_money:.4g} in money"
    if not result.is_completed:
        say(f"warning: the answer is not completed. {early(result.reason, limits)} ({used}).")
        return failures.FAILED
    if not current().is_json:
        look = f"fsm-agent show {result.run_id}{current().store_option}"
        for source in result.sources:
            where = f" {one_line(source.url, 200)}" if source.url != source.title else ""
            say(f"  source    {one_line(source.title, 120)}{where}")
        why = f"{early(result.reason, limits)}. " if result.reason else ""
        say(f"  done      {why}{used}. All of it: {look}")
    return failures.DONE


def _end_waiting(result: Result, requests: Sequence[Request]) -> None:
    if not current().is_json:
        for request in requests:
            asking.show(request)
    count = len(requests)
    say(f"run {result.run_id} waits for a person ({count} open). Nothing runs meanwhile. Paste:")
    resume = f"fsm-agent resume {result.run_id}{current().store_option}"
    say_hints([*asking.commands_for(requests), Hint(resume, "go on, once it is decided")])
