"""A call's arguments as a person reads them: typed rows, and nothing hidden without a mark."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from fsm_agent.tools.render import is_hidden, leaves, mark_hidden

LONG_CHARS, LONG_LINES = 400, 8
MAX_ROWS = 300
_MARK = re.compile(r"(⟦[^⟧]*⟧|⏎)")


class Part(NamedTuple):
    """A piece of text; a mark stands for what cannot be seen."""

    text: str
    is_mark: bool


class ArgumentRow(NamedTuple):
    """One value of the arguments."""

    path: str
    type: str
    size: str  # '12 characters', '': not worth saying
    parts: list[Part]
    hidden: int  # how many characters cannot be seen, or may pass for others
    is_long: bool


def parts_of(text: str) -> list[Part]:
    """Text with marks in place of what cannot be seen. The marks' own signs are marked too, so
    that no text can pass for one."""
    split = _MARK.split(mark_hidden(text))
    return [Part(piece, at % 2 == 1) for at, piece in enumerate(split) if piece]


def argument_rows(arguments: str) -> list[ArgumentRow]:
    """Rows of a canonical JSON object; where it is none, the text as it is."""
    value = _value(arguments)
    if value == {}:
        return []
    rows = [_row(path, leaf) for path, leaf in leaves(value)]
    if len(rows) > MAX_ROWS:
        rest = f"{len(rows) - MAX_ROWS:,} more values: read the raw JSON"
        rows = [*rows[:MAX_ROWS], ArgumentRow("…", "cut", "", [Part(rest, True)], 0, True)]
    return rows


def one_line_arguments(arguments: str, limit: int = 90) -> list[Part]:
    """The arguments on one line, cut where it is long."""
    pairs = [f"{path}: {_brief(leaf)}" if path else _brief(leaf)
             for path, leaf in leaves(_value(arguments))]  # fmt: skip
    line = ", ".join(pairs)
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    return parts_of(line)


def editable(arguments: str) -> str:
    """The arguments as JSON to be changed by hand; what cannot be seen stands as its number."""
    text = json.dumps(_value(arguments), indent=2, ensure_ascii=False)
    return "".join(
        f"\\u{ord(char):04x}" if "~" < char < "\U00010000" and is_hidden(char) else char
        for char in text
    )


def changes(before: str, after: str) -> list[tuple[str, str, str]]:
    """Path, old and new value of what differs; '' for what is not there."""
    old = {path: _brief(leaf) for path, leaf in leaves(_value(before))}
    new = {path: _brief(leaf) for path, leaf in leaves(_value(after))}
    return [
        (path, old.get(path, ""), new.get(path, ""))
        for path in dict.fromkeys((*old, *new))
        if old.get(path) != new.get(path)
    ]


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _row(path: str, leaf: Any) -> ArgumentRow:
    if not isinstance(leaf, str):
        return ArgumentRow(path, _type(leaf), "", [Part(json.dumps(leaf), False)], 0, False)
    parts = parts_of(leaf)
    lines = leaf.count("\n") + 1
    size = f"{len(leaf):,} character{'' if len(leaf) == 1 else 's'}"
    size += f", {lines:,} lines" if lines > 1 else ""
    hidden = sum(part.is_mark and part.text != "⏎" for part in parts)
    is_long = len(leaf) > LONG_CHARS or lines > LONG_LINES
    return ArgumentRow(path, "text", size, parts, hidden, is_long)


def _brief(leaf: Any) -> str:
    return leaf if isinstance(leaf, str) else json.dumps(leaf)


def _type(leaf: Any) -> str:
    match leaf:
        case bool():
            return "yes or no"
        case int() | float():
            return "number"
        case None:
            return "nothing"
        case _:
            return "empty"
