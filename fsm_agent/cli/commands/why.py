"""`explain` and `audit`: why somebody was asked or not, and who decided what."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fsm_agent.audit import AuditRow
from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.clean import one_line
from fsm_agent.cli.failures import USAGE, CliError, clock
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import put
from fsm_agent.cli.settings import common, current
from fsm_agent.run.delta import (
    Asked,
    AskedOn,
    Attested,
    Commented,
    Intended,
    Judged,
    Ruled,
    Settled,
    Voted,
    Withheld,
)
from fsm_agent.telling.words import RULED_WORDS


@click.command("explain")
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL")
@common
def explain_command(run_id: str, call_id: str) -> int:
    """Say why a person was asked about a call, or why nobody was: from what is on record.

    CALL is the id of a call, such as c4-0, or of its request, such as a4-0.
    """
    wanted = _call_of(call_id)
    rows = process.run(lambda: _rows(run_id, wanted))
    if not rows:
        raise CliError(
            f"run {one_line(run_id)} has no call {one_line(wanted)} on record."
            f" Its ids: fsm-agent audit {one_line(run_id)}.",
            USAGE,
        )
    if current().is_json:
        for row in rows:
            put(asjson.line(asjson.audit(row)))
        return failures.DONE
    if not any(isinstance(row.fact, (Judged, Asked)) for row in rows):
        put("nobody was asked: its tool has no approval rule")
    for row in rows:
        for line in _words(row):
            put(line)
    return failures.DONE


@click.command("audit")
@click.argument("run_id", metavar="RUN")
@common
def audit_command(run_id: str) -> int:
    """Print who decided what, when, how and on which hash: one JSON object a line.

    From the journal, whose hash chain is verified first; `chain` is the hash of the entry.
    """
    for row in process.run(lambda: _rows(run_id, None)):
        put(asjson.line(asjson.audit(row)))
    return failures.DONE


async def _rows(run_id: str, call_id: str | None) -> Sequence[AuditRow]:
    async with looking() as runtime:
        return await runtime.audit(run_id, call_id=call_id)


def _call_of(name: str) -> str:
    """The call of a request: 'a4-0' and 'd4-0-1' are about 'c4-0'."""
    if name[:1] in ("a", "d", "q") and "-" in name:
        return "c" + "-".join(name[1:].split("-")[:2])
    return name


def _words(row: AuditRow) -> list[str]:
    fact, at = row.fact, clock(row.at_ms)
    match fact:
        case Judged():
            rule = f"rule {one_line(fact.rule, 64)}"
            if fact.consent:
                return [f"{at}  {rule} asks, and {one_line(fact.reason)} ({fact.consent})"]
            asks = f"asks: {one_line(fact.reason, 300)}" if fact.asks else "asks nobody"
            return [f"{at}  {rule} {asks}"]
        case Asked():
            lines = [
                f"{at}  request {fact.ask_id}, hash {fact.digest[:8]}: {one_line(fact.reason)}"
            ]
            if fact.expires_ms:
                lines.append(f"{at}  until {clock(fact.expires_ms)}")
            if isinstance(fact, AskedOn) and fact.quorum > 1:
                lines.append(f"{at}  needs {fact.quorum} people")
            return lines
        case Voted() | Ruled():
            words = RULED_WORDS[fact.verb]
            when, how = row.at_ms, ""
            if isinstance(fact, (Voted, Attested)):  # an older version did not record them
                when, how = (
                    fact.decided_ms,
                    f" ({', '.join(filter(None, (fact.channel, fact.auth)))})",
                )
            why = f": {one_line(fact.reason, 300)}" if fact.reason else ""
            line = f"{clock(when)}  {words} by {one_line(fact.by, 64)}{how}{why}"
            return [f"{line} (one of several)" if isinstance(fact, Voted) else line]
        case Commented():
            said = f"{one_line(fact.by, 64)} said: {one_line(fact.text, 300)}"
            return [f"{clock(fact.said_ms)}  {said}"]
        case Intended():
            return [f"{at}  started, time {fact.attempt}"]
        case Withheld():
            return [f"{at}  not started after all: {one_line(fact.reason, 160)}"]
        case Settled():
            return [f"{at}  {fact.status}: {one_line(fact.text, 160)}"]
        case _:
            return []
