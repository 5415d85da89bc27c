"""`consent`: standing consents of a run, to list, to give and to take back."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.clean import one_line
from fsm_agent.cli.opening import looking
from fsm_agent.cli.person import operator
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import Words, common, current
from fsm_agent.cli.terms import auth_of, by_option
from fsm_agent.people import Standing


@click.command("consent")
@click.argument("run_id", metavar="RUN")
@click.option("--tool", metavar="NAME", help="Let its later calls run unasked, in this run only.")
@click.option("--rule", default="", metavar="NAME", help="Only where this rule asks.")
@click.option("--revoke", "consent_id", metavar="ID", help="Take a consent back.")
@click.option("-m", "--reason", default="", type=Words(), help="Why; it goes on record.")
@by_option
@common
def consent_command(
    run_id: str, tool: str | None, rule: str, consent_id: str | None, reason: str, by: str | None
) -> int:
    """List the standing consents of a run, give one, or take one back.

    A consent holds for one tool in one run. It does not stand for a call that needs several
    people, nor where the one who gave it may not decide.
    """
    if tool and consent_id:
        raise click.UsageError("give one of --tool and --revoke.")
    if rule and not tool:
        raise click.UsageError("--rule needs --tool.")
    who = by or operator()

    async def act() -> Sequence[Standing]:
        async with looking() as runtime:
            if tool:
                await runtime.consent(
                    run_id, tool, by=who, rule=rule, reason=reason,
                    channel="cli", auth=auth_of(who),
                )  # fmt: skip
            if consent_id:
                await runtime.revoke(run_id, consent_id, by=who, reason=reason)
            return await runtime.consents(run_id)

    held = process.run(act)
    for each in held:
        put(_line(run_id, each))
    if not held and not current().is_json:
        say(f"run {one_line(run_id)} has no standing consents.")
    return failures.DONE


def _line(run_id: str, held: Standing) -> str:
    if current().is_json:
        told = {"event": "consent", "run_id": run_id}
        return asjson.line(told | msgspec.to_builtins(held))
    rule = f" where {one_line(held.rule, 64)} asks" if held.rule else ""
    why = f": {one_line(held.reason)}" if held.reason else ""
    state = "" if held.is_taken_up else "  (not taken up yet)"
    tool, who = one_line(held.tool, 64), one_line(held.by, 64)
    return f"{held.consent_id}  {tool}{rule}, by {who}{why}{state}"
