"""Lengths of time as people write them: 45s, 90m, 12h, 30d, 8w."""

from __future__ import annotations

import os
import re

import click

from fsm_agent.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds_of(text: str) -> float:
    """The seconds of such a text. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw])", text)
    if found is None:
        raise UsageError(f"{text!r} is no length of time. Use 45s, 90m, 12h, 30d or 8w.")
    return float(found[1]) * _UNITS[found[2]]


def kept_s() -> float | None:
    """How long finished runs are kept: FSM_AGENT_KEEP, None where it is not set."""
    text = os.environ.get("FSM_AGENT_KEEP")
    if not text:
        return None
    try:
        return seconds_of(text)
    except UsageError as error:
        raise UsageError(f"FSM_AGENT_KEEP: {error}") from None


class Span(click.ParamType):  # type: ignore[type-arg]
    """Such a length as an option. The value is in seconds."""

    name = "time"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds."""
        try:
            return value if isinstance(value, float) else seconds_of(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
