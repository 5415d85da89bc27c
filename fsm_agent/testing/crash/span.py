"""Lengths of time as people write them."""

from __future__ import annotations

import re

from fsm_agent.errors import UsageError

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_UNITS_S = {None: 1, "s": 1, "m": 60, "h": 3600}


def seconds(text: str | float) -> float:
    """Seconds of '90', '60s', '5m', '1h' or a number. Raises UsageError."""
    found = _SPAN.fullmatch(str(text).strip())
    if found is None or not float(found[1]):
        raise UsageError(f"{text!r} is no length of time. Write 60s, 5m or 1h.")
    return float(found[1]) * _UNITS_S[found[2]]
