"""Text of a model, a tool or a person as it may be put on a terminal."""

from __future__ import annotations

import textwrap

from fsm_agent.telling.clean import cleaned, one_line, piece

__all__ = ["cleaned", "one_line", "piece", "wrapped"]


def wrapped(text: str, width: int) -> list[str]:
    """The lines of `text`, those that are longer than `width` broken between words."""
    lines: list[str] = []
    for line in text.splitlines():
        if len(line) <= width:
            lines.append(line)
        else:
            lines += textwrap.wrap(line, max(width, 20), break_on_hyphens=False)
    return lines
