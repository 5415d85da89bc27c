"""A run as lines for a pipe: words, or JSON."""

from __future__ import annotations

from typing import TextIO

from fsm_agent.cli import asjson
from fsm_agent.cli.process import write
from fsm_agent.run.delta import Answered, Intended
from fsm_agent.run.event import EntryEvent, Event, LiveEvent
from fsm_agent.telling.words import Story


class PlainView:
    """One line for each thing that happened. Live text is left out: the entry has all of it."""

    has_answer = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._story = Story()

    def recall(self, event: EntryEvent) -> None:
        """See View."""
        self._story.tell(event)

    def hear(self, event: Event) -> None:
        """See View."""
        if not isinstance(event, EntryEvent):
            return
        for line in self._story.tell(event):
            if line.tone != "quiet" and not _is_repeated(line.delta):
                self.note(line.place, f"{line.text}  {line.more}" if line.more else line.text)

    def note(self, place: str, text: str, tone: str = "plain") -> None:
        """See View."""
        write(self._stream, f"  {place:<9} {text}".rstrip() + "\n")

    def rest(self) -> None:
        """See View."""


def _is_repeated(delta: object) -> bool:
    """Whether it says no more than what follows: the answer itself, and the line below it."""
    return isinstance(delta, Answered) and delta.is_completed


def _starts(event: EntryEvent) -> set[str]:
    return {delta.call_id for delta in event.record.deltas if isinstance(delta, Intended)}


class JsonView:
    """Every event as one JSON object."""

    has_answer = True

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started: set[str] = set()  # calls whose start was shown
        self._early: list[LiveEvent] = []

    def recall(self, event: EntryEvent) -> None:
        """See View."""
        self._started |= _starts(event)

    def hear(self, event: Event) -> None:
        """See View. A call's progress may be heard before its start: it is shown after it."""
        if isinstance(event, LiveEvent) and self._is_ahead(event):
            self._early.append(event)
            return
        self._put(event)
        if not isinstance(event, EntryEvent) or not (started := _starts(event)):
            return
        self._started |= started
        early, self._early = self._early, []
        for progress in early:
            self.hear(progress)

    def _is_ahead(self, event: LiveEvent) -> bool:
        return event.channel == "progress" and event.call_id not in self._started

    def _put(self, event: Event) -> None:
        write(self._stream, asjson.line(asjson.event(event)) + "\n")

    def note(self, place: str, text: str, tone: str = "plain") -> None:
        """See View."""

    def rest(self) -> None:
        """See View."""
