"""A run on a terminal: thinking as it streams, tools as they run, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from fsm_agent.cli.clean import one_line, piece
from fsm_agent.run.delta import (
    Answered,
    Began,
    Created,
    Criticised,
    Intended,
    Replied,
    Resumed,
    Settled,
    Summarised,
)
from fsm_agent.run.event import EntryEvent, Event, LiveEvent, ParkedEvent
from fsm_agent.telling.words import Line, Story, Tone, seconds

from .column import GUTTER, Column

_PLACE_STYLES = {
    "observe": "blue",
    "think": "magenta",
    "act": "cyan",
    "reflect": "blue",
    "waiting": "bold yellow",
    "demo": "dim",
    "decided": "yellow",
    "worker": "yellow",
    "done": "bold green",
    "error": "bold red",
    "cancel": "red",
}
_TONES: dict[Tone | str, tuple[str, str]] = {
    "good": ("✓ ", "green"),
    "bad": ("✗ ", "red"),
    "warn": ("! ", "yellow"),
    "quiet": ("", "dim"),
    "plain": ("", ""),
}
SHORTEST_DETAIL = 12  # cells
_MODEL = "model"  # the key of what waits for the model, beside call ids


@dataclass
class _Pending:
    """Something under way, at the bottom of the screen."""

    place: str
    name: str
    since_s: float = field(default_factory=monotonic)
    progress: str = ""
    spinner: Spinner = field(default_factory=lambda: Spinner("dots", style="cyan"))


class TerminalView:
    """Writes downwards only. What is under way stands in a few lines at the bottom."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._column = Column(self.console)
        self._story = Story()
        self._pending: dict[str, _Pending] = {}
        self._live: Live | None = None
        self._has_streamed = ""  # the channel that was shown of the reply under way
        self.has_answer = False

    def recall(self, event: EntryEvent) -> None:
        """See View."""
        self._story.tell(event)

    def hear(self, event: Event) -> None:
        """See View."""
        match event:
            case LiveEvent():
                self._hear_live(event)
            case ParkedEvent():
                self.rest()
            case EntryEvent():
                self._hear_entry(event)

    def note(self, place: str, text: str, tone: str = "plain") -> None:
        """See View."""
        self._show(Line(place, text, tone))  # type: ignore[arg-type]

    def gap(self) -> None:
        """An empty line, once."""
        self._column.gap()

    def rest(self) -> None:
        """See View."""
        self._pending.clear()
        self._refresh()
        self._column.leave()

    # -- events -------------------------------------------------------------------------------

    def _hear_live(self, event: LiveEvent) -> None:
        if event.channel == "retracted":
            self._retract()
        elif event.channel == "progress":
            if pending := self._pending.get(event.call_id):
                pending.progress = one_line(event.text, 60)
        elif text := piece(event.text):
            self._pending.pop(_MODEL, None)
            self._refresh()
            if not self._has_streamed:
                self._column.gap()
            self._has_streamed = event.channel
            style = "dim italic" if event.channel == "thinking" else ""
            self._column.stream("think", text, style, place_style=_PLACE_STYLES["think"])

    def _retract(self) -> None:
        if not self._column.take_back() and self._has_streamed:
            self._show(Line("think", "the text above is void: the reply was cut off", "warn"))
        self._has_streamed = ""

    def _hear_entry(self, event: EntryEvent) -> None:
        deltas = event.record.deltas
        if any(isinstance(delta, (Began, Resumed)) for delta in deltas) and self._story.attempt:
            self._retract()
        if any(isinstance(d, Resumed) and d.is_takeover for d in deltas):
            self.rest()
        self.has_answer = self._has_streamed == "body" and any(
            isinstance(delta, Answered) for delta in deltas
        )
        for line in self._story.tell(event):
            self._hear_line(line, is_last=any(isinstance(d, Answered) for d in deltas))
        self._refresh()

    def _hear_line(self, line: Line, *, is_last: bool) -> None:
        match line.delta:
            case Began() if line.tone == "quiet":
                self._pending[_MODEL] = _Pending(line.place, line.text)
                self._has_streamed = ""
            case Intended(call_id=call_id):
                if line.tone != "quiet":
                    self._show(line)
                self._pending[call_id] = _Pending("act", self._story.name(call_id))
            case Settled(call_id=call_id):
                self._pending.pop(call_id, None)
                self._show(line)
            case Criticised() | Summarised():
                self._pending.pop(_MODEL, None)
                self._show(line)
            case Replied():
                self._pending.pop(_MODEL, None)
                self._show_reply(line, is_last)
            case Answered(is_completed=True):
                pass
            case _ if line.tone != "quiet":
                self._show(line)

    def _show_reply(self, line: Line, is_last: bool) -> None:
        reply = line.delta
        assert isinstance(reply, Replied)
        has_streamed, self._has_streamed = self._has_streamed, ""
        if is_last or (has_streamed == "body" and not reply.calls and not reply.violation):
            self._column.end_stream()
            return
        if not has_streamed:
            self._column.gap()
        self._show(line)

    # -- drawing ------------------------------------------------------------------------------

    def _show(self, line: Line) -> None:
        mark, style = _TONES[line.tone]
        if line.place.startswith("✖"):
            mark = ""
        if isinstance(line.delta, Replied) and line.tone == "plain":
            mark, style = "→ ", "magenta"
        text = Text(mark, style)
        text.append(line.text, style if line.tone != "good" else "")
        if line.more:
            text.append_text(self._detail(line.more, text.cell_len))
        self._shut()
        if isinstance(line.delta, Created):
            self._column.gap()
        self._column.line(line.place, text, place_style=_PLACE_STYLES.get(line.place, "red"))
        self._refresh()

    def _detail(self, more: str, used: int) -> Text:
        """What stands dimmed behind a line, cut to fit: a detail is not worth a row."""
        room = self._column.width - used % self._column.width - 2
        if room < SHORTEST_DETAIL:
            return Text("")
        detail = Text(more, "dim")
        detail.truncate(room, overflow="ellipsis")
        return Text("  ").append_text(detail)

    def _refresh(self) -> None:
        """Show what is under way, if there is any."""
        if not self._pending:
            self._shut()
        elif self._live is None:
            self._column.end_stream()
            self._live = Live(
                get_renderable=self._bottom,
                console=self.console,
                refresh_per_second=10,
                transient=True,
            )
            self._live.start()

    def _shut(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _bottom(self) -> RenderableType:
        return Group(*(self._row(pending) for pending in list(self._pending.values())))

    def _row(self, pending: _Pending) -> RenderableType:
        now = monotonic()
        row = Text(" " * GUTTER)
        frame = pending.spinner.render(now)
        row.append_text(frame if isinstance(frame, Text) else Text("…"))
        row.append(f" {pending.name}", "" if pending.place == "act" else "dim")
        row.append(f"  {seconds(int((now - pending.since_s) * 1000))}", "dim")
        if pending.progress:
            row.append(f"  {pending.progress}", "dim italic")
        row.truncate(self.console.width - 1, overflow="ellipsis")
        return row
