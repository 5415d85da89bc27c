"""`approve`, `reject`, `edit`, `answer` and `settle`: a person's decision on a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from checkpoints.errors import AskNotFound
from checkpoints.model import RunId
from fsm_agent.capabilities.agent import Agent
from fsm_agent.cli import asjson, asking, failures, process, remembered
from fsm_agent.cli.asking import Choice
from fsm_agent.cli.clean import one_line
from fsm_agent.cli.failures import FAILED, USAGE, CliError, decided_line
from fsm_agent.cli.opening import looking
from fsm_agent.cli.person import operator
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import Words, common, current
from fsm_agent.cli.terms import auth_of
from fsm_agent.engine.decisions import VERBS
from fsm_agent.run import codec
from fsm_agent.runtime import Request, Runtime
from fsm_agent.telling.words import RULED_WORDS
from fsm_agent.waiting import meant

F = TypeVar("F", bound=Callable[..., Any])
_HASH = re.compile(r"[0-9a-f]{4,64}")


def _decision(command: F) -> F:
    for option in (
        click.option("--by", metavar="NAME", help="Who decides.  [default: the OS user]"),
        click.option("--hash", "prefix", metavar="PREFIX", help="4 or more digits that must fit."),
        click.argument("ask_id", metavar="[ASK]", required=False),
        click.argument("run_id", metavar="RUN"),
    ):
        command = option(command)
    return common(command)


@click.command("approve")
@click.option("--always", is_flag=True, help="Later calls that the rule asks about as well.")
@click.option("-m", "--reason", default="", type=Words(), help="Why; it goes on record.")
@_decision
def approve_command(
    run_id: str, ask_id: str | None, always: bool, reason: str, prefix: str | None, by: str | None
) -> int:
    """Let a call run with exactly the shown arguments.

    ASK may be left out when one request is open. With --hash it counts only for the arguments
    that you looked at. --always holds in this run only: fsm-agent consent RUN lists it and takes
    it back.
    """
    choice = Choice("approve", reason=reason, is_standing=always)
    return _decide(run_id, ask_id, choice, prefix, by)


@click.command("reject")
@click.option("-m", "--reason", type=Words(), help="Why; the model is told.  [default: asks]")
@_decision
def reject_command(
    run_id: str, ask_id: str | None, reason: str | None, prefix: str | None, by: str | None
) -> int:
    """Refuse a call; the model is told why."""
    _need_terminal_for(reason, "-m / --reason")
    is_whole = reason is not None
    choice = Choice("reject", reason=reason or "", is_whole=is_whole)
    return _decide(run_id, ask_id, choice, prefix, by)


@click.command("edit")
@click.option("--args", "arguments", metavar="JSON|@FILE", help="The new ones.  [default: asks]")
@click.option("--agent", "path", metavar="PATH:NAME", help="To check them against the tool.")
@_decision
def edit_command(
    run_id: str,
    ask_id: str | None,
    arguments: str | None,
    path: str | None,
    prefix: str | None,
    by: str | None,
) -> int:
    """Let a call run with other arguments: a whole JSON object, inline or from @FILE."""
    _need_terminal_for(arguments, "--args")
    if arguments is None:
        choice = Choice("edit", is_whole=False)
    else:
        choice = Choice("edit", arguments=_json(arguments))
    return _decide(run_id, ask_id, choice, prefix, by, path=path)


@click.command("answer")
@click.argument("words", metavar="RUN [ASK] TEXT", nargs=-1, required=True, type=Words())
@click.option("--by", metavar="NAME", help="Who answers.  [default: the OS user]")
@click.option("--hash", "prefix", metavar="PREFIX", help="4 or more digits that must fit.")
@common
def answer_command(words: tuple[str, ...], prefix: str | None, by: str | None) -> int:
    """Answer a question of a run, or give a call's result instead of running it."""
    if len(words) > 3:
        raise click.UsageError("give RUN, perhaps ASK, and TEXT in quotes.")
    text = words[-1] if len(words) > 1 else None
    _need_terminal_for(text, "TEXT")
    ask_id = words[1] if len(words) == 3 else None
    choice = Choice("answer", answer=text, is_whole=text is not None)
    return _decide(words[0], ask_id, choice, prefix, by)


