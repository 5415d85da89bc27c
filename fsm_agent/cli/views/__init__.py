"""How a run is shown while it goes on: in a terminal, in a pipe, or as JSON."""

from __future__ import annotations

import sys
from typing import Protocol, TextIO

from fsm_agent.run.event import EntryEvent, Event


class View(Protocol):
    """Shows events as they come."""

    def recall(self, event: EntryEvent) -> None:
        """Take in an entry that was there before, without showing it."""

    def hear(self, event: Event) -> None:
        """Show an event."""

    def note(self, place: str, text: str, tone: str = "plain") -> None:
        """Show a line of this program's own."""

    def rest(self) -> None:
        """Leave the terminal in order: a question or the end follows."""

    @property
    def has_answer(self) -> bool:
        """Whether the whole answer stands in what was shown."""


def view_for(stream: TextIO, *, is_json: bool) -> View:
    """The view that fits: JSON on stdout where it is asked for, else one for `stream`."""
    from .family import FamilyView
    from .plain import JsonView, PlainView

    if is_json:
        return JsonView(sys.stdout)
    if not stream.isatty():
        return FamilyView(PlainView(stream))
    from .terminal import TerminalView

    return FamilyView(TerminalView(stream))
