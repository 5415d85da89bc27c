"""`say` and `cancel`: what a person may tell a run besides decisions."""

from __future__ import annotations

import click

from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.opening import looking
from fsm_agent.cli.person import operator
from fsm_agent.cli.process import put_done, say
from fsm_agent.cli.settings import Words, common, current, file_option
from fsm_agent.errors import UsageError


@click.command("say")
@click.argument("run_id", metavar="RUN")
@click.argument("text", type=Words())
@click.option("--by", metavar="NAME", help="Who says it.  [default: the OS user]")
@file_option
@common
def say_command(run_id: str, text: str, by: str | None, files: tuple[str, ...]) -> int:
    """Give a run a further message of its user, for its next turn."""
    if not text.strip():
        raise UsageError("the message is empty. Say something.")

    async def tell() -> None:
        async with looking() as runtime:
            await runtime.say(run_id, text, by=by or operator(), files=files)

    process.run(tell)
    _told({"event": "said", "run_id": run_id}, f"{run_id} will hear it at its next turn")
    return failures.DONE


@click.command("cancel")
@click.argument("run_id", metavar="RUN")
@click.option("-m", "--reason", default="", type=Words(), help="Why; it goes on record.")
@click.option("--by", metavar="NAME", help="Who cancels.  [default: the OS user]")
@click.option(
    "--now/--graceful",
    "is_now",
    default=True,
    help="Cut off what runs, or let it come to its end first.  [default: now]",
)
@common
def cancel_command(run_id: str, reason: str, by: str | None, is_now: bool) -> int:
    """End a run, with the runs that work for it. Nothing is started after that.

    What was running is cut off: its tools are cancelled and the model's reply is dropped. With
    --graceful both come to their end, and the run ends at the commit point after that; --now later
    on still cuts it off.
    """

    async def cancel() -> bool:
        async with looking() as runtime:
            return await runtime.cancel(
                run_id, by=by or operator(), reason=reason, is_graceful=not is_now
            )

    is_first = process.run(cancel)
    word = "will be cancelled" if is_first else "was cancelled already"
    _told({"event": "cancelled", "run_id": run_id, "is_first": is_first}, f"{run_id} {word}")
    when = "at once" if is_now else "once what runs has ended"
    say(f"whoever works on it does so {when}; else: fsm-agent resume {run_id}"
        f"{current().store_option}")  # fmt: skip
    return failures.DONE


def _told(value: dict[str, object], words: str) -> None:
    put_done(asjson.line(value) if current().is_json else words)
