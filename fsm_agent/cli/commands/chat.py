"""`chat`: talk with an agent, message after message; each message is a run of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from checkpoints.address import parse
from checkpoints.embedded import EmbeddedServer
from fsm_agent.capabilities.agent import Agent
from fsm_agent.cli import failures, remembered
from fsm_agent.cli.opening import check_model
from fsm_agent.cli.person import operator
from fsm_agent.cli.process import Stopped, read_line, say
from fsm_agent.cli.settings import common, current
from fsm_agent.cli.shift import Shift

PROMPT = "you > "


@click.command("chat")
@click.option("--agent", "path", required=True, metavar="PATH:NAME", help="The agent to talk to.")
@click.option("--continue", "before", metavar="RUN", help="Go on after this run.")
@common
def chat_command(path: str, before: str | None) -> int:
    """Talk with an agent until the end of input (Ctrl-D).

    Each line is a run that begins with the conversation so far, recorded like any other: it
    survives this process, and can be shown, decided on and resumed. Answers go to stdout, all else
    to stderr. Where a run waits for a decision that is not made here, the chat ends; resume the
    run, then go on with --continue.

    \b
    fsm-agent chat --agent examples/chat.py:agent
    """
    agent = remembered.load(path)
    check_model(agent)
    with _kept_open():
        return _talk(agent, path, before)


def _talk(agent: Agent, path: str, before: str | None) -> int:
    last = before
    try:
        while (text := read_line(PROMPT)) is not None:
            if not text.strip():
                continue
            code, run_id = _say(agent, path, text, last)
            if code == failures.WAITING or code >= 128:
                return code
            last = run_id
    except Stopped as stopped:  # at the prompt: nothing was under way
        return stopped.code
    if last:
        say(f"go on later: fsm-agent chat --agent {path} --continue {last}{current().store_option}")
    return failures.DONE


def _say(agent: Agent, path: str, text: str, last: str | None) -> tuple[int, str]:
    """The exit code that a run of its own would have, and the run."""
    shift = Shift(agent, "", path, None)
    code = shift.work(
        lambda runtime: runtime.start(agent, text, continues=last, requester=operator())
    )
    return code, shift.run_id


@contextmanager
def _kept_open() -> Iterator[None]:
    """An embedded server stays up between two messages, instead of starting for each."""
    folder = parse(current().store).folder
    if folder is None:
        yield
        return
    server = EmbeddedServer(folder)
    server.enter()
    try:
        yield
    finally:
        server.leave()
