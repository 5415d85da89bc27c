"""The options of a run's beginning that say for whom it is, and how it stands to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, get_args

import click

from fsm_agent.cli.settings import Words
from fsm_agent.run.delta import OnBusy
from fsm_agent.run.filing import MAX_PRIORITY

F = TypeVar("F", bound=Callable[..., Any])


class Filing(TypedDict):
    """As `Runtime.start` takes them."""

    tenant: str
    priority: int
    thread: str
    on_busy: OnBusy


def filing_options(command: F) -> F:
    """Add them."""
    for option in (_ON_BUSY, _THREAD, _PRIORITY, _TENANT):
        command = option(command)
    return command


_TENANT = click.option(
    "--tenant", default="", type=Words(), metavar="NAME", help="For whom: limits may depend on it."
)
_PRIORITY = click.option(
    "--priority",
    default=0,
    show_default=True,
    type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
    help="Workers take runs of a higher one first.",
)
_THREAD = click.option(
    "--thread",
    default="",
    type=Words(),
    metavar="NAME",
    help="Of the runs of a thread one at a time is active.",
)
_ON_BUSY = click.option(
    "--on-busy",
    default="reject",
    show_default=True,
    type=click.Choice(get_args(OnBusy)),
    help="While another run of the thread is active: refuse this one, let it wait for its turn,"
    " or cancel the other one.",
)
