"""Finding an agent by its path: `file.py:name` or `package.module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from fsm_agent.errors import AgentNotFound, did_you_mean

from .agent import Agent


def load_agent(path: str) -> Agent:
    """The agent at `path`. Its module is imported, so it must be code that you trust.

    Raises AgentNotFound, saying which part of the path leads nowhere.
    """
    place, _, name = path.rpartition(":")
    if not place or not name:
        raise AgentNotFound(
            f"{path!r} is not the path of an agent. "
            "Use FILE.py:NAME or MODULE:NAME, for example examples/repo_report.py:agent."
        )
    module = _from_file(place) if place.endswith(".py") else _from_name(place)
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if isinstance(value, Agent)]
        known = f" Agents there: {', '.join(names)}." if names else " It defines no agent."
        raise AgentNotFound(f"{place} has no {name!r}.{did_you_mean(name, names)}{known}")
    found = getattr(module, name)
    if callable(found) and not isinstance(found, Agent):
        found = found()
    if not isinstance(found, Agent):
        raise AgentNotFound(f"{path} is a {type(found).__name__}, not an Agent.")
    return found


def _from_file(place: str) -> ModuleType:
    file = Path(place).expanduser().resolve()
    if not file.is_file():
        raise AgentNotFound(f"there is no file {place}. Give the path of the agent's file.")
    name = f"fsm_agent_file_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise AgentNotFound(f"{place} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: its annotations are looked up there
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise AgentNotFound(f"{place} fails when imported: {_cause(error)}") from error
    finally:
        sys.path.remove(str(file.parent))
    return module


def _from_name(place: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise AgentNotFound(f"there is no module {place!r} ({error}).") from error
    except Exception as error:
        raise AgentNotFound(f"{place} fails when imported: {_cause(error)}") from error
    finally:
        sys.path.remove("")


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n", 1)[0]
