"""`doctor`: whether this machine, the store and the settings can keep what is promised."""

from __future__ import annotations

import sys
import textwrap
from time import monotonic

import click

from checkpoints import acl, connect
from checkpoints.address import parse
from checkpoints.errors import CheckpointError
from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.hints import width_of
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import common, current
from fsm_agent.telling import checks
from fsm_agent.telling.checks import Check

_ORDER = ("green", "yellow", "red")
_GUTTER = 23  # cells before the words


@click.command("doctor")
@click.option(
    "--acl", "is_acl", is_flag=True, help="Only print the rules of a server's user for it."
)
@click.option(
    "--load-scripts", is_flag=True, help="Only give the server the scripts of this program."
)
@common
def doctor_command(is_acl: bool, load_scripts: bool) -> int:
    """Check this machine, the store and the settings, and say what can be relied on.

    green is fine, yellow works with a limit that is named, red breaks a promise. Exit code 1 if
    anything is red.
    """
    if is_acl:
        return _print_acl()
    if load_scripts:
        process.run(lambda: connect.load_scripts(current().store))
        say("the scripts are loaded.")
        return failures.DONE
    found = [*checks.machine(), *process.run(_store), checks.model(), checks.webhooks()]
    worst = max((check.level for check in found), key=_ORDER.index)
    for check in found:
        _print(check)
    if current().is_json:
        put(asjson.line({"event": "doctor", "level": worst}))
    return failures.FAILED if worst == "red" else failures.DONE


def _print_acl() -> int:
    """Rules as they go into users.acl, or behind ACL SETUSER. Nothing is asked of the server."""
    address = parse(current().store)
    more: tuple[str, ...] = ("cluster|slots", "asking") if address.kind == "cluster" else ()
    if address.options.get("durability", "").startswith("disk"):
        more = (*more, "waitaof")
    namespace = address.options.get("namespace", "fsm")
    for words, name, rules in (
        ("workers, people, lists", "agents", acl.rules(namespace, more=more)),
        ("the same for a user that runs only what the loader has loaded", "agents-strict",
         acl.rules(namespace, loads_scripts=False, more=more)),
        ("the loader, after each start of a server: doctor --load-scripts", "agents-loader",
         acl.loader_rules()),
    ):  # fmt: skip
        line = " ".join(["user", name, ">PASSWORD", *rules])
        if current().is_json:
            put(asjson.line({"event": "acl", "user": name, "rules": rules}))
        else:
            put(f"# {words}")
            put(line)
    return failures.DONE


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
