"""The pieces that a reply is read into."""

from __future__ import annotations

from typing import Literal, NamedTuple

PartKind = Literal["label", "thinking", "body", "draft", "demoted", "slipped"]


class Part(NamedTuple):
    """A piece of a reply.

    `label` comes at most once, before any `body`. `draft` is text without a label. `demoted` says
    that all draft so far was thinking whose opening tag never came, and `slipped` that it was a
    courtesy before the label, which comes next. Neither repeats the text.
    """

    kind: PartKind
    text: str
