"""What the beginning of a line says in a body: a second label, a code fence, or a thinking tag."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from fsm_agent.labels.grammar import BLANKS, TICKS
from fsm_agent.labels.tags import OPENER, TAG_STARTS, may_become_tag

LINE_HEAD_CHARS = 80  # of a line are looked at; the rest of it cannot change what it is

_LABEL = re.compile(r"[ \t\u00a0\u3000]*([`｀]+)[ \t]*([^`｀\n]+?)[ \t]*[`｀]+(.*)", re.DOTALL)
_FENCE = re.compile(r"\s*(`{3,}|~{3,})([^`\n]*)\Z")


class LineLabel(NamedTuple):
    """A label at the beginning of a line, and where in the line the text after it begins."""

    label: str
    is_alone: bool
    end: int


def is_plain(head: str) -> bool:
    """Whether the line that begins with `head` can no longer be anything but text."""
    visible = head.lstrip(BLANKS)
    if len(head) >= LINE_HEAD_CHARS or head.endswith("\n"):
        return True
    return bool(visible) and visible[0] not in TICKS + "~" + TAG_STARTS


def is_decided(head: str) -> bool:
    """Whether more of the line cannot change what it is."""
    visible = head.lstrip(BLANKS)
    if is_plain(head) or not visible:
        return is_plain(head)
    if visible[0] in TAG_STARTS:
        return not may_become_tag(visible, 0)
    return False


def label_of(head: str, allowed: tuple[str, ...]) -> LineLabel | None:
    """The label that this line begins with.

    Two backticks are the protocol's own form and count with text after them; a single pair
    is how prose mentions a word, and counts only alone on its line.
    """
    found = _LABEL.match(head)
    if found is None:
        return None
    word = found[2].casefold()
    label = next((label for label in allowed if label.casefold() == word), None)
    is_alone = not found[3].strip()
    if label is None or (len(found[1]) < 2 and not is_alone):
        return None
    return LineLabel(label, is_alone, found.start(3))


def opener_end(head: str) -> int:
    """Where a thinking tag at the beginning of this line ends, 0 if there is none."""
    blanks = len(head) - len(head.lstrip(BLANKS))
    found = OPENER.match(head, blanks)
    return found.end() if found else 0


class Fence:
    """Whether the lines so far leave a code fence open."""

    def __init__(self) -> None:
        self._open = ""

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def see(self, head: str) -> Literal["fence", "text"]:
        """Take note of one line, and say whether it opened or closed a fence."""
        found = _FENCE.match(head.rstrip("\r\n"))
        if found is None:
            return "text"
        marks, rest = found[1], found[2].strip()
        if not self._open:
            self._open = marks
            return "fence"
        if marks[0] == self._open[0] and len(marks) >= len(self._open) and not rest:
            self._open = ""
            return "fence"
        return "text"
