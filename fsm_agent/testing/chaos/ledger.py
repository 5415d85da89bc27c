"""Effects in a file outside the store, as the world would see them: one line each, appended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple


class Effect(NamedTuple):
    """Something was sent to the world."""

    tool: str
    run_id: str
    key: str


def record(path: Path, tool: str, run_id: str, key: str) -> None:
    """An effect happens now."""
    line = json.dumps(Effect(tool, run_id, key)) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def effects(path: Path) -> list[Effect]:
    """Every effect so far, in order."""
    if not path.exists():
        return []
    return [Effect(*json.loads(line)) for line in path.read_text().splitlines()]
