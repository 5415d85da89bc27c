"""Which offered tool a name in a reply means."""

from __future__ import annotations

import re
from collections.abc import Collection

_PREFIX = re.compile(r"(?:functions?|tools?|default_api|multi_tool_use)[.:/]")
_COUNTER = re.compile(r":\d+\Z")
_CONTROL = re.compile(r"<[|｜].*", re.DOTALL)


def offered_name(raw: str, offered: Collection[str]) -> str:
    """The offered tool that `raw` names once known decoration is off, else `raw` trimmed.

    Never a similar one: an unknown name stays unknown, and the model is told so.
    """
    if raw in offered:
        return raw
    bare = _CONTROL.sub("", raw).strip()
    without_prefix = _PREFIX.sub("", bare, count=1) if _PREFIX.match(bare) else bare
    for name in (bare, without_prefix, _COUNTER.sub("", without_prefix), _COUNTER.sub("", bare)):
        if name in offered:
            return name
    return bare
