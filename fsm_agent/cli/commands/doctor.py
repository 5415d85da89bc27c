"""`doctor`: whether this machine, the store and the settings can keep what is promised."""

from __future__ import annotations

import sys
import textwrap
from time import monotonic

import click

from checkpoints.address import parse
from checkpoints.errors import CheckpointError
from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.hints import width_of
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import put
from fsm_agent.cli.settings import common, current
from fsm_agent.telling import checks
from fsm_agent.telling.checks import Check

_ORDER = ("green", "yellow", "red")
_GUTTER = 23  # cells before the words


@click.command("doctor")
@common
def doctor_command() -> int:
    """Check this machine, the store and the settings, and say what can be relied on.

    green is fine, yellow works with a limit that is named, red breaks a promise. Exit code 1 if
    anything is red.
    """
    found = [*checks.machine(), *process.run(_store), checks.model(), checks.webhooks()]
    worst = max((check.level for check in found), key=_ORDER.index)
    for check in found:
        _print(check)
    if current().is_json:
        put(asjson.line({"event": "doctor", "level": worst}))
    return failures.FAILED if worst == "red" else failures.DONE


async def _store() -> list[Check]:
    address = parse(current().store)
    try:
        async with looking() as runtime:
            since = monotonic()
            await runtime.store.now_ms()
            took_ms = round((monotonic() - since) * 1000)
            return checks.store(await runtime.store.facts(), address, took_ms)
    except CheckpointError as error:
        return [Check("store", "red", str(error))]


def _print(check: Check) -> None:
    if current().is_json:
        put(asjson.line({"event": "check"} | check._asdict()))
        return
    level = check.level.ljust(6)
    if sys.stdout.isatty():
        level = click.style(level, fg=check.level)
    room = width_of(sys.stdout) - _GUTTER
    lines = textwrap.wrap(check.words, max(room, 20), break_on_hyphens=False) or [""]
    put(f"  {level}  {check.name:<11}  {lines[0]}")
    for line in lines[1:]:
        put(" " * _GUTTER + line)
