"""Which marks in a reply are thinking tags or control tokens, however they are spelled."""

from __future__ import annotations

import re

MAX_TAG_CHARS = 40  # the longest tag that is waited for while its end has not come

_WORDS = r"(?:think|thinking|thought|thoughts|reasoning|reflection)"
OPENER = re.compile(
    rf"<\s*{_WORDS}\s*>|<\|begin_of_thought\|>|<\|channel\|>\s*(?:analysis|commentary)\s*<\|message\|>",
    re.IGNORECASE,
)
CLOSER = re.compile(rf"<\s*/\s*{_WORDS}\s*>|<\|end_of_thought\|>|<\|end\|>", re.IGNORECASE)
# Chat template tokens that some servers leave in the text: skipped before a label, cut at the end.
CONTROL = re.compile(
    r"<\|start\|>\s*\w*|<\|channel\|>\s*\w+\s*<\|message\|>|<[|｜][^<>\s|｜]{1,32}[|｜]>"
)
CONTROL_TAIL = re.compile(
    r"(?:\s*<[|｜](?:end|eot|eos|im_end|begin|return|call)[^<>\s|｜]{0,24}[|｜]>)+\s*\Z"
)


def may_become_tag(text: str, at: int) -> bool:
    """Whether a tag that starts at `text[at]` may still be under way at the end of `text`."""
    return len(text) - at < MAX_TAG_CHARS and ">" not in text[at:]
