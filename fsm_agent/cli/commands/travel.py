"""`fork` and `replay`: go another way from an entry, and rebuild a run from its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import click
import msgspec

from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.clean import one_line
from fsm_agent.cli.opening import looking
from fsm_agent.cli.person import operator
from fsm_agent.cli.process import put_done, say
from fsm_agent.cli.settings import Words, common, current
from fsm_agent.cli.standing import replay, show_standing
from fsm_agent.engine.forking import Fork
from fsm_agent.runtime import new_run_id


@click.command("fork")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--at", type=click.IntRange(min=1), metavar="SEQ", help="[default: the last possible]"
)
@click.option("--id", "new_id", metavar="NEW", help="Its id; a repeat with it is the same fork.")
@click.option("--say", "words", type=Words(), default="", help="A further message of the user.")
@click.option("--detach", is_flag=True, help="Let any worker take it up at once.")
@common
def fork_command(run_id: str, at: int | None, new_id: str | None, words: str, detach: bool) -> int:
    """Begin a new run with the entries 1 to SEQ of another one, whatever became of that.

    What is on record is not done again. What follows is done anew, and may have effects that the
    other run had already: stderr says which. The fork waits for `fsm-agent resume`.
    """

    async def made() -> Fork:
        async with looking() as runtime:
            return await runtime.fork(
                run_id,
                at=at,
                new_id=new_run_id() if new_id is None else new_id,
                say=words,
                by=operator(),
                is_due=detach,
            )

    fork = process.run(made)
    told = {"event": "forked"} | msgspec.structs.asdict(fork)
    put_done(asjson.line(told) if current().is_json else fork.run_id)
    _tell(fork, is_due=detach)
    return failures.DONE


def _tell(fork: Fork, *, is_due: bool) -> None:
    known = "" if fork.is_new else " (it was there already)"
    say(f"forked from {fork.origin} after entry {fork.seq}{known}")
    if fork.done:
        say(f"  not done again: {_counted(fork.done)}")
    if fork.in_doubt:
        say(f"  in doubt, a person is asked: {_counted(fork.in_doubt)}")
    if fork.asked_again:
        say(f"  asked again, what was agreed counts there only: {_counted(fork.asked_again)}")
    if fork.may_happen_again:
        say(f"warning: after entry {fork.seq} that run started {_counted(fork.may_happen_again)}.")
        say("  The fork may do so too, under keys of its own: these effects may happen twice.")
    else:
        say("warning: from here on the fork acts by itself, under keys of its own.")
    option = current().store_option
    if is_due:
        say(f"A worker does it: fsm-agent worker{option}")
    else:
        say(f"Go on: fsm-agent resume {fork.run_id}{option}")


def _counted(tools: Iterable[str]) -> str:
    return ", ".join(f"{one_line(name, 64)} ×{n}" for name, n in Counter(tools).items())


@click.command("replay")
@click.argument("run_id", metavar="RUN")
@click.option("--at", type=click.IntRange(min=1), metavar="SEQ", help="[default: the last entry]")
@common
def replay_command(run_id: str, at: int | None) -> int:
    """Rebuild a run from its journal alone, and compare it with the head that lists read.

    The hash chain of the whole journal is verified first. Writes nothing and starts nothing. The
    exit code is 1 where the head says something else than the journal.
    """
    replayed = process.run(lambda: replay(run_id, at))
    show_standing(replayed)
    for difference in replayed.differences:
        say(f"error: the head of run {run_id} differs: {one_line(difference, 300)}")
    if not replayed.differences:
        is_whole = replayed.run.seq == replayed.last_seq
        compared = ", the head says the same" if is_whole else ""
        say(f"  the hash chain of {replayed.last_seq} entries is whole{compared}")
    return failures.FAILED if replayed.differences else failures.DONE
