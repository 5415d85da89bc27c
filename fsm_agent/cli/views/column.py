"""Text in a column of a terminal: whole lines, or a stream that wraps as it comes."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

GUTTER = 12  # cells for the word on the left
WIDEST = 100
_WORDS = re.compile(r"\n|[^\S\n]+|\S+")


class Column:
    """Writes beside a gutter. A stream that turns out void is taken back while it is on screen."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._place = ""  # the word that stands in the gutter
        self._at = 0  # cells written in the line of a stream; 0: no stream
        self._rows = 0  # rows of the stream
        self._held = ""  # the last word, as long as more of it may come
        self._style = ""

    @property
    def width(self) -> int:
        """Cells for text beside the gutter."""
        return max(20, min(self.console.width, WIDEST) - GUTTER - 1)

    def line(self, place: str, text: Text, *, place_style: str = "") -> None:
        """A whole text; the gutter's word is not repeated below itself."""
        self.end_stream()
        shown = place if place != self._place else ""
        for row in text.wrap(self.console, self.width) or [Text("")]:
            row.rstrip()
            self._put(shown, place_style, row)
            shown = ""
        self._place = place

    def gap(self) -> None:
        """An empty line; the gutter's word is written anew below it."""
        self.end_stream()
        if self._place:
            self.console.print()
        self._place = ""

    def leave(self) -> None:
        """Somebody else writes next: what stands in the gutter then is not ours."""
        self.end_stream()
        self._place = ""

    def stream(self, place: str, text: str, style: str, *, place_style: str = "") -> None:
        """More of a text that is still coming."""
        if style != self._style and self._at:
            self.end_stream(is_kept=True)
        if not self._at:
            shown = place if place != self._place else ""
            self._open_row(shown, place_style)
            self._place, self._style = place, style
        words = _WORDS.findall(self._held + text)
        self._held = words.pop() if words and not words[-1].isspace() else ""
        for word in words:
            self._word(word)

    def end_stream(self, *, is_kept: bool = False) -> None:
        """What was streamed stays; with `is_kept` it can still be taken back with what follows."""
        if self._at:
            if self._held:
                self._word(self._held)
            self.console.print()
            self._at, self._held = 0, ""
        if not is_kept:
            self._rows = 0

    def take_back(self) -> bool:
        """Wipe the stream off the screen. False: it is too long for that, or there is none."""
        rows = self._rows
        if self._at:
            self.end_stream(is_kept=True)
        self._rows = 0
        if not 0 < rows < self.console.height - 1:
            return False
        self.console.file.write(f"\x1b[{rows}F\x1b[J")
        self.console.file.flush()
        self._place = ""
        return True

    def _word(self, word: str) -> None:
        if word == "\n":
            self.console.print()
            self._open_row("", "")
            return
        size = cell_len(word)
        if self._at > 1 and self._at - 1 + size > self.width:
            self.console.print()
            self._open_row("", "")
            if word.isspace():
                return
        self.console.print(Text(word, self._style), end="", soft_wrap=True)
        self._at += size

    def _open_row(self, place: str, place_style: str) -> None:
        self.console.print(Text(f"  {place:<{GUTTER - 2}}", place_style), end="", soft_wrap=True)
        self._at = 1
        self._rows += 1

    def _put(self, place: str, place_style: str, row: Text) -> None:
        head = Text(f"  {place:<{GUTTER - 2}}", place_style)
        head.append_text(row)
        self.console.print(head, soft_wrap=True)
