"""`worker`: work on every run that is due."""

from __future__ import annotations

import asyncio
import sys

import click

from checkpoints.address import without_password
from checkpoints.errors import StoreUnavailable
from fsm_agent.capabilities.agent import Agent
from fsm_agent.cli import asjson, failures, process, remembered
from fsm_agent.cli.clean import one_line
from fsm_agent.cli.failures import USAGE, CliError
from fsm_agent.cli.opening import check_model, working
from fsm_agent.cli.process import Stopped, put, say, write
from fsm_agent.cli.settings import common, current
from fsm_agent.run.delta import Resumed
from fsm_agent.run.event import EntryEvent, Event
from fsm_agent.runtime import Result, Runtime
from fsm_agent.worker.local import work_due_once

POLL_S = 0.5
STORE_AWAY_S = 2.0  # between tries while the store is away


@click.command("worker")
@click.option(
    "--agent",
    "paths",
    multiple=True,
    metavar="PATH:NAME",
    help="An agent to work for; may be repeated.  [default: those used with this store here]",
)
@click.option("--once", is_flag=True, help="Work on what is due now, then end.")
@click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(min=0.5),
    metavar="SECONDS",
    help="If this worker dies, others take its run over after so long.  [default: 15]",
)
@common
def worker_command(paths: tuple[str, ...], once: bool, lease_s: float | None) -> int:
    """Work on every run that is due, until SIGTERM or Ctrl-C.

    Any number of workers may share a store: each run has one of them at a time. On SIGTERM the
    commit under way is finished and the run given back, so that another worker goes on at once.
    """
    agents = _agents(paths)
    for agent in agents.values():
        check_model(agent)
    try:
        return process.run(lambda: _work(agents, once, lease_s))
    except Stopped:
        say("worker stopped; what it held was given back.")
        return failures.DONE


def _agents(paths: tuple[str, ...]) -> dict[str, Agent]:
    store = current().store
    found = [(path, remembered.load(path)) for path in paths or remembered.recall_all(store)]
    if not found:
        raise CliError("this worker has no agent to work for. Give --agent FILE.py:NAME.", USAGE)
    agents: dict[str, Agent] = {}
    for path, agent in found:
        if agent.name in agents:
            raise CliError(f"two agents are named {agent.name!r}. Rename one of them.", USAGE)
        agents[agent.name] = agent
        if paths:
            remembered.remember(store, agent, path)
    return agents


async def _work(agents: dict[str, Agent], once: bool, lease_s: float | None) -> int:
    async with working(_hear, lease_s=lease_s) as runtime:
        say(f"worker for {', '.join(agents)} on {without_password(current().store)}")
        if once:
            count = await work_due_once(runtime, agents, on_result=_told)
            say(f"worked on {count} run{'s' if count != 1 else ''}.")
            return failures.DONE
        await _work_forever(runtime, agents)
    return failures.DONE


async def _work_forever(runtime: Runtime, agents: dict[str, Agent]) -> None:
    is_away = False
    while True:
        try:
            await work_due_once(runtime, agents, on_result=_told)
            is_away = False
        except StoreUnavailable as error:
            if not is_away:
                say(f"warning: {one_line(str(error), 300)} Trying on.")
            is_away = True
            await asyncio.sleep(STORE_AWAY_S)
        await asyncio.sleep(POLL_S)


def _hear(event: Event) -> None:
    if current().is_json:
        write(sys.stdout, asjson.line(asjson.event(event)) + "\n")
        return
    if not isinstance(event, EntryEvent):
        return
    for delta in event.record.deltas:
        if isinstance(delta, Resumed):
            word = "taken over" if delta.is_takeover else "taken up"
            say(f"{event.run_id}  {word} at entry {event.seq}, lease {delta.token}")


def _told(result: Result) -> None:
    if current().is_json:
        put(asjson.line(asjson.result(result)))
        return
    words = {
        "done": "done" if result.is_completed else "done, but not completed",
        "error": f"failed ({result.reason}): {one_line(result.message, 200)}",
        "waiting": f"waits for a person: {', '.join(result.asks)}",
    }.get(result.status, result.status)
    put(f"{result.run_id}  {words}")
