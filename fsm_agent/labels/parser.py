"""What a reply is made of, read as it comes: its label, its thinking, and its body."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from fsm_agent.labels.body import Body
from fsm_agent.labels.grammar import Separator, lstrip_invisible, read_head
from fsm_agent.labels.lines import label_of
from fsm_agent.labels.parts import Part, PartKind
from fsm_agent.labels.tags import CLOSER, find_tag, may_become_tag
from fsm_agent.labels.thinking import Thinking

SLIP_CHARS = 120  # a label is still taken if so much stands before its line's end


class Parsed(NamedTuple):
    """A whole reply. Without a label, `text` is the draft; `slip` is what stood before a label."""

    label: str | None
    text: str
    thinking: str
    slip: str = ""
    second_label: str | None = None
    second_line: int = 0


class Parser:
    """Takes a reply in any split, and gives the same parts.

    The label is looked for in the first 64 visible characters. Once it is known it stays, and the
    work for a chunk depends on the chunk alone. Without I/O, clock or exceptions.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = tuple(allowed)
        self.label: str | None = None
        self._body = Body(self.allowed)
        self._out: list[Part] = []
        self._held = ""  # text of the present stage that is not decided yet
        self._thinking = Thinking(self.allowed)
        self._separator = Separator("")
        self._stage: Callable[[str], str] = self._probe
        self._is_routing = False

    @property
    def second_label(self) -> str | None:
        """Another label of the vocabulary that the body holds, in backticks at a line's start."""
        return self._body.second_label

    @property
    def second_line(self) -> int:
        """The line of the second label, counted from 1 in the body."""
        return self._body.second_line

    @property
    def is_locked(self) -> bool:
        """Whether the label is known."""
        return self.label is not None

    def feed(self, text: str) -> list[Part]:
        """The parts that `text` settles."""
        if self._is_routing and self._body.is_inside_line(text):
            return [Part("body", text)]  # as most of a reply is
        while text:
            text = self._stage(text)
        return self._take()

    def close(self) -> list[Part]:
        """The parts that were still open when the reply ended."""
        if self._stage == self._think:
            self._end_thinking()
        if self._stage == self._probe:
            self._end_probe()
        if self._stage == self._doubt:
            self._end_doubt()
        if self._stage == self._draft:
            self._emit("draft", self._pop_held())
        self._out += self._body.close()
        return self._take()

    def _take(self) -> list[Part]:
        out, self._out = self._out, []
        return out

    def _emit(self, kind: PartKind, text: str) -> None:
        if text:
            self._out.append(Part(kind, text))

    # Each stage takes text, and gives back what the next stage has to take.

    def _probe(self, text: str) -> str:
        """Look for the label, one character at a time: so the split cannot matter."""
        for at, char in enumerate(text):
            self._held += char
            if len(self._held) == 1 and not lstrip_invisible(char):
                self._held = ""
                continue
            if self._decide(ended=False):
                return self._pop_held() + text[at + 1 :]
        return ""

    def _decide(self, *, ended: bool) -> bool:
        """Whether the beginning is decided: then the stage is the next one."""
        head = read_head(self._held, self.allowed, ended=ended)
        if head is None:
            return False
        self._held = self._held[head.taken :]
        match head.kind:
            case "label":
                self._lock(head.label, head.extras)
            case "opener":
                self._thinking, self._stage = Thinking(self.allowed), self._think
            case "none":
                self._stage = self._doubt
        return True

    def _lock(self, label: str, extras: str) -> None:
        self.label, self._stage = label, self._separate
        self._separator = Separator(extras)
        self._body.begin(label)
        self._emit("label", label)

    def _pop_held(self) -> str:
        held, self._held = self._held, ""
        return held

    def _end_probe(self) -> None:
        while self._held:
            self._decide(ended=True)
            if self._stage != self._probe:
                rest = self._pop_held()
                while rest:
                    rest = self._stage(rest)
                return

    def _separate(self, text: str) -> str:
        rest = self._separator.feed(text)
        if rest is None:
            return ""
        self._stage, self._is_routing = self._route, True
        return rest

    def _route(self, text: str) -> str:
        self._out += self._body.feed(text)
        return ""

    def _doubt(self, text: str) -> str:
        """The reply begins without a label: see whether one comes in the next line or so."""
        for at, char in enumerate(text):
            self._held += char
            if char == "\n" and (rest := self._slip()) is not None:
                return rest + text[at + 1 :]
            if char == ">" or len(self._held) >= SLIP_CHARS:
                self._stage = self._draft
                return self._pop_held() + text[at + 1 :]
        return ""

    def _slip(self) -> str | None:
        """Take the label of the present line, if it has one, and give back the rest of the line."""
        start = self._held.rstrip("\n").rfind("\n") + 1
        found = label_of(self._held[start:], self.allowed)
        if found is None or not start:
            return None
        before, line = self._held[:start], self._pop_held()[start:]
        self._emit("draft", before)
        self._out.append(Part("slipped", ""))
        self._lock(found.label, "")
        return line[found.end :]

    def _end_doubt(self) -> None:
        rest = self._slip()
        if rest is None:
            self._emit("draft", self._pop_held())
        while rest:
            rest = self._stage(rest)

    def _draft(self, text: str) -> str:
        """Text without a label. A closing tag says that it was thinking all along."""
        text = self._pop_held() + text
        at = find_tag(text)
        while at >= 0:
            if (found := CLOSER.match(text, at)) and not text[:at].endswith("`"):
                self._emit("draft", text[:at])
                self._out.append(Part("demoted", ""))
                self._stage = self._probe
                return text[found.end() :]
            if may_become_tag(text, at):
                at = max(0, at - 1)  # with the character before the tag
                break
            at = find_tag(text, at + 1)
        cut = at if at >= 0 else len(text) - 1
        self._emit("draft", text[:cut])
        self._held = text[cut:]
        return ""

    def _think(self, text: str) -> str:
        thinking, rest = self._thinking.feed(text)
        self._emit("thinking", thinking)
        if rest is None:
            return ""
        self._stage = self._probe
        return rest

    def _end_thinking(self) -> None:
        thinking, answer = self._thinking.close()
        self._emit("thinking", thinking)
        self._stage = self._probe
        while answer:
            answer = self._stage(answer)


def parse(text: str, allowed: Iterable[str]) -> Parsed:
    """The whole of a reply that is there at once."""
    parser = Parser(allowed)
    return gather(parser, [*parser.feed(text), *parser.close()])


def gather(parser: Parser, parts: Iterable[Part]) -> Parsed:
    """What the parts that `parser` gave amount to."""
    thinking: list[str] = []
    texts: list[str] = []
    slip = ""
    for kind, text in parts:
        if kind == "thinking":
            thinking.append(text)
        elif kind == "demoted":
            thinking += texts
            texts = []
        elif kind == "slipped":
            slip, texts = "".join(texts), []
        elif kind != "label":
            texts.append(text)
    return Parsed(
        parser.label,
        "".join(texts),
        "".join(thinking),
        slip,
        parser.second_label,
        parser.second_line,
    )