@click.command("settle")
@click.option(
    "--happened",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[RESULT]",
    help="It happened. RESULT is what the model is told.",
)
@click.option("--rerun", is_flag=True, help="It did not happen: run it now.")
@click.option("--fail", is_flag=True, help="Nobody knows: the model is told so.")
@_decision
def settle_command(
    run_id: str,
    ask_id: str | None,
    happened: str | None,
    rerun: bool,
    fail: bool,
    prefix: str | None,
    by: str | None,
) -> int:
    """Say what became of a call that is in doubt: started, and no result is on record.

    Look at the other system first: nobody else can know. Put --happened last on the line.
    """
    if (happened is not None) + rerun + fail != 1:
        raise click.UsageError("give one of --happened, --rerun and --fail.")
    if happened is not None:
        choice = Choice("happened", answer=happened or None)
    else:
        choice = Choice("rerun" if rerun else "fail")
    return _decide(run_id, ask_id, choice, prefix, by)


def _need_terminal_for(given: str | None, name: str) -> None:
    """What a decision lacks is asked for at a terminal. Raises UsageError where there is none."""
    if given is None and (not process.is_terminal() or current().is_json):
        raise click.UsageError(f"{name} is missing, and there is no terminal to ask for it.")


def _json(given: str) -> str:
    """The text of --args, once it is a JSON object. Raises CliError."""
    text = given
    if given.startswith("@"):
        try:
            text = Path(given[1:]).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise CliError(f"--args {given}: {why}. Name a JSON file.", USAGE) from error
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CliError(
            f"--args is not JSON: {error}. Give an object, such as '{{\"amount\": 10}}'.", USAGE
        ) from error
    if not isinstance(value, dict):
        raise CliError("--args must be a JSON object, such as '{\"amount\": 10}'.", USAGE)
    return text


def _decide(
    run_id: str,
    ask_id: str | None,
    choice: Choice,
    prefix: str | None,
    by: str | None,
    *,
    path: str | None = None,
) -> int:
    if prefix is not None and not _HASH.fullmatch(prefix.lower()):
        raise CliError(f"--hash {one_line(prefix, 70)!r} must be 4 to 64 hex digits.", USAGE)
    hash_prefix = prefix.lower() if prefix else ""
    return process.run(
        lambda: _decide_one(run_id, ask_id, choice, hash_prefix, by or operator(), path)
    )


async def _decide_one(
    run_id: str, ask_id: str | None, choice: Choice, prefix: str, by: str, path: str | None
) -> int:
    async with looking() as runtime:
        await runtime.result(run_id)  # an unknown run, and a journal that cannot be read
        requests = await runtime.requests(run_id, is_open=False)
        if ask_id is None and choice.answer in {request.ask_id for request in requests}:
            # Only the request is named. Its id is no answer.
            _need_terminal_for(None, "TEXT")
            ask_id, choice = choice.answer, Choice("answer", is_whole=False)
        request = _chosen(run_id, requests, ask_id, choice, prefix)
        if not request.digest.startswith(prefix):
            raise CliError(
                f"the hash of request {request.ask_id} is {request.digest[:8]}, not {prefix}."
                " Look at it again before deciding."
            )
        _check_fits(request, choice)
        asking.show(request)
        if not choice.is_whole:
            choice = asking.completed(choice, request)
        ruling = await runtime.decide(
            request.run_id,
            request.ask_id,
            choice.verb,
            by=by,
            reason=choice.reason,
            arguments=choice.arguments,
            answer=choice.answer,
            digest=request.digest,
            agent=await _agent(runtime, request.run_id, path) if choice.verb == "edit" else None,
            is_standing=choice.is_standing,
            channel="cli",
            auth=auth_of(by),
        )
        left = await runtime.requests(run_id)
    if current().is_json:
        told = {"event": "decided", "run_id": request.run_id, "ask_id": ruling.ask_id}
        told |= {"verb": ruling.verb, "by": ruling.by, "hash": request.digest}
        more = {"at_ms": ruling.at_ms, "missing": ruling.missing}
        put(asjson.line(told | more | {"open": [r.ask_id for r in left]}))
    else:
        words = RULED_WORDS[choice.verb]
        put(f"{one_line(request.question.tool, 64)} {words} by {one_line(by, 64)}")
    if ruling.missing:
        people = "1 more person" if ruling.missing == 1 else f"{ruling.missing} more people"
        say(f"request {ruling.ask_id} needs {people} before it runs")
    if left:
        say(f"still open in this run: {', '.join(asking.named(r, within=run_id) for r in left)}")
    say(f"next: fsm-agent resume {run_id}{current().store_option}   (a running worker does it)")
    return failures.DONE


