"""Which file an agent came from: kept on this machine, never in the store.

A store may be written by others, and importing what it names would run their code.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from checkpoints.address import parse, without_password
from fsm_agent.capabilities.agent import Agent
from fsm_agent.cli.failures import USAGE, CliError
from fsm_agent.cli.process import say

KEPT_RUNS = 1000

JsonObject = dict[str, Any]


def load(path: str, folder: str | None = None) -> Agent:
    """The agent at `path`. Raises AgentNotFound, or CliError if its code fails in another way."""
    from fsm_agent.capabilities.load import load_agent
    from fsm_agent.errors import AgentError

    if folder:
        sys.path.insert(0, folder)
    try:
        return load_agent(path)
    except AgentError:
        raise
    except (Exception, SystemExit) as error:
        cause = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        raise CliError(f"{path} fails when imported: {cause}. Mend the file.", USAGE) from error


def remember(store: str, agent: Agent, path: str, run_id: str | None = None) -> None:
    """Keep where `agent` came from. A folder that refuses is no error."""
    file = _file(store)
    kept = _read(file)
    place = {"path": _absolute(path), "folder": os.getcwd()}
    kept["agents"][agent.name] = place
    if run_id is not None:
        kept["runs"].pop(run_id, None)
        kept["runs"][run_id] = place
        for old in list(kept["runs"])[:-KEPT_RUNS]:
            del kept["runs"][old]
    try:
        _write(file, kept)
    except OSError as error:
        say(f"note: {file} cannot be written ({error.strerror}): resume will need --agent.")


def recall(store: str, run_id: str, name: str, *, way_on: str = "") -> Agent:
    """The agent of a run, from the path that this machine remembers.

    Raises CliError; `way_on` is what to do where it is not remembered.
    """
    kept = _read(_file(store))
    place = kept["runs"].get(run_id) or kept["agents"].get(name)
    if not isinstance(place, dict) or not isinstance(place.get("path"), str):
        raise CliError(
            f"this machine does not know where the agent {name!r} of run {run_id} comes from."
            f" {way_on or 'Say so: --agent FILE.py:NAME.'}",
            USAGE,
        )
    return load(place["path"], place.get("folder"))


def recall_all(store: str) -> list[str]:
    """The paths of all agents that were used with this store here."""
    return [place["path"] for place in _read(_file(store))["agents"].values() if "path" in place]


def _absolute(path: str) -> str:
    place, _, name = path.rpartition(":")
    return f"{Path(place).expanduser().resolve()}:{name}" if place.endswith(".py") else path


def _file(store: str) -> Path:
    address = parse(store)
    if address.folder is not None:
        return address.folder / "agents.json"
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    digest = hashlib.sha256(without_password(store).partition("?")[0].encode()).hexdigest()[:12]
    return Path(state) / "fsm-agent" / f"agents-{digest}.json"


def _read(file: Path) -> JsonObject:
    """What is kept; nothing where the file is absent, broken, or may be written by others."""
    kept: JsonObject = {"agents": {}, "runs": {}}
    try:
        status = file.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            say(f"note: {file} can be written by others, so it is not used. Try chmod 600.")
            return kept
        found = json.loads(file.read_text())
        for key in kept:
            if isinstance(found.get(key), dict):
                kept[key] = found[key]
    except (OSError, ValueError, AttributeError):
        pass
    return kept


def _write(file: Path, kept: JsonObject) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        json.dump(kept, out, indent=1)
    draft.replace(file)
