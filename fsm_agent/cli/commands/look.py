"""`list` and `show`: runs in a table, and one run as a timeline."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import get_args

import click

from checkpoints.model import Head, Status
from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.clean import cleaned, one_line, wrapped
from fsm_agent.cli.failures import clock
from fsm_agent.cli.hints import width_of
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import common, current
from fsm_agent.cli.standing import replay, show_standing
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.delta import Created, Filed
from fsm_agent.run.event import EntryEvent
from fsm_agent.runtime import Result
from fsm_agent.telling.early import early
from fsm_agent.telling.stands import Stand, stands
from fsm_agent.telling.timeline import Row, rows_of, totals_line, totals_of
from fsm_agent.telling.words import filed_words

_STYLES = {
    "done": "green", "failed": "red", "cancelled": "red", "not completed": "yellow",
    "running": "cyan", "person": "yellow", "worker": "magenta", "operator": "yellow",
}  # fmt: skip
_TONES = {"good": "green", "bad": "bold red", "warn": "yellow", "quiet": "dim", "plain": ""}


@click.command("list")
@click.option("--status", type=click.Choice(get_args(Status)), help="Only runs of this status.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True)
@common
def list_command(status: Status | None, limit: int) -> int:
    """List runs, newest first, and whose turn it is: a person's, a worker's, nobody's."""

    async def heads() -> tuple[Sequence[Head], dict[str, Stand]]:
        async with looking() as runtime:
            found = await runtime.runs(status=status, limit=limit)
            return found, await stands(runtime, found)

    found, known = process.run(heads)
    if current().is_json:
        for head in found:
            put(asjson.line(asjson.head(head) | _stand_json(known[head.run_id])))
    elif not found:
        say('no runs here. Start one: fsm-agent run --agent FILE.py:NAME "TASK"')
    else:
        _print_list(found, known)
    return failures.DONE


def _stand_json(stand: Stand) -> asjson.JsonObject:
    shown: asjson.JsonObject = {
        "stands": stand.words, "stands_more": stand.more, "needs": stand.needs or None,
    }  # fmt: skip
    if stand.asks:
        shown["asks"] = list(stand.asks)
    if stand.resume:
        shown["resume"] = stand.resume
    return shown


def _print_list(heads: Sequence[Head], known: Mapping[str, Stand]) -> None:
    rows = [_list_row(head, known[head.run_id]) for head in heads]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    is_terminal = sys.stdout.isatty()
    for head, row in zip(heads, rows, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        needs = known[head.run_id].needs
        if is_terminal and (style := _STYLES.get(needs or row[1])):
            cells[1] = click.style(cells[1], fg=style)
        put("  ".join([*cells, row[4]]).rstrip())


def _list_row(head: Head, stand: Stand) -> tuple[str, str, str, str, str]:
    at = clock(head.created_ms)
    try:
        snapshot = codec.decode_snapshot(head.snapshot)
    except CorruptRecord as error:
        return head.run_id, stand.words, at, "?", f"cannot be read: {error}"
    title = one_line(snapshot.title, 48)
    filed = Filed(snapshot.tenant, snapshot.priority, snapshot.thread)
    if filed != Filed():
        title += f"  [{filed_words(filed)}]"
    if stand.needs == "person":
        title += f"  ⟵ {', '.join(stand.asks)}"
    elif stand.needs == "worker":
        title += f"  ⟵ fsm-agent resume {stand.resume or head.run_id}{current().store_option}"
    if stand.more:
        title += f"  ({stand.more})"
    return head.run_id, stand.words, at, one_line(snapshot.agent, 24), title


@click.command("show")
@click.argument("run_id", metavar="RUN")
@click.option("--at", type=click.IntRange(min=1), metavar="SEQ", help="Only how it stood then.")
@common
def show_command(run_id: str, at: int | None) -> int:
    """Show everything that happened in a run: its journal as a timeline, then totals.

    With --at: the state, budgets, calls and messages as they were after that entry.
    Reads only. The exit code says whether it can be shown, not how the run came out.
    """
    if at is not None:
        replayed = process.run(lambda: replay(run_id, at))
        show_standing(replayed)
        return failures.DONE

    async def look() -> tuple[Sequence[EntryEvent], Result, list[str]]:
        async with looking() as runtime:
            result = await runtime.result(run_id)
            reports = [str(orphan) for orphan in await runtime.orphans(run_id)]
            return await runtime.history(run_id), result, reports

    events, result, reports = process.run(look)
    if current().is_json:
        for event in events:
            put(asjson.line(asjson.event(event)))
        totals = {"totals": totals_of(events), "orphan_reports": reports}
        put(asjson.line(asjson.result(result) | totals))
    else:
        print_run(events, result, reports)
    return failures.DONE


def print_run(events: Sequence[EntryEvent], result: Result, reports: Sequence[str] = ()) -> None:
    """The timeline, how it ended, and the totals, on stdout."""
    created = events[0].record.deltas[0]
    if isinstance(created, Created):
        head = f"run {result.run_id}  {one_line(created.agent, 64)}: {one_line(created.task, 100)}"
        for line in wrapped(head, width_of(sys.stdout)):
            put(line)
    put("")
    print_rows(rows_of(events))
    put("")
    if result.answer is not None:
        for line in wrapped(cleaned(result.answer), width_of(sys.stdout) - 2):
            put(f"  {line}")
        put("")
    for report in reports:
        put(f"  evidence: {one_line(report, 300)}")
    totals = f"{_outcome(result, events)}: {totals_line(totals_of(events))}"
    for line in wrapped(totals, width_of(sys.stdout) - 2):
        put(f"  {line}")


def _outcome(result: Result, events: Sequence[EntryEvent]) -> str:
    """'done', or what else it came to."""
    if result.status == "error" and result.reason == "cancelled":
        return "cancelled"
    if result.status != "done" or not (result.reason or not result.is_completed):
        return result.status
    created = events[0].record.deltas[0]
    why = early(result.reason, created.limits if isinstance(created, Created) else None)
    return f"done ({why})" if result.is_completed else f"not completed ({why})"


def print_rows(rows: Sequence[Row]) -> None:
    """Rows of a timeline, in colour on a terminal."""
    if sys.stdout.isatty():
        _print_coloured(rows)
        return
    for row in rows:
        more = f"  [{row.more}]" if row.more else ""
        put(f"  {row.seq:>4} {row.at:>8}  {row.place:<9} {row.text}{more}")


def _print_coloured(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    table = Table.grid(padding=(0, 1))
    for justify in ("right", "right", "left", "left"):
        table.add_column(justify=justify)
    before = ""
    for row in rows:
        text = Text(row.text, _TONES[row.tone])
        if row.more:
            text.append(f"  {row.more}", "dim")
        seq = row.seq if row.seq != before else ""
        before = row.seq
        place = Text(row.place, _TONES[row.tone] if row.tone == "bad" else "cyan")
        table.add_row(Text(f"  {seq}", "dim"), Text(row.at, "dim"), place, text)
    console.print(table)