def _check_fits(request: Request, choice: Choice) -> None:
    """Raises CliError with the commands that fit the request, if this one does not."""
    kind = request.question.kind
    if choice.verb in VERBS[kind]:
        return
    fitting = {
        "approval": "approve, reject, edit or answer",
        "question": "answer or reject",
        "in_doubt": "settle, with one of --happened, --rerun and --fail",
    }[kind]
    what = {
        "approval": "waits for approval",
        "question": "is a question",
        "in_doubt": "is about a call in doubt: it started, and no result is on record",
    }[kind]
    raise CliError(f"request {request.ask_id} {what}. Use fsm-agent {fitting}.", USAGE)


def _chosen(
    run_id: str, requests: Sequence[Request], ask_id: str | None, choice: Choice, prefix: str
) -> Request:
    """The request that is meant. Raises AskNotFound or CliError with who decided before."""
    still_open = [request for request in requests if request.ruling is None]
    if ask_id is not None:
        found = meant([r for r in requests if r.ask_id == ask_id], run_id, prefix)
        if not found:
            raise AskNotFound(run_id, ask_id, [request.ask_id for request in still_open])
        if len(found) > 1:
            raise _unclear(f"several runs ask {ask_id}", found)
        if found[0].ruling is not None:
            raise _decided(found[0])
        return found[0]
    # 'settle' means what is in doubt, even where an approval is open beside it.
    kinds = {kind for kind, verbs in VERBS.items() if choice.verb in verbs}
    fitting = [r for r in still_open if r.question.kind in kinds] or still_open
    fitting = [r for r in fitting if r.digest.startswith(prefix)] or fitting
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise _unclear(f"run {run_id} has several open requests", fitting)
    decided = [request for request in requests if request.ruling is not None]
    if decided:
        raise _decided(max(decided, key=lambda r: r.ruling.at_ms if r.ruling else 0))
    raise CliError(
        f"run {run_id} has no open request: nothing waits for a person."
        f" Look at it: fsm-agent show {run_id}."
    )


def _unclear(what: str, requests: Sequence[Request]) -> CliError:
    listed = ", ".join(
        f"{r.run_id} {r.ask_id} ({one_line(r.question.tool, 40)}, hash {r.digest[:8]})"
        for r in requests
    )
    return CliError(f"{what}: {listed}. Name one of them, or its --hash.", USAGE)


def _decided(request: Request) -> CliError:
    ruling = request.ruling
    assert ruling
    return CliError(decided_line(request.ask_id, ruling.verb, ruling.by, ruling.at_ms), FAILED)


async def _agent(runtime: Runtime, run_id: str, path: str | None) -> Agent | None:
    """The agent, to check edited arguments with; without one they are checked when they run."""
    if path:
        return remembered.load(path)
    head = await runtime.store.head(RunId(run_id))
    try:
        name = codec.decode_snapshot(head.snapshot).agent
        return remembered.recall(current().store, run_id, name)
    except Exception as error:
        say(f"note: the arguments are checked when the call runs ({one_line(str(error), 120)})")
        return None
