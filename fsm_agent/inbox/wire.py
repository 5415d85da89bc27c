"""JSON in and out: bodies become structs, or a typed refusal."""

from __future__ import annotations

import json
from typing import Any

_UNSAFE = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def encode(value: Any) -> bytes:
    """JSON that no browser can take for a page."""
    return (
        json.dumps(value, ensure_ascii=False, allow_nan=False)
        .translate(_UNSAFE)
        .encode("utf-8", "replace")
    )
