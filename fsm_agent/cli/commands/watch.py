"""`watch`: a run live, from any process."""

from __future__ import annotations

import sys

import click

from checkpoints.model import RunId
from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.asking import commands_for
from fsm_agent.cli.clean import cleaned, one_line
from fsm_agent.cli.hints import say_hints
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import say
from fsm_agent.cli.settings import common, current
from fsm_agent.cli.views import View, view_for
from fsm_agent.run.event import ParkedEvent
from fsm_agent.runtime import Runtime


@click.command("watch")
@click.argument("run_id", metavar="RUN")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Leave out entries up to it.")
@common
def watch_command(run_id: str, after: int) -> int:
    """Watch a run live until it is over: what is on record, and thinking as it streams.

    Ctrl-C ends the watching, not the run. Exit code 0 if the run is done, 1 if it failed.
    """
    view = view_for(sys.stdout, is_json=current().is_json)
    try:
        return process.run(lambda: _watch(run_id, after, view))
    finally:
        view.rest()


async def _watch(run_id: str, after: int, view: View) -> int:
    async with looking() as runtime:
        await runtime.store.head(RunId(run_id))
        for entry in await runtime.history(run_id) if after else ():
            if entry.seq <= after:
                view.recall(entry)
        async for event in runtime.watch(run_id, after=after):
            view.hear(event)
            if isinstance(event, ParkedEvent):
                await _say_parked(runtime, event)
        view.rest()
        result = await runtime.result(run_id)
    if current().is_json:
        process.put(asjson.line(asjson.result(result)))
    elif result.answer is not None and not view.has_answer:
        process.put(cleaned(result.answer))
    if result.status == "error":
        say(f"error: run {run_id} failed ({result.reason}): {one_line(result.message, 500)}")
    return failures.DONE if result.is_completed else failures.FAILED


async def _say_parked(runtime: Runtime, event: ParkedEvent) -> None:
    if event.status == "waiting":
        say_hints(commands_for(await runtime.requests(event.run_id)))
