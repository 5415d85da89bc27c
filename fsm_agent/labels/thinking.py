"""Where a thinking block in front of the label ends, and whether it does."""

from __future__ import annotations

import re

from fsm_agent.labels.grammar import BLANKS, TICKS
from fsm_agent.labels.lines import LINE_HEAD_CHARS, label_of
from fsm_agent.labels.tags import CLOSER, OPENER, find_tag, may_become_tag

# A line that may be a label's, or of which only blanks have come.
_SPECIAL_LINE = re.compile(rf"(?:\A|\n)[{BLANKS}]*(?:[{TICKS}]|\Z)")


class Thinking:
    """Takes what follows an opening tag, up to the closing tag that belongs to it.

    Tags may be nested, and differ in spelling. A line with a label on it may be the answer to a
    tag that is never closed, so what follows it is held: the next closing tag says that it was
    thinking, and the end of the reply that it was the answer.
    """

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed
        self._depth = 1
        self._held = ""  # what may be the beginning of a tag
        self._line = ""  # the beginning of the present line, while it may be a label
        self._is_at_start = True  # of a line, or after an inner closing tag
        self._suspect: list[str] = []  # from a line with a label on
        self._out: list[str] = []

    def feed(self, text: str) -> tuple[str, str | None]:
        """The thinking that is certain, and what follows the block once it is closed."""
        text, self._held = self._held + text, ""
        start, at = 0, find_tag(text)
        while at >= 0:
            closer = CLOSER.match(text, at)
            if tag := closer or OPENER.match(text, at):
                self._depth += -1 if closer else 1
                self._ponder(text[start:at])
                if closer:
                    self._settle()
                if self._depth == 0:
                    return self._take(), text[tag.end() :]
                self._pass(tag[0], is_closer=closer is not None)
                start = tag.end()
            elif may_become_tag(text, at):
                self._held = text[at:]
                break
            at = find_tag(text, at + 1)
        self._ponder(text[start : len(text) - len(self._held)])
        return self._take(), None

    def close(self) -> tuple[str, str]:
        """The rest of the thinking, and the answer if the tag was never closed before it."""
        self._ponder(self._held)
        if not self._suspect and label_of(self._line, self._allowed):
            self._suspect, self._line = [self._line], ""
        answer = "".join(self._suspect)
        if not answer:
            self._settle()
        return self._take(), answer

    def _take(self) -> str:
        out, self._out = "".join(self._out), []
        return out

    def _pass(self, tag: str, *, is_closer: bool) -> None:
        """An inner tag is part of the thinking; after a closing one a label may stand."""
        self._ponder(tag)
        if is_closer:
            self._settle()

    def _settle(self) -> None:
        """What is held was thinking."""
        self._out += [*self._suspect, self._line]
        self._suspect, self._line, self._is_at_start = [], "", True

    def _ponder(self, text: str) -> None:
        """Pass thinking on, line by line, until a line is a label's."""
        while text:
            if self._suspect:
                self._suspect.append(text)
                return
            if self._is_at_start and not self._line and (plain := _plain_end(text)):
                self._out.append(text[:plain])
                text = text[plain:]
                continue
            end = text.find("\n") + 1 or len(text)
            piece, text = text[:end], text[end:]
            if self._is_at_start:
                self._begin_line(piece)
            else:
                self._out.append(piece)
                self._is_at_start = piece.endswith("\n")

    def _begin_line(self, piece: str) -> None:
        self._line += piece
        visible = self._line.lstrip(" \t")
        is_open = len(self._line) < LINE_HEAD_CHARS and not self._line.endswith("\n")
        if is_open and (not visible or visible[0] == "`"):
            return
        line, self._line = self._line, ""
        if label_of(line, self._allowed):
            self._suspect = [line]
            return
        self._out.append(line)
        self._is_at_start = line.endswith("\n")


def _plain_end(text: str) -> int:
    """Where the whole lines at the beginning of `text` end that cannot be a label's."""
    special = _SPECIAL_LINE.search(text)
    return text.rfind("\n", 0, special.start() + 1 if special else len(text)) + 1
