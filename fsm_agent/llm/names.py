"""Which offered tool a name in a reply means."""

from __future__ import annotations

import re
from collections.abc import Collection

_PREFIX = re.compile(r"(?:(?:functions?|tools?|default_api|multi_tool_use)(?:::|[.:/]))+")
_COUNTER = re.compile(r":\d+\Z")
_LEADING_TOKEN = re.compile(r"(?:\s*<[|｜][^<>]*[|｜]>)+\s*")
_MARKUP = re.compile(r"<.*|\[ARGS\].*|\(\s*\)\Z", re.DOTALL)
_RECIPIENT = re.compile(r"(?:^|\s)to=(\S+)")
_WRAPPING = " \t\r\n`\"'*\u200b\u200c\u200d\u2060\ufeff"


def offered_name(raw: str, offered: Collection[str]) -> str:
    """The offered tool that `raw` names once known decoration is off, else `raw` trimmed.

    Never a similar one: an unknown name stays unknown, and the model is told so.
    """
    if raw in offered:
        return raw
    trimmed = raw.strip()
    recipient = _RECIPIENT.search(raw)
    bare = recipient[1] if recipient else raw
    bare = bare[found.end() :] if (found := _LEADING_TOKEN.match(bare)) else bare
    bare = _MARKUP.sub("", bare).strip(_WRAPPING)
    without_prefix = bare[found.end() :] if (found := _PREFIX.match(bare)) else bare
    for name in (bare, without_prefix, _COUNTER.sub("", without_prefix), _COUNTER.sub("", bare)):
        if name in offered:
            return name
    return bare or trimmed
