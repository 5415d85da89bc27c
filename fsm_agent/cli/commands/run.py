"""`run`, `start` and `resume`: begin a run, work on it until it is over or waits for a person."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

import click
import msgspec

from checkpoints.model import Head, RunId
from fsm_agent.capabilities.agent import Agent
from fsm_agent.cli import asjson, failures, process, remembered
from fsm_agent.cli.ending import end
from fsm_agent.cli.filing import Filing, filing_options
from fsm_agent.cli.opening import check_model, looking
from fsm_agent.cli.person import operator
from fsm_agent.cli.process import put_done, say
from fsm_agent.cli.settings import Words, common, current, file_option
from fsm_agent.cli.shift import Shift
from fsm_agent.run import codec
from fsm_agent.run.limits import Limits
from fsm_agent.runtime import Result, Runtime
from fsm_agent.telling.kin import Kin

F = TypeVar("F", bound=Callable[..., Any])

_agent_option = click.option(
    "--agent", "path", required=True, metavar="PATH:NAME", help="The agent to run."
)
_run_id_option = click.option(
    "--run-id", metavar="ID", help="The run's id; a repeat with it is the same run."
)
_turns_option = click.option(
    "--max-turns",
    type=click.IntRange(min=1),
    help="Model replies; at the limit up to 2 more are used to finish.  [default: 40]",
)
_tokens_option = click.option(
    "--max-tokens", type=click.IntRange(min=1), help="Tokens, prompts included."
)
_money_option = click.option(
    "--max-money", type=click.FloatRange(min=0), help="In the currency of its prices."
)
_seconds_option = click.option(
    "--max-seconds", type=click.FloatRange(min=0.1), help="Time somebody works on it."
)
_lease_option = click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(min=0.5),
    metavar="SECONDS",
    help="If this process dies, others take the run over after so long.  [default: 15]",
)


def _beginning(command: F) -> F:
    """The options of a command that begins a run."""
    limits = (_seconds_option, _money_option, _tokens_option, _turns_option)
    for option in (
        filing_options,
        file_option,
        *limits,
        _run_id_option,
        click.argument("task", type=Words()),
    ):
        command = option(command)
    return _agent_option(command)


@click.command("run")
@_beginning
@click.option("--detach", is_flag=True, help="Only put it on record, as `start` does.")
@_lease_option
@common
def run_command(
    path: str,
    task: str,
    run_id: str | None,
    max_turns: int | None,
    max_tokens: int | None,
    max_money: float | None,
    max_seconds: float | None,
    files: tuple[str, ...],
    detach: bool,
    lease_s: float | None,
    **filing: Unpack[Filing],
) -> int:
    """Start a run of an agent and work on it.

    TASK is what the agent should do; '-' reads it from stdin. The agent's file is imported, so it
    must be code that you trust. The answer goes to stdout, what happens on the way to stderr.

    \b
    fsm-agent run --agent examples/repo_report.py:agent "What is this project?"
    """
    text = _read_stdin() if task == "-" else task
    agent = remembered.load(path)
    given = {"turns": max_turns, "tokens": max_tokens, "money": max_money, "wall_s": max_seconds}
    limits = _limits(agent.limits, given)
    if detach:
        return process.run(lambda: _put_on_record(agent, path, text, run_id, limits, files, filing))
    check_model(agent)
    return Shift(agent, run_id or "", path, lease_s).work(
        lambda runtime: runtime.start(
            agent, text, run_id=run_id, limits=limits, requester=operator(), files=files, **filing
        )
    )


@click.command("start")
@_beginning
@common
def start_command(
    path: str,
    task: str,
    run_id: str | None,
    max_turns: int | None,
    max_tokens: int | None,
    max_money: float | None,
    max_seconds: float | None,
    files: tuple[str, ...],
    **filing: Unpack[Filing],
) -> int:
    """Put a run on record and print its id: workers do the rest.

    It is durable once the id is printed. TASK '-' reads the task from stdin.

    \b
    fsm-agent start --agent desk.py:agent --tenant acme --thread case-7 --on-busy queue "Hello"
    """
    text = _read_stdin() if task == "-" else task
    agent = remembered.load(path)
    given = {"turns": max_turns, "tokens": max_tokens, "money": max_money, "wall_s": max_seconds}
    limits = _limits(agent.limits, given)
    return process.run(lambda: _put_on_record(agent, path, text, run_id, limits, files, filing))


@click.command("resume")
@click.argument("run_id", metavar="RUN")
@click.option("--agent", "path", metavar="PATH:NAME", help="Its agent.  [default: as remembered]")
@click.option("--wait", is_flag=True, help="Wait while another worker holds it.")
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Go on although the agent's code has changed, also where it cannot serve an open call.",
)
@_lease_option
@common
def resume_command(
    run_id: str, path: str | None, wait: bool, accept_changes: bool, lease_s: float | None
) -> int:
    """Go on with a run, whoever worked on it before.

    What is on record is not done again. A run that another worker holds is left to it; once that
    worker dies, its lease runs out and the run can be taken over. With --accept-changes your name
    goes on record; a call whose tool is gone ends without a result, or is put before a person.
    """
    ended, agent = process.run(lambda: _find(run_id, path))
    if agent is None:
        return end(ended)
    check_model(agent)

    async def same(runtime: Runtime) -> str:
        return run_id

    by = operator() if accept_changes else ""
    shift = Shift(agent, run_id, path, lease_s, is_patient=wait, accept_changes_by=by)
    return shift.work(same)


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        words = f"the task on stdin is not UTF-8 (byte {error.start + 1}). Convert it first."
        raise failures.CliError(words, failures.USAGE) from error


def _limits(limits: Limits, given: dict[str, float | None]) -> Limits:
    changed = {name: value for name, value in given.items() if value is not None}
    return msgspec.structs.replace(limits, **changed)


async def _put_on_record(
    agent: Agent,
    path: str,
    task: str,
    run_id: str | None,
    limits: Limits,
    files: tuple[str, ...],
    filing: Filing,
) -> int:
    async with looking() as runtime:
        begun = await runtime.start(
            agent, task, run_id=run_id, limits=limits, requester=operator(), files=files, **filing
        )
        remembered.remember(current().store, agent, path, begun)
        put_done(asjson.line({"event": "created", "run_id": begun}) if current().is_json else begun)
    say(f"on record. A worker does it: fsm-agent worker{current().store_option}")
    return failures.DONE


async def _find(run_id: str, path: str | None) -> tuple[Result, Agent | None]:
    """How the run stands, and its agent unless it is over."""
    async with looking() as runtime:
        result = await runtime.result(run_id)
        if result.status in ("done", "error"):
            return result, None
        head = await runtime.store.head(RunId(run_id))
        name = codec.decode_snapshot(head.snapshot).agent
        above = await Kin(runtime.store).above(head)
    if path is None:
        way_on = _way_on_of_child(above[0], above[-1]) if above else ""
        return result, remembered.recall(current().store, run_id, name, way_on=way_on)
    agent = remembered.load(path)
    if agent.name != name:
        words = f"run {run_id!r} belongs to the agent {name!r}, not to {agent.name!r}."
        raise failures.CliError(f"{words} Name the right one with --agent.", failures.USAGE)
    return result, agent


def _way_on_of_child(parent: Head, top: Head) -> str:
    resume = f"fsm-agent resume {top.run_id}{current().store_option}"
    return f"The worker of run {parent.run_id}, for which it works, drives it: {resume}."
