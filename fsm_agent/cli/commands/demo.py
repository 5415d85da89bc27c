"""`demo`: a run that survives a real SIGKILL, without a key and without a server to install."""

from __future__ import annotations

import sys

import click

from fsm_agent.cli import failures, process
from fsm_agent.cli.asking import commands_for
from fsm_agent.cli.failures import CliError
from fsm_agent.cli.hints import Hint, say_hints
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import Stopped, put, say
from fsm_agent.cli.settings import current, json_only
from fsm_agent.cli.views import View, view_for


@click.command("demo")
@click.option("--yes", is_flag=True, help="Approve the refund without asking.")
@json_only
def demo_command(yes: bool) -> int:
    """Watch a run survive a real SIGKILL. Needs no key, and about 15 seconds.

    A refund desk works on real files. Its model is scripted; the HTTP client, the store, the
    worker processes and the SIGKILL are real. The exit code is 0 only if every effect happened
    once and the SIGKILL really fell while a tool ran: both are looked up, not assumed.
    """
    from fsm_agent.cli.demo.stage import left_behind, set_up

    if current().is_store_given:
        raise CliError("the demo has a store of its own. Leave --store out.", failures.USAGE)
    stage = set_up()
    current().store = stage.store  # the demo leaves the store of other work alone
    is_terminal = process.is_terminal() and sys.stdout.isatty()
    is_interactive = is_terminal and not yes and not current().is_json
    view = view_for(sys.stdout, is_json=current().is_json)
    try:
        return process.run(lambda: _play(stage, view, is_interactive))
    except Stopped:
        view.rest()
        say("demo stopped, and its worker with it. What it did is kept:")
        say_hints([
            Hint(f"fsm-agent list --store {stage.store}", "how its run stands"),
            Hint(f"rm -r {stage.folder}", "throw it away"),
        ])  # fmt: skip
        raise
    finally:
        view.rest()
        if count := left_behind(stage):
            folders = "1 older demo is" if count == 1 else f"{count} older demos are"
            say(f"note: {folders} in {stage.folder.parent} too (fsm-agent-demo-*).")


async def _play(stage: object, view: View, is_interactive: bool) -> int:
    from fsm_agent.cli.demo.play import Play
    from fsm_agent.cli.demo.stage import Stage

    assert isinstance(stage, Stage)
    if not current().is_json:
        _print_opening(stage.folder)
    code = await Play(stage, view, is_interactive).play()
    if code == failures.WAITING:
        async with looking() as runtime:
            requests = await runtime.requests()
        say("left waiting. It keeps for as long as you like:")
        say_hints(commands_for(requests))
    return code


def _print_opening(folder: object) -> None:
    put("")
    put(click.style("fsm-agent demo", bold=True) if sys.stdout.isatty() else "fsm-agent demo")
    put("A refund desk. Its model is scripted; the client, the store, the processes and")
    put("the SIGKILL are real. Everything is in")
    put(f"  {folder}")
    put("")
