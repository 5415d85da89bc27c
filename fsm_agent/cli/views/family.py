"""A run with the runs that work for it: theirs are told apart, each with a story of its own."""

from __future__ import annotations

from fsm_agent.run.delta import Created, Resumed
from fsm_agent.run.event import EntryEvent, Event
from fsm_agent.telling.words import Story

from . import View

ID_CHARS = 8  # of a child's run id: enough to tell siblings apart


class FamilyView:
    """Shows the first run that it hears of in `view`, and of others a line for what counts.

    Their live text is left out: several of them talk at once.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._run_id = ""
        self._stories: dict[str, Story] = {}

    def recall(self, event: EntryEvent) -> None:
        """See View."""
        self._run_id = self._run_id or event.run_id
        self._view.recall(event)

    def hear(self, event: Event) -> None:
        """See View."""
        self._run_id = self._run_id or event.run_id
        if event.run_id == self._run_id:
            self._view.hear(event)
        elif isinstance(event, EntryEvent):
            self._tell(event)

    def _tell(self, event: EntryEvent) -> None:
        story = self._stories.setdefault(event.run_id, Story())
        for line in story.tell(event):
            if line.tone != "quiet" and not isinstance(line.delta, Created | Resumed):
                text = f"{event.run_id[:ID_CHARS]}: {line.text}"
                self._view.note(line.place, text, line.tone)

    def note(self, place: str, text: str, tone: str = "plain") -> None:
        """See View."""
        self._view.note(place, text, tone)

    def rest(self) -> None:
        """See View."""
        self._view.rest()

    @property
    def has_answer(self) -> bool:
        """See View."""
        return self._view.has_answer
