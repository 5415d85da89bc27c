"""Text of a model, a tool or a person as it may be put on a screen."""

from __future__ import annotations

import re

_OSC = r"\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links, the clipboard
_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours and cursor moves
_SEQUENCE = re.compile(f"{_OSC}|{_CSI}|\x1b.?", re.DOTALL)

# Controls but tab and line feed, and what turns the direction of text around.
_TURNS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = {
    code: None
    for code in (*range(0x20), *range(0x7F, 0xA0), *_TURNS, 0x2028, 0x2029)
    if code not in (0x09, 0x0A)
}


def cleaned(text: str) -> str:
    """`text` without what would command the terminal; lines and tabs stay."""
    return piece(_SEQUENCE.sub("", text))


def piece(text: str) -> str:
    """A piece of a stream without controls. Half a sequence becomes visible, harmless text."""
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode()


def one_line(text: str, limit: int = 100) -> str:
    """`text` cleaned, on one line of at most `limit` characters."""
    line = " ".join(cleaned(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
