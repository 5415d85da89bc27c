"""What a labelled body holds besides text: thinking blocks of its own, and a second label."""

from __future__ import annotations

import re
from collections.abc import Callable

from fsm_agent.labels.grammar import BLANKS, TICKS, Separator
from fsm_agent.labels.lines import (
    LINE_HEAD_CHARS,
    Fence,
    is_decided,
    label_of,
    opener_end,
)
from fsm_agent.labels.parts import Part
from fsm_agent.labels.tags import (
    CLOSER,
    CONTROL_TAIL,
    MAX_TAG_CHARS,
    OPENER,
    TAG_STARTS,
    find_tag,
    may_become_token,
)

# A line that may be a label, a fence or a tag, or of which only blanks have come.
_SPECIAL_LINE = re.compile(rf"(?:\A|\n)[{BLANKS}]*(?:[{TICKS}~{TAG_STARTS}]|\Z)")
_MAX_TAIL_CHARS = 1024  # of control tokens at the end of what has come so far


class Body:
    """Passes the body on, and looks at the beginning of each line.

    A thinking block is one that begins a line outside code, and is closed; what follows its tag
    is held until then. Everything else that looks like a tag is text.
    """

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.second_label: str | None = None
        self.second_line = 0
        self._allowed = allowed
        self._label = ""
        self._line = 1
        self._head = ""  # the beginning of the present line
        self._shown = 0  # how much of it is passed on already
        self._fence = Fence()
        self._block: list[str] = []  # a thinking block that is not closed yet, its tag first
        self._tail = ""  # its last characters, where a closing tag may have begun
        self._depth = 0
        self._may_think = True
        self._separator = Separator("")
        self._control = ""  # a control token that is dropped if the reply ends with it
        self._has_strike = False  # `<s>` in HTML, whose closing tag looks like a token
        self._out: list[Part] = []
        self._stage: Callable[[str], str] = self._begin_line

    def begin(self, label: str) -> None:
        """The label of the reply is known."""
        self._label = label

    def is_inside_line(self, text: str) -> bool:
        """Whether `text` is text in the middle of a line, and nothing else can come of it."""
        return (
            self._stage == self._rest_of_line
            and "\n" not in text
            and "<" not in text
            and not self._control
        )

    def feed(self, text: str) -> list[Part]:
        while text:
            text = self._stage(text)
        return self._take()

    def close(self) -> list[Part]:
        """What was held. A block that was never closed is text, its tag included."""
        if self._block:
            unclosed, self._block = "".join(self._block), []
            self._may_think, self._stage = False, self._begin_line
            while unclosed:
                unclosed = self._stage(unclosed)
        if self._head:
            self._end_head()
        if self._control and not self._is_dropped(self._control):
            self._out.append(Part("body", self._control))
        self._control = ""
        return self._take()

    def _is_dropped(self, tail: str) -> bool:
        """Whether the end of the reply is control tokens, and not the end of struck-out text."""
        is_markup = self._has_strike and tail.strip() == "</s>"
        return not is_markup and CONTROL_TAIL.fullmatch(tail) is not None

    def _take(self) -> list[Part]:
        """The parts since the last time, neighbours of one kind joined."""
        out, self._out = self._out, []
        if len(out) < 2 or any(kind != "body" for kind, _ in out):
            return out
        return [Part("body", "".join(text for _, text in out))]

    def _emit(self, text: str) -> None:
        """Pass text on, but for a control token at its end that may be the end of the reply."""
        if self._control:
            text, self._control = self._control + text, ""
        at = _control_start(text) if "<" in text else -1
        if at >= 0:
            text, self._control = text[:at], text[at:]
            self._has_strike = self._has_strike or "<s>" in text
        if text:
            self._out.append(Part("body", text))

    def _begin_line(self, text: str) -> str:
        """Gather the beginning of a line until it is clear what it is."""
        if not self._head and self._line > 1 and (plain := _plain_end(text)):
            self._emit(text[:plain])
            self._line += text.count("\n", 0, plain)
            return text[plain:]
        end = text.find("\n") + 1 or len(text)
        take = min(end, max(1, LINE_HEAD_CHARS - len(self._head)))
        self._head += text[:take]
        if opener_end(self._head) or is_decided(self._head):
            return self._end_head() + text[take:]
        if self._may_show():
            self._emit(self._head[self._shown :])
            self._shown = len(self._head)
        return text[take:]

    def _may_show(self) -> bool:
        """Whether the line's text is text whatever the line turns out to be."""
        visible = self._head.lstrip(" \t\u00a0\u3000")
        return self._line > 1 and bool(visible) and visible[0] not in TAG_STARTS

    def _end_head(self) -> str:
        """Act on what the line is, and give back what of it is still to be read."""
        head, shown, self._head, self._shown = self._head, self._shown, "", 0
        tag = opener_end(head)
        if tag and self._may_think and not self._fence.is_open:
            return self._open_block(head, tag)
        if self._is_stutter(head):
            return ""
        self._look_for_label(head)
        self._emit(head[shown:])
        if head.endswith("\n"):
            self._line += 1
        else:
            self._stage = self._rest_of_line
        return ""

    def _is_stutter(self, head: str) -> bool:
        """Whether the body begins with its own label once more, which is harmless."""
        found = label_of(head, self._allowed) if self._line == 1 else None
        return found is not None and found.is_alone and found.label == self._label

    def _look_for_label(self, head: str) -> None:
        if self._fence.see(head) == "fence" or self._fence.is_open or self.second_label:
            return
        found = label_of(head, self._allowed)
        if found and found.label != self._label:
            self.second_label, self.second_line = found.label, self._line

    def _rest_of_line(self, text: str) -> str:
        """The rest of a line is text, whatever it holds. Most of a reply goes through here."""
        end = text.find("\n") + 1
        if not end:
            self._emit(text)
            return ""
        self._line += 1
        self._stage = self._begin_line
        self._emit(text[:end])
        return text[end:]

    def _open_block(self, head: str, tag: int) -> str:
        self._block, self._depth, self._tail = [head[:tag]], 1, ""
        self._stage = self._think
        return head[tag:]

    def _think(self, text: str) -> str:
        """Hold a thinking block until it is closed."""
        window, offset = self._tail + text, len(self._tail)
        at = find_tag(window)
        while at >= 0:
            found = OPENER.match(window, at) or CLOSER.match(window, at)
            if found and found.end() > offset:
                self._depth += 1 if OPENER.match(window, at) else -1
                if self._depth == 0:
                    return self._close_block(text, found.start() - offset, found.end() - offset)
            at = find_tag(window, at + 1)
        self._block.append(text)
        self._tail = window[-MAX_TAG_CHARS:]
        return ""

    def _close_block(self, text: str, start: int, end: int) -> str:
        """The block was thinking. `start` may lie before `text`, in what is held already."""
        inner = "".join(self._block[1:])
        inner = inner + text[:start] if start >= 0 else inner[:start]
        self._out.append(Part("thinking", inner))
        self._line += inner.count("\n")
        self._block, self._tail = [], ""
        self._separator = Separator("")
        self._stage = self._after_block
        return text[end:]

    def _after_block(self, text: str) -> str:
        rest = self._separator.feed(text)
        if rest is None:
            return ""
        self._stage = self._begin_line
        return rest


def _plain_end(text: str) -> int:
    """Where the whole lines at the beginning of `text` end that are nothing but text."""
    special = _SPECIAL_LINE.search(text)
    return text.rfind("\n", 0, special.start() + 1 if special else len(text)) + 1


def _control_start(text: str) -> int:
    """Where the control tokens that `text` ends with begin, -1 if it ends with none.

    A token that is still under way counts.
    """
    at = text.rfind("<")
    if at < 0 or len(text) - at > _MAX_TAIL_CHARS:
        return -1
    if not may_become_token(text[at:]) and not CONTROL_TAIL.fullmatch(text, at):
        return -1
    before = CONTROL_TAIL.search(text, max(0, at - _MAX_TAIL_CHARS), at)
    return text.index("<", before.start()) if before else at
