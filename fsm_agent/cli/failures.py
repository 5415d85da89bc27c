"""What a failure is in one line for people, and which exit code it has."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
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
from fsm_agent.cli.process import muffle
from fsm_agent.errors import AgentError, ProviderError, UsageError
from fsm_agent.telling.times import clock as clock

DONE, FAILED, USAGE, WAITING = 0, 1, 2, 3
LONGEST_LINE = 2000
# What to do about failures of the machine, by their number.
_REMEDIES = {
    errno.ENOSPC: "The disk is full: free some space, and try again.",
    errno.EDQUOT: "Your quota is used up: free some space, and try again.",
    errno.EROFS: "Nothing can be written there: use another folder.",
    errno.EMFILE: "Close something, or raise the limit with 'ulimit -n'.",
    errno.ENFILE: "This machine has too many files open: close something.",
    errno.ENOMEM: "This machine has no memory left: close something.",
    errno.EAGAIN: "This machine has no room for another process or thread: close something.",
    errno.EIO: "A disk or terminal of this machine failed: check it.",
}


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
    try:
        print(f"error: {one_line(trouble.line, LONGEST_LINE)}", file=sys.stderr, flush=True)
    except OSError:  # nobody can be told: the exit code is all there is
        muffle(sys.stderr)
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
        case ProviderError(status=404):
            return Trouble(_not_found(error), FAILED)
        case UsageError() | StoreUsageError():
            return Trouble(str(error), USAGE)
        case AgentError() | CheckpointError():
            return Trouble(str(error), FAILED)
        case OSError() if error.errno is not None:
            return Trouble(_of_machine(error), FAILED)
        case _:
            cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            hint = "This should not happen; run with FSM_AGENT_TRACEBACK=1 to see where."
            return Trouble(f"{cause}. {hint}", FAILED)


def _of_machine(error: OSError) -> str:
    what = (error.strerror or type(error).__name__).lower()
    if error.filename is None:
        return f"{what}. {_REMEDIES.get(error.errno or 0, 'The operating system refused.')}"
    remedy = _REMEDIES.get(error.errno or 0, "Use another file or folder.")
    return f"{os.fsdecode(error.filename)}: {what}. {remedy}"


def _not_found(error: ProviderError) -> str:
    url = (os.environ.get("OPENAI_BASE_URL") or "").rstrip("/")
    if not url or re.search(r"/v\d", url):
        return str(error)
    hint = f"Most servers want a base URL that ends in /v1: OPENAI_BASE_URL={url}/v1."
    return f"{str(error).rstrip('.')}. {hint}"


def decided_line(ask_id: str, verb: str, by: str, at_ms: int) -> str:
    """Who was first, when, and with what."""
    return (
        f"request {ask_id} was already decided: {verb!r} by {by} at {clock(at_ms)}."
        " That decision stands."
    )


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
