"""`comment`, `claim` and `release`: what people say about a request without deciding it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.clean import one_line
from fsm_agent.cli.opening import looking
from fsm_agent.cli.person import operator
from fsm_agent.cli.process import put_done
from fsm_agent.cli.settings import Words, common, current
from fsm_agent.cli.terms import by_option, hash_option
from fsm_agent.runtime import Runtime


@click.command("comment")
@click.argument("run_id", metavar="RUN")
@click.argument("ask_id", metavar="ASK")
@click.argument("text", type=Words())
@hash_option
@by_option
@common
def comment_command(run_id: str, ask_id: str, text: str, digest: str | None, by: str | None) -> int:
    """Say something about an open request, such as a question back.

    It decides nothing and wakes nobody. It is shown with the request.
    """
    who = by or operator()
    return _do(
        lambda runtime: runtime.comment(run_id, ask_id, text, by=who, digest=digest),
        {"event": "commented", "run_id": run_id, "ask_id": ask_id, "by": who},
        f"noted with request {one_line(ask_id)}",
    )


@click.command("claim")
@click.argument("run_id", metavar="RUN")
@click.argument("ask_id", metavar="ASK")
@hash_option
@by_option
@common
def claim_command(run_id: str, ask_id: str, digest: str | None, by: str | None) -> int:
    """Say that you look at a request, so that others do not do it twice.

    Others see it, and may still decide.
    """
    who = by or operator()
    return _do(
        lambda runtime: runtime.claim(run_id, ask_id, by=who, digest=digest),
        {"event": "claimed", "run_id": run_id, "ask_id": ask_id, "by": who},
        f"request {one_line(ask_id)} is claimed by {one_line(who, 64)}",
    )


@click.command("release")
@click.argument("run_id", metavar="RUN")
@click.argument("ask_id", metavar="ASK")
@hash_option
@by_option
@common
def release_command(run_id: str, ask_id: str, digest: str | None, by: str | None) -> int:
    """Take your claim of a request back."""
    who = by or operator()
    return _do(
        lambda runtime: runtime.release(run_id, ask_id, by=who, digest=digest),
        {"event": "released", "run_id": run_id, "ask_id": ask_id, "by": who},
        f"request {one_line(ask_id)} is free",
    )


def _do(act: Callable[[Runtime], Awaitable[None]], told: dict[str, object], words: str) -> int:
    async def main() -> None:
        async with looking() as runtime:
            await act(runtime)

    process.run(main)
    put_done(asjson.line(told) if current().is_json else words)
    return failures.DONE
