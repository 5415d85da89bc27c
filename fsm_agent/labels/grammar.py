"""What the beginning of a reply says: a label, a thinking tag, nothing, or not yet known.

`read_head` looks at a text from its first visible character. It is asked again for each further
character until it decides, so a decision depends on the text alone and never on the chunks.

A label may be written

* in 1 or more backticks, of any case; too many or too few closing ones do not matter;
* in emphasis (``**FINISH**``) or brackets (``【FINISH】``);
* in quotes, alone on its line or before a colon;
* bare: alone on its line, or before a colon, a dash, a tab or a wide space. Before a plain space
  it is the first word of a sentence (``THINK about it``), and no label.

Markdown in front of it (``# ``, ``- ``, ``> ``) is passed over, as is everything invisible.
"""

from __future__ import annotations

import unicodedata
from typing import Literal, NamedTuple

from fsm_agent.labels.tags import (
    BRACKET_OPENER,
    CLOSER,
    CONTROL,
    OPENER,
    TAG_STARTS,
    may_become_tag,
)

WINDOW_CHARS = 64  # visible characters after which a beginning that is not decided is no label

TICKS = "`｀"
BLANKS = " \t\u00a0\u3000"
COLONS = ":："
_NEWLINES = "\n\r\u2028\u2029\x0b\x0c\x85"
_DASHES = "—–"
_BRACKETS = {"【": "】", "[": "]"}
_QUOTES = {
    '"': '"', "'": "'", "“": "”", "‘": "’", "「": "」", "『": "』", "《": "》",
    "«": "»", "„": "“", "＂": "＂", "<": ">", "(": ")",
}  # fmt: skip

Kind = Literal["label", "opener", "closer", "control", "none"]


class Head(NamedTuple):
    """What was found: its kind, the label if it is one, and how many characters it took.

    `extras` are the characters that may still belong to the decoration after the label.
    """

    kind: Kind
    taken: int = 0
    label: str = ""
    extras: str = ""


NONE = Head("none")


class _NeedMore(Exception):
    """The text ends where the next character would decide."""


def is_invisible(char: str) -> bool:
    """Whether the character takes no ink: white space, zero-width, BOM, and other format marks."""
    return char.isspace() or unicodedata.category(char) == "Cf"


def lstrip_invisible(text: str) -> str:
    """`text` from its first visible character."""
    for at, char in enumerate(text):
        if not is_invisible(char):
            return text[at:]
    return ""


def read_head(text: str, allowed: tuple[str, ...], *, ended: bool) -> Head | None:
    """What `text` begins with, or None while more of it could decide otherwise.

    With `ended` it is never None. The first character of `text` is visible.
    """
    try:
        return _Scan(text, allowed, ended).head()
    except _NeedMore:
        return None if len(text) < WINDOW_CHARS else NONE


