"""`check-deploy`: what new code of agents would meet in the store."""

from __future__ import annotations

import click
import msgspec

from fsm_agent.cli import asjson, failures, process, remembered
from fsm_agent.cli.clean import one_line
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import common, current
from fsm_agent.versions import Checked


@click.command("check-deploy")
@click.argument("paths", metavar="FILE.py:NAME …", nargs=-1, required=True)
@common
def check_deploy_command(paths: tuple[str, ...]) -> int:
    """Find live runs and open requests that the code of these agents cannot serve, and say why.

    Run it with the new code, on the store of the old one, before the deploy. Reads only. The exit
    code is 1 where it finds any.
    """
    agents = [remembered.load(path) for path in paths]

    async def look() -> Checked:
        async with looking() as runtime:
            return await runtime.check_deploy(agents)

    checked = process.run(look)
    for found in checked.obstacles:
        if current().is_json:
            put(asjson.line({"event": "obstacle"} | msgspec.structs.asdict(found)))
        else:
            put(f"{found.run_id}  {one_line(found.agent, 40)}  {one_line(found.reason, 500)}")
    runs = len({found.run_id for found in checked.obstacles})
    if current().is_json:
        counts = {"runs": checked.runs, "requests": checked.requests, "others": checked.others}
        put(asjson.line({"event": "checked"} | counts | {"cannot_be_served": runs}))
    others = f"; {checked.others} of other agents were not looked at" if checked.others else ""
    say(
        f"live runs: {checked.runs}, open requests: {checked.requests}, cannot be served as they"
        f" stand: {runs}{others}"
    )
    return failures.FAILED if checked.obstacles else failures.DONE
