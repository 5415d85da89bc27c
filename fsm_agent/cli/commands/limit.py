"""`limit`: how many runs of an agent or a tenant workers may have at once."""

from __future__ import annotations

from collections.abc import Mapping

import click

from checkpoints.schedule import Limit
from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.clean import one_line
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import Words, common, current
from fsm_agent.errors import UsageError

KINDS = ("agent:", "tenant:")


@click.command("limit")
@click.argument("group", required=False, type=Words())
@click.option("--at-once", type=click.IntRange(min=1), help="Runs that workers have at once.")
@click.option("--per-minute", type=click.IntRange(min=1), help="Runs that begin in 60 seconds.")
@click.option("--none", "is_none", is_flag=True, help="Take the group's limits away.")
@common
def limit_command(
    group: str | None, at_once: int | None, per_minute: int | None, is_none: bool
) -> int:
    """List the limits of this store, or set those of a group, for all workers.

    GROUP is agent:NAME or tenant:NAME; agent:* and tenant:* hold for each one that has no limits
    of its own. What is set replaces what was set before. Runs that a person works on by hand
    (`run`, `resume`) neither wait for a limit nor count.

    \b
    fsm-agent limit tenant:acme --at-once 4 --per-minute 60
    """
    limit = Limit(at_once=at_once, per_minute=per_minute)
    if group is None and (limit != Limit() or is_none):
        raise UsageError("name the group: agent:NAME or tenant:NAME.")
    if group is not None:
        _check(group, limit, is_none=is_none)
    for name, each in sorted(process.run(lambda: _limits(group, limit)).items()):
        _tell(name, each)
    return failures.DONE


def _check(group: str, limit: Limit, *, is_none: bool) -> None:
    if not group.startswith(KINDS) or group in KINDS:
        raise UsageError(f"{group!r} is no group. Use agent:NAME or tenant:NAME, or * as the name.")
    if (limit == Limit()) != is_none:
        raise UsageError("say what the limit is, with --at-once or --per-minute, or say --none.")


async def _limits(group: str | None, limit: Limit) -> Mapping[str, Limit]:
    async with looking() as runtime:
        if group is not None:
            await runtime.store.set_limit(group, limit)
        found = await runtime.store.limits()
    if not found and not current().is_json:
        say("no limits here: workers take whatever is due, up to --runs each.")
    return found


def _tell(group: str, limit: Limit) -> None:
    if current().is_json:
        told = {"at_once": limit.at_once, "per_minute": limit.per_minute}
        put(asjson.line({"event": "limit", "group": group} | told))
        return
    words = [f"{limit.at_once} at once"] if limit.at_once else []
    words += [f"{limit.per_minute} a minute"] if limit.per_minute else []
    put(f"{one_line(group, 200)}  {', '.join(words)}")
