"""The demo's last page: the timeline, what took effect, and whether all of it is true."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fsm_agent.cli.clean import cleaned, wrapped
from fsm_agent.cli.commands.look import print_rows
from fsm_agent.cli.hints import Hint, laid_out, width_of
from fsm_agent.cli.process import put
from fsm_agent.run.event import EntryEvent
from fsm_agent.runtime import Result
from fsm_agent.telling.timeline import Row, rows_of

from .stage import Stage
from .verdict import Check, Effect


def close(
    stage: Stage,
    result: Result,
    events: Sequence[EntryEvent],
    effects: Sequence[Effect],
    checks: Sequence[Check],
    *,
    has_answer: bool,
) -> None:
    """Print the last page on stdout."""
    if not has_answer:
        put("")
        for line in wrapped(cleaned(result.answer or ""), width_of(sys.stdout)):
            put(line)
    _head("What is on record")
    rows = [row for row in rows_of(events) if not row.text.startswith("→")]
    print_rows([row._replace(place="✖ SIGKILL") if _is_death(row) else row for row in rows])
    _head("What happened outside, counted in the bank's ledger")
    for effect in effects:
        _print_effect(effect)
    _head("Is it true?")
    for check in checks:
        _print_check(check)
    _head("Look for yourself")
    for command in (
        f"fsm-agent show {result.run_id} --store {stage.store}",
        f"fsm-agent graph {result.run_id} --store {stage.store}",
        f"cat {stage.ledger}",
    ):
        for line in laid_out(Hint(command), width_of(sys.stdout) - 2):
            put(f"  {line}")
    put("")


def _is_death(row: Row) -> bool:
    return row.place.startswith("✖")  # there is one, and `checks` say what it was


def _head(words: str) -> None:
    put("")
    put(_styled(words, bold=True) if sys.stdout.isatty() else words)
    put("")


def _print_effect(effect: Effect) -> None:
    times = "time" if effect.sent == 1 else "times"
    key = f"   key {effect.keys[0][:8]}" if len(effect.keys) == 1 and effect.sent > 1 else ""
    is_right = effect.took_effect == effect.expected
    took = _styled(f"took effect {effect.took_effect}", fg="green" if is_right else "red")
    put(f"  {effect.name:<20}  sent {effect.sent} {times:<5}   {took}{key}")


def _print_check(check: Check) -> None:
    mark = _styled("✓", fg="green") if check.is_so else _styled("✗", fg="red")
    put(f"  {mark} {check.words}" + ("" if check.is_so else f": {check.found}"))


def _styled(text: str, *, fg: str | None = None, bold: bool = False) -> str:
    import click

    return click.style(text, fg=fg, bold=bold) if sys.stdout.isatty() else text
