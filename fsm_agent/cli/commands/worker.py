"""`worker`: work on every run that is due."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import click

from checkpoints.address import without_password
from checkpoints.errors import StoreUnavailable
from checkpoints.model import RunId
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
from fsm_agent.worker import fleet
from fsm_agent.worker.broker import FORMS, check_broker
from fsm_agent.worker.fleet import no_hints
from fsm_agent.worker.pool import Settings, Worker
from fsm_agent.worker.services import Service


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
    "--runs",
    type=click.IntRange(min=1),
    default=Settings().runs,
    show_default=True,
    help="Runs that this process works on at once.",
)
@click.option(
    "--broker",
    metavar="URL",
    help=f"Be woken by messages, of a fleet on many machines: {FORMS}  [default: by the store]",
)
@click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(min=0.5),
    metavar="SECONDS",
    help="If this worker dies, others take its runs over after so long.  [default: 15]",
)
@common
def worker_command(
    paths: tuple[str, ...], once: bool, runs: int, broker: str | None, lease_s: float | None
) -> int:
    """Work on every run that is due, until SIGTERM or Ctrl-C.

    Any number of workers may share a store: each run has one of them at a time. On SIGTERM and
    Ctrl-C nothing more is taken, the commits under way are finished and the runs given back, so
    that other workers go on at once. A second one ends the process where it stands.
    """
    agents = _agents(paths)
    for agent in agents.values():
        check_model(agent)
    if broker:
        check_broker(broker)
    settings = Settings(runs=runs)
    try:
        return process.run(lambda: _work(agents, settings, broker, once, lease_s))
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


async def _work(
    agents: dict[str, Agent],
    settings: Settings,
    broker: str | None,
    once: bool,
    lease_s: float | None,
) -> int:
    async with working(_hear, lease_s=lease_s) as runtime:
        say(f"worker for {', '.join(agents)} on {without_password(current().store)}")
        if once:
            worker = Worker(runtime, agents, settings=settings, on_result=_told)
            count = await worker.work_until_idle()
            say(f"worked on {count} run{'s' if count != 1 else ''}.")
            return failures.DONE
        worker = Worker(
            runtime,
            agents,
            settings=settings,
            hints=no_hints if broker else None,
            services=_services(runtime, broker, lambda run_id: worker.offer(run_id)),
            on_result=_told,
            on_store_away=_store_away,
        )
        await worker.work()
    return failures.DONE


def _services(
    runtime: Runtime, broker: str | None, offer: Callable[[RunId], Awaitable[None]]
) -> list[Service]:
    """What goes on next to the runs, for as long as the worker lives."""
    services: list[Service] = []
    if broker:
        services += fleet.services(broker, runtime.store, owner=runtime.owner, offer=offer)
    return services


def _store_away(error: StoreUnavailable) -> None:
    say(f"warning: {one_line(str(error), 300)} Trying on.")


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
