"""Finding an agent by its path: `file.py:name` or `package.module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from fsm_agent.errors import AgentNotFound, did_you_mean

from .agent import Agent

_PACKAGE = str(Path(__file__).resolve().parents[1])


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
        kind = type(found).__name__
        raise AgentNotFound(f"{path} is {_article(kind)} {kind}, not an Agent.")
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
        if place != error.name and not place.startswith(f"{error.name}."):
            raise AgentNotFound(f"{place} fails when imported: {_cause(error)}") from error
        raise AgentNotFound(f"there is no module {place!r} ({error}).") from error
    except Exception as error:
        raise AgentNotFound(f"{place} fails when imported: {_cause(error)}") from error
    finally:
        sys.path.remove("")


def _article(word: str) -> str:
    return "an" if word[:1].lower() in "aeiou" else "a"


def _cause(error: Exception) -> str:
    """What was raised, and in which line of whose file: the last one that is not Python's own."""
    words = f"{type(error).__name__}: {error}".split("\n", 1)[0]
    if isinstance(error, SyntaxError):
        return words  # it names the line itself
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename != __file__
    ]
    own = [frame for frame in frames if not _is_of_packages(frame.filename)]
    if not frames:
        return words
    last = (own or frames)[-1]
    return f"{words} ({last.filename}, line {last.lineno})"


def _is_of_packages(filename: str) -> bool:
    """Whether a file is Python's, an installed package's, or ours: the fault is seldom there."""
    places = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), _PACKAGE)
    return any(Path(filename).is_relative_to(place) for place in places)
