"""Which marks in a reply are thinking tags or control tokens, however they are spelled."""

from __future__ import annotations

import re

MAX_TAG_CHARS = 64  # the longest tag that is waited for while its end has not come

_GAP = r"\s{0,4}"  # bounded, so that a tag is one however it is cut into chunks
_WORDS = (
    r"(?:(?:seed:|mm:|ant)?think(?:ing)?|thoughts?|reasoning|reflection"
    r"|think_never_used_\w{1,40})"
)
_CHANNEL = rf"<\|channel\|>{_GAP}"
OPENER = re.compile(
    rf"<{_GAP}{_WORDS}(?:\s\w{{1,8}}=[^<>]{{1,16}})?{_GAP}>|<\|{_WORDS}\|>|◁{_GAP}think{_GAP}▷"
    rf"|<\|begin_of_thought\|>|{_CHANNEL}(?:analysis|commentary){_GAP}<\|message\|>",
    re.IGNORECASE,
)
CLOSER = re.compile(
    rf"<{_GAP}/{_GAP}{_WORDS}{_GAP}>|<\|/{_WORDS}\|>|◁{_GAP}/{_GAP}think{_GAP}▷|\[/THINK\]"
    rf"|<\|end_of_thought\|>|<\|end\|>|{_CHANNEL}final{_GAP}<\|message\|>",
    re.IGNORECASE,
)
# Mistral's. Only where no label is called THINK, which in brackets is one.
BRACKET_OPENER = re.compile(r"\[THINK\]")
# Chat template tokens that some servers leave in the text: skipped before a label, cut at the end.
CONTROL = re.compile(
    rf"<\|start\|>{_GAP}\w*|{_CHANNEL}\w{{1,16}}{_GAP}<\|message\|>|<[|｜][^<>\s|｜]{{1,32}}[|｜]>"
    r"|</?s>|<bos>|<eos>|<(?:start|end)_of_turn>"
)
CONTROL_TAIL = re.compile(
    r"(?:\s{0,8}(?:<[|｜](?:end|eot|eom|eos|im_end|begin|return|call|user)[^<>\s|｜]{0,24}[|｜]>"
    r"|<\|im_start\|>[a-z]{0,9}|</s>|<eos>|<end_of_turn>))+\s*\Z",
    re.IGNORECASE,
)
TAG_STARTS = "<◁"
_START = re.compile(r"[<◁\[]")
_OPEN = re.compile(
    rf"<[^<>]*|◁[^▷]*|\[(?:/?(?:T(?:H(?:I(?:NK?)?)?)?)?)?|{_CHANNEL}\w{{0,16}}{_GAP}(?:<[^<>]*)?",
    re.IGNORECASE,
)
_TOKEN_OPEN = re.compile(
    r"<(?:[|｜][^<>\s|｜]{0,32}[|｜]?|/s?|e(?:o?s?|n|nd[a-z_]{0,10})|\|im_start\|>[a-z]{0,9})?",
    re.IGNORECASE,
)


def find_tag(text: str, at: int = 0) -> int:
    """Where a tag may begin, at `at` or after; -1 if nowhere."""
    found = _START.search(text, at)
    return found.start() if found else -1


def may_become_tag(text: str, at: int) -> bool:
    """Whether a tag that starts at `text[at]` may still be under way at the end of `text`."""
    return len(text) - at < MAX_TAG_CHARS and _OPEN.fullmatch(text, at) is not None


def may_become_token(text: str) -> bool:
    """Whether `text`, which begins with ``<``, may be the beginning of a control token."""
    return _TOKEN_OPEN.fullmatch(text) is not None
