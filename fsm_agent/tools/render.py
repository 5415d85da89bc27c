"""How the arguments of a call are shown to the person who approves it."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

MAX_VALUE_CHARS = 2000
MAX_LINES = 200
CONTINUED = "  │ "  # before each further line of one value: no value can look like another argument

_BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"  # letters and patterns that look like nothing
_LONG_SPACE = re.compile(r" {9,}")
_WORD = re.compile(r"\w+")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LOOKALIKES = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE")


def render_arguments(
    arguments: str, *, max_value_chars: int = MAX_VALUE_CHARS, max_lines: int = MAX_LINES
) -> list[str]:
    """Lines such as `to: "mia@example.org"` for a canonical JSON object, one for each value.

    What a person cannot see is marked: ⟦U+202E⟧ for a character that is invisible or turns the
    text around, ⟦40 spaces⟧, ⟦mixed scripts …⟧, and how much is hidden of what is long.
    """
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    if value == {}:
        return ["(no arguments)"]
    lines: list[str] = []
    hidden = 0
    for path, leaf in leaves(value):
        if len(lines) >= max_lines:
            hidden += 1
            continue
        shown = _shown(leaf, max_value_chars)
        first, *more = (f"{path}: {shown}" if path else shown).split("\n")
        lines += [first, *(CONTINUED + line for line in more)]
    if len(lines) > max_lines:
        hidden += len(lines) - max_lines
    tail = [f"⟦{hidden:,} more lines hidden⟧"] if hidden else []
    return lines[:max_lines] + tail


def mark_hidden(text: str) -> str:
    """`text` on one or more lines, with a marker in place of what cannot be seen."""
    marked = "".join(map(_marked, text))
    marked = _LONG_SPACE.sub(lambda found: f"⟦{len(found.group()):,} spaces⟧", marked)
    return _WORD.sub(_with_scripts, marked)


def leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Each value without values inside, with its path. No recursion: the model chose the depth."""
    stack = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, dict) and item:
            inner = [(f"{path}.{_key(k)}" if path else _key(k), v) for k, v in item.items()]
        elif isinstance(item, list) and item:
            inner = [(f"{path}[{index}]", v) for index, v in enumerate(item)]
        else:
            yield path, item
            continue
        stack.extend(reversed(inner))


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else _quoted(key).replace("\n", "⟦U+000A⟧")


def _shown(leaf: Any, max_chars: int) -> str:
    if not isinstance(leaf, str):
        return json.dumps(leaf)
    if len(leaf) <= max_chars:
        return _quoted(leaf)
    head = max_chars * 3 // 4
    tail = max_chars - head
    gap = f"⟦{len(leaf) - max_chars:,} of {len(leaf):,} characters hidden⟧"
    return f"{_quoted(leaf[:head])} {gap} {_quoted(leaf[-tail:])}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{mark_hidden(escaped)}"'


def _marked(char: str) -> str:
    if char == "\n":
        return "⏎\n"
    if " " <= char <= "~":
        return char
    return f"⟦U+{ord(char):04X}⟧" if is_hidden(char) else char


def is_hidden(char: str) -> bool:
    """Controls, formats (bidi, zero width, tags), odd spaces, unassigned; and our own brackets."""
    if char in _BLANK_LETTERS or char in "⟦⟧⏎│":
        return True
    is_selector = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return is_selector or unicodedata.category(char)[0] in "CZ"


def _with_scripts(found: re.Match[str]) -> str:
    """A word of two alphabets that look alike, such as pаypal with a Cyrillic а, says so."""
    word = found.group()
    if word.isascii():
        return word
    names = {unicodedata.name(char, "").partition(" ")[0] for char in word if char.isalpha()}
    mixed = [name.title() for name in _LOOKALIKES if name in names]
    return f"{word}⟦mixed scripts: {', '.join(mixed)}⟧" if len(mixed) > 1 else word
