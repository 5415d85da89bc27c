"""In which parts two versions of an agent's code differ, in words."""

from __future__ import annotations

from collections.abc import Mapping


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """What became of each part: 'tool refund is gone', 'the protocol has changed'. Parts are
    digests by name, as in Versioned; tools come first, in the order of `before`."""
    found = []
    for name in sorted({**before, **now}, key=lambda name: not name.startswith("tool ")):
        is_tool = name.startswith("tool ")
        said = name if is_tool else f"the {name}"
        verb = "has" if is_tool or not name.endswith("s") else "have"
        if name not in now:
            found.append(f"{said} is gone")
        elif name not in before:
            found.append(f"{said} is new")
        elif before[name] != now[name]:
            found.append(f"{said} {verb} changed")
    return tuple(found)
