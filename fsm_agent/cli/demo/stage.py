"""What the demo plays on: a folder of its own, with the desk's files, a store and logs."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsm_agent
from fsm_agent.cli.failures import CliError

LEASE_S = 2.0
PREFIX = "fsm-agent-demo-"


@dataclass(frozen=True)
class Sending:
    """One line of the ledger: something was sent to the bank."""

    what: str
    key: str
    took_effect: bool


@dataclass(frozen=True)
class Stage:
    """Where everything is."""

    folder: Path
    agent_file: Path

    @property
    def store(self) -> str:
        return f"embedded:{self.folder / 'store'}"

    @property
    def agent_path(self) -> str:
        return f"{self.agent_file}:agent"

    @property
    def ledger(self) -> Path:
        return self.folder / "desk" / "ledger.jsonl"

    def sendings(self, what: str | None = None) -> list[Sending]:
        """What was sent to the bank so far, in order. The ledger knows nothing of the store."""
        try:
            lines = self.ledger.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return []
        entries: list[dict[str, Any]] = [json.loads(line) for line in lines[:-1]]
        return [
            Sending(entry["what"], entry["key"], entry["took_effect"])
            for entry in entries
            if what in (None, entry["what"])
        ]

    def environment(self, base_url: str) -> dict[str, str]:
        """The environment of a worker: the scripted model, and the desk's files."""
        package = str(Path(fsm_agent.__file__).resolve().parent.parent)
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        return os.environ | {
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": "the-demo-needs-none",
            "FSM_AGENT_MODEL": "scripted",
            "NO_PROXY": "127.0.0.1",
            "REFUND_DESK_DIR": str(self.folder / "desk"),
            "PYTHONPATH": os.pathsep.join(paths),
        }


def set_up() -> Stage:
    """A new stage in a temporary folder, which is kept. Raises CliError or OSError."""
    source = examples()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    shutil.copytree(
        source / "refund_desk_data", folder / "desk", ignore=shutil.ignore_patterns("ledger.jsonl")
    )
    return Stage(folder, source / "refund_desk.py")


def left_behind(stage: Stage) -> int:
    """How many folders of other demos are beside this one: nobody throws them away."""
    return sum(folder != stage.folder for folder in stage.folder.parent.glob(f"{PREFIX}*"))


def examples() -> Path:
    """The examples of this checkout, or those that came with the package."""
    package = Path(fsm_agent.__file__).resolve().parent
    places = (package.parent / "examples", package / "_examples")
    for place in places:
        if (place / "refund_desk.py").is_file() and (place / "refund_desk_data").is_dir():
            return place
    raise CliError(
        f"the demo's files are neither in {places[0]} nor in {places[1]}. Install fsm-agent again."
    )