class _Scan:
    """One look at a beginning, from left to right. Raises _NeedMore at its open end."""

    def __init__(self, text: str, allowed: tuple[str, ...], ended: bool) -> None:
        self.text, self.allowed, self.ended = text, allowed, ended
        self.at = 0

    def peek(self) -> str:
        """The next character; '' at the end of the reply."""
        if self.at < len(self.text):
            return self.text[self.at]
        if self.ended:
            return ""
        raise _NeedMore

    def skip(self, chars: str, most: int = 1 << 30) -> int:
        """Pass over any of `chars`, and say how many there were."""
        start = self.at
        while self.at - start < most and (char := self.peek()) and char in chars:
            self.at += 1
        return self.at - start

    def skip_invisible(self, but: str = _NEWLINES) -> None:
        while (char := self.peek()) and is_invisible(char) and char not in but:
            self.at += 1

    def head(self) -> Head:
        if self.text[0] in TAG_STARTS and (tag := self.tag()):
            return tag
        if self.text[0] == "[" and (tag := self.bracketed_thinking()):
            return tag
        if not self.skip_markers():
            return NONE
        emphasis = self.emphasis()
        char = self.peek()
        if char and char in TICKS:
            return self.ticked(char, emphasis)
        for pairs, is_glued in ((_BRACKETS, True), (_QUOTES, False)):
            if char in pairs:
                self.at += 1
                return self.enclosed(pairs[char], is_glued)
        return self.emphasised(emphasis) if emphasis else self.bare()

    def tag(self) -> Head | None:
        """The tag or control token at the beginning, None if there is none."""
        for pattern, kind in ((OPENER, "opener"), (CLOSER, "closer"), (CONTROL, "control")):
            if found := pattern.match(self.text):
                # `<|start|>assistant`: the role may go on in the next chunk.
                if kind == "control" and found.end() == len(self.text) and self.text[-1] not in ">":
                    self.at = len(self.text)
                    self.peek()
                if kind == "control" and found[0].lower() in ("<|channel|>", "<|start|>"):
                    self.at = found.end()
                    self.wait_for_message()
                return Head(kind, found.end())  # type: ignore[arg-type]
        if may_become_tag(self.text, 0):
            self.at = len(self.text)
            self.peek()
        return None

    def bracketed_thinking(self) -> Head | None:
        """`[THINK]`, unless that is a label in brackets."""
        if any(label.casefold() == "think" for label in self.allowed):
            return None
        for pattern in (BRACKET_OPENER, CLOSER):
            if found := pattern.match(self.text):
                return Head("opener" if pattern is BRACKET_OPENER else "closer", found.end())
        return None

    def wait_for_message(self) -> None:
        """`<|channel|>` alone decides nothing: the name of the channel comes after it."""
        if "<|message|>" not in self.text:
            self.at = len(self.text)
            self.peek()

    def skip_markers(self) -> bool:
        """Pass over headings, list bullets and quote marks; False where one is malformed."""
        while (char := self.peek()) in ("#", "-", "+", ">"):
            self.skip(char, 6 if char == "#" else 1)
            if not self.skip(BLANKS):
                return False
        return True

    def emphasis(self) -> str:
        """The run of stars or underscores here. A star before a blank is a list bullet."""
        char = self.peek()
        if char not in ("*", "_"):
            return ""
        count = self.skip(char, 3)
        if count == 1 and char == "*" and self.skip(BLANKS):
            return ""
        return char * count

    def label(self, *, any_case: bool) -> str:
        """Pass over the longest allowed label here; '' if there is none."""
        rest = self.text[self.at :]
        given = rest.casefold() if any_case else rest
        best = ""
        for label in self.allowed:
            wanted = label.casefold() if any_case else label
            if given.startswith(wanted):
                best = max(best, label, key=len)
            elif wanted.startswith(given) and not self.ended:
                raise _NeedMore  # a longer label may be under way
        self.at += len(best)
        return best

    def ticked(self, tick: str, emphasis: str) -> Head:
        opened = self.skip(tick)
        self.skip_invisible(but="" if opened >= 3 else _NEWLINES)
        if opened >= 3 and (char := self.peek()) and char in TICKS:  # a fence around the reply
            opened, tick = self.skip(char), char
            self.skip_invisible()
        label = self.label(any_case=True)
        if not label:
            return NONE
        self.skip_invisible()
        start = self.at
        if self.skip(COLONS, 1) and not self.skip(tick, opened):
            self.at = start  # the colon stands between label and body
        elif self.at > start:
            return Head("label", self.at, label, TICKS + emphasis[:1])
        if not self.skip(tick, opened) and not self.is_line_end() and self.peek() not in COLONS:
            return NONE
        return Head("label", self.at, label, TICKS + emphasis[:1])

    def enclosed(self, closer: str, is_glued: bool) -> Head:
        self.skip_invisible()
        label = self.label(any_case=False)
        if not label:
            return NONE
        self.skip_invisible()
        if not self.skip(closer, 1):
            return NONE
        taken = self.at
        if not is_glued and not self.is_separated():
            return NONE
        return Head("label", taken, label)

    def emphasised(self, marks: str) -> Head:
        label = self.label(any_case=False)
        if not label:
            return NONE
        self.skip(BLANKS)
        self.skip(COLONS, 1)
        if self.skip(marks[0], len(marks)) < len(marks):
            return NONE
        return Head("label", self.at, label)

    def bare(self) -> Head:
        label = self.label(any_case=False)
        if not label:
            return NONE
        taken = self.at
        if self.is_separated():
            return Head("label", taken, label)
        gap = self.text[taken : self.at]
        if "\t" in gap or "\u3000" in gap:
            return Head("label", taken, label)
        if self.skip(_DASHES):
            return Head("label", self.at, label)
        if gap and self.skip("-", 1) and self.skip(BLANKS):
            return Head("label", self.at, label)
        return NONE

    def is_line_end(self) -> bool:
        char = self.peek()
        return not char or char in _NEWLINES

    def is_separated(self) -> bool:
        """Whether the line ends here or a colon comes, after any blanks, which are passed over."""
        self.skip_invisible()
        return self.is_line_end() or self.peek() in COLONS


class Separator:
    """What stands between a label and its body, and belongs to neither.

    The rest of the decoration, blanks, one colon, and one line break: after that, or at the first
    other character, the body begins. Its own indentation stays.
    """

    def __init__(self, extras: str) -> None:
        self._extras = extras
        self._had_colon = self._had_return = False

    def feed(self, text: str) -> str | None:
        """The beginning of the body, or None while there is none yet."""
        for at, char in enumerate(text):
            if self._had_return:
                return text[at + 1 :] if char == "\n" else text[at:]
            if char == "\r":
                self._had_return = True
            elif char == "\n":
                return text[at + 1 :]
            elif char in self._extras:
                pass
            elif char in COLONS and not self._had_colon:
                self._had_colon = True
                self._extras = self._extras.strip(TICKS)
            elif char in BLANKS or is_invisible(char):
                self._extras = ""
            else:
                return text[at:]
        return None


class Reading(NamedTuple):
    """The outcome of `read_label`. `rest` is the body so far, or the whole text if unknown."""

    state: Literal["matched", "need_more", "unknown"]
    label: str | None
    rest: str


def read_label(text: str, allowed: tuple[str, ...], *, ended: bool) -> Reading:
    """The label that `text` begins with, as it stands: tags of thinking are not looked for."""
    visible = lstrip_invisible(text)
    for length in range(1, len(visible) + 1):
        head = read_head(visible[:length], allowed, ended=ended and length == len(visible))
        if head is None:
            continue
        if head.kind != "label":
            return Reading("unknown", None, text)
        rest = Separator(head.extras).feed(visible[head.taken :])
        return Reading("matched", head.label, rest or "")
    return Reading("unknown", None, text) if ended else Reading("need_more", None, "")
