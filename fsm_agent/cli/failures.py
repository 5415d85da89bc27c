"""What a failure is in one line for people, and which exit code it has."""

from __future__ import annotations

import os
import sys
import traceback
from datetime import datetime
from typing import NamedTuple

import click

from checkpoints.errors import (
    AlreadyDecided,
    CheckpointError,
    CorruptEntry,
    LeaseLost,
    RunBusy,
    RunClosed,
    RunNotFound,
    StoreUsageError,
)
from fsm_agent.cli.clean import one_line
from fsm_agent.errors import AgentError, UsageError

DONE, FAILED, USAGE, WAITING = 0, 1, 2, 3
LONGEST_LINE = 2000


class CliError(Exception):
    """A failure that this command line found itself."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


class Trouble(NamedTuple):
    """The line and the exit code."""

    line: str
    code: int


def report(error: BaseException) -> int:
    """Print the one line of `error` on stderr. The exit code."""
    if os.environ.get("FSM_AGENT_TRACEBACK"):
        traceback.print_exception(error)
    trouble = trouble_of(error)
    print(f"error: {one_line(trouble.line, LONGEST_LINE)}", file=sys.stderr)
    return trouble.code


def trouble_of(error: BaseException) -> Trouble:
    """What `error` says to people."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    match error:
        case CliError():
            return Trouble(str(error), error.code)
        case click.ClickException():
            return Trouble(_of_click(error), error.exit_code)
        case AlreadyDecided():
            return Trouble(decided_line(error.ask_id, error.verb, error.by, error.at_ms), FAILED)
        case RunBusy():
            return Trouble(_busy(error), FAILED)
        case RunNotFound():
            return Trouble(f"{error} List them: fsm-agent list.", USAGE)
        case RunClosed():
            return Trouble(f"{error} Look at it: fsm-agent show {error.run_id}.", FAILED)
        case LeaseLost():
            return Trouble(f"{error} Watch it: fsm-agent watch {error.run_id}.", FAILED)
        case CorruptEntry():
            return Trouble(f"{error} Restore the store from a copy, or start a new run.", FAILED)
        case UsageError() | StoreUsageError():
            return Trouble(str(error), USAGE)
        case AgentError() | CheckpointError():
            return Trouble(str(error), FAILED)
        case OSError() if error.filename is not None:
            name, why = os.fsdecode(error.filename), (error.strerror or "").lower()
            return Trouble(f"{name}: {why}. Use another file or folder.", FAILED)
        case _:
            cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            hint = "This should not happen; run with FSM_AGENT_TRACEBACK=1 to see where."
            return Trouble(f"{cause}. {hint}", FAILED)


def decided_line(ask_id: str, verb: str, by: str, at_ms: int) -> str:
    """Who was first, when, and with what."""
    return (
        f"request {ask_id} was already decided: {verb!r} by {by} at {clock(at_ms)}."
        " That decision stands."
    )


def clock(at_ms: int) -> str:
    """A time of day, with the date if it was not today."""
    at = datetime.fromtimestamp(at_ms / 1000)
    form = "%H:%M:%S" if at.date() == datetime.now().date() else "%Y-%m-%d %H:%M:%S"
    return at.strftime(form)


def _busy(error: RunBusy) -> str:
    return (
        f"{str(error).rstrip('.')} until {clock(error.until_ms)}, longer if it lives."
        " Use --wait to take over when it is free, or fsm-agent watch to look on."
    )


def _of_click(error: click.ClickException) -> str:
    message = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f" See: {context.command_path} --help" if context else ""
    return message + hint
