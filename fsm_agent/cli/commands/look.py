"""`list` and `show`: runs in a table, and one run as a timeline."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import get_args

import click

from checkpoints.model import Head, Status
from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.clean import cleaned, one_line
from fsm_agent.cli.failures import clock
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import common, current
from fsm_agent.cli.timeline import Row, rows_of, totals_line, totals_of
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.event import EntryEvent
from fsm_agent.runtime import Result

_STYLES = {"done": "green", "error": "red", "waiting": "yellow", "running": "cyan"}
_TONES = {"good": "green", "bad": "bold red", "warn": "yellow", "quiet": "dim", "plain": ""}


@click.command("list")
@click.option("--status", type=click.Choice(get_args(Status)), help="Only runs of this status.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True)
@common
def list_command(status: Status | None, limit: int) -> int:
    """List runs, newest first."""

    async def heads() -> Sequence[Head]:
        async with looking() as runtime:
            return await runtime.runs(status=status, limit=limit)

    found = process.run(heads)
    if current().is_json:
        for head in found:
            put(asjson.line(asjson.head(head)))
    elif not found:
        say('no runs here. Start one: fsm-agent run --agent FILE.py:NAME "TASK"')
    else:
        _print_list(found)
    return failures.DONE


def _print_list(heads: Sequence[Head]) -> None:
    rows = [_list_row(head) for head in heads]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    is_terminal = sys.stdout.isatty()
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        if is_terminal and (style := _STYLES.get(row[1])):
            cells[1] = click.style(cells[1], fg=style)
        put("  ".join([*cells, row[4]]).rstrip())


def _list_row(head: Head) -> tuple[str, str, str, str, str]:
    try:
        snapshot = codec.decode_snapshot(head.snapshot)
    except CorruptRecord as error:
        return head.run_id, head.status, clock(head.created_ms), "?", f"cannot be read: {error}"
    title = one_line(snapshot.title, 48)
    if head.status == "waiting":
        title += f"  ⟵ {', '.join(snapshot.asks)}"
    elif head.status == "error":
        title += f"  ({one_line(snapshot.ending, 40)})"
    return head.run_id, head.status, clock(head.created_ms), one_line(snapshot.agent, 24), title


@click.command("show")
@click.argument("run_id", metavar="RUN")
@common
def show_command(run_id: str) -> int:
    """Show everything that happened in a run: its journal as a timeline, then totals.

    Reads only. The exit code says whether it can be shown, not how the run came out.
    """

    async def look() -> tuple[Sequence[EntryEvent], Result, list[str]]:
        async with looking() as runtime:
            result = await runtime.result(run_id)
            orphans = await runtime.store.orphans(run_id)  # type: ignore[arg-type]
            reports = [raw.decode(errors="replace") for raw in orphans]
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
    from fsm_agent.run.delta import Created

    created = events[0].record.deltas[0]
    if isinstance(created, Created):
        put(f"run {result.run_id}  {one_line(created.agent, 64)}: {one_line(created.task, 100)}")
    put("")
    print_rows(rows_of(events))
    put("")
    if result.answer is not None:
        for line in cleaned(result.answer).splitlines():
            put(f"  {line}")
        put("")
    for report in reports:
        put(f"  evidence: {one_line(report, 300)}")
    put(f"  {result.status}: {totals_line(totals_of(events))}")


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
