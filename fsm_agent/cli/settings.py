"""The options of every command: accepted before its name and after it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from fsm_agent.runtime import default_store_url

F = TypeVar("F", bound=Callable[..., Any])
ADDRESS_VARIABLE = "FSM_AGENT_STORE_WITH_PASSWORD"  # in commands to paste; nobody reads it here


@dataclass
class Settings:
    """What a command was told about the store, and about the form of its output."""

    store: str = ""
    is_json: bool = False
    is_store_given: bool = False  # on the command line, not by the environment

    def __post_init__(self) -> None:
        self.store = self.store or default_store_url()

    @property
    def store_option(self) -> str:
        """What must be added to a command that is shown, so that it means the same store."""
        from checkpoints.address import has_password

        if self.store == default_store_url():
            return ""
        if not has_password(self.store):
            return f" --store {shlex.quote(self.store)}"
        # A secret is not shown. FSM_AGENT_STORE would not do: it is another store just now. This
        # one is empty, and so refused, until somebody puts the address there.
        name = ADDRESS_VARIABLE
        while os.environ.get(name) not in (None, "", self.store):
            name += "_2"
        return f' --store "${name}"'


class Words(click.ParamType):  # type: ignore[type-arg]
    """Text for a model or a person. What is no text (bytes that are not UTF-8) is refused."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same text."""
        try:
            value.encode()
        except UnicodeEncodeError as error:
            self.fail(f"character {error.start + 1} is not UTF-8. Give it as UTF-8.", param, ctx)
        return value


def file_option(command: F) -> F:
    """Add --file."""
    option = click.option(
        "--file",
        "files",
        multiple=True,
        metavar="PATH",
        help="A text, picture, PDF, sound or film that goes with it; may be repeated.",
    )
    return option(command)


def common(command: F) -> F:
    """Add the common options; what is given last counts."""
    for option in (_JSON, _STORE):
        command = option(command)
    return command


def json_only(command: F) -> F:
    """Add the common options but --store: for a command that has a store of its own."""
    return _JSON(command)


def current() -> Settings:
    """The settings of the command that runs."""
    return click.get_current_context().find_root().ensure_object(Settings)


def _take_store(context: click.Context, option: click.Parameter, value: str | None) -> None:
    settings = context.find_root().ensure_object(Settings)
    if value == "":
        words = (
            "it is empty. Give the address. A command that was shown to be pasted names a variable"
            f" here, {ADDRESS_VARIABLE}: put the whole address of the store there, password and"
            " all. Or set FSM_AGENT_STORE to it and leave --store out."
        )
        raise click.BadParameter(words, context, option)
    if value is not None:
        settings.store, settings.is_store_given = value, True


def _take_json(context: click.Context, option: click.Parameter, value: bool) -> None:
    settings = context.find_root().ensure_object(Settings)
    settings.is_json = settings.is_json or value


_STORE = click.option(
    "--store",
    metavar="URL",
    expose_value=False,
    callback=_take_store,
    help="embedded:FOLDER, redis://…, rediss://…, redis+sentinel://…, redis+cluster://… or unix://…"
    "  [default: FSM_AGENT_STORE, or embedded:.fsm-agent]",
)
_JSON = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_take_json,
    help="Print one JSON object a line on stdout.",
)
