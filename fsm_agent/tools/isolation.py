"""Which limits a tool's own process has, and where that process finds the tool's function."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from fsm_agent.errors import BadAgent

Isolation = Literal["none", "process"]
MAIN = "__main__"


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a tool's own process. `env` names the variables that it may see besides PATH,
    language and time zone; all others, such as keys and store addresses, are not there."""

    cpu_s: int = 60  # of each process; the tool's `timeout_s` limits the time on the clock
    memory_mb: int = 512  # address space of each process, its code included
    file_mb: int = 100  # of each file that it writes
    processes: int = 32  # and threads
    env: tuple[str, ...] = ()


class Place(msgspec.Struct, frozen=True):
    """Where a function is found by another process: a name in a module, or in a file."""

    module: str
    qualname: str
    file: str = ""  # for modules that the import system does not find by their name


def refuse_function(function: Callable[..., Any], tool_name: str) -> None:
    """Raises BadAgent for a function that another process can surely not find."""
    name = getattr(function, "__qualname__", "")
    if not inspect.isfunction(function):
        raise _cannot(tool_name, f"{function!r:.80} is not a plain function")
    if "<" in name or "." in name:
        raise _cannot(tool_name, f"{name} is not declared at the top of a module")
    if sys.platform == "win32":
        raise BadAgent(f"tool {tool_name!r}: isolation='process' needs Linux or macOS.")


def refuse_resources(resources: Resources, tool_name: str) -> None:
    """Raises BadAgent for limits under which no tool can run."""
    for name, least in (("cpu_s", 1), ("memory_mb", 64), ("file_mb", 0), ("processes", 1)):
        value = getattr(resources, name)
        if not isinstance(value, int) or value < least:
            raise BadAgent(f"tool {tool_name!r}: {name}={value!r} must be {least} or more.")


def place_of(function: Callable[..., Any], tool_name: str) -> Place:
    """Where the function is found. Raises BadAgent if it is not there under its name.

    Called once its module has run: while a decorator is at work, the name is not there yet.
    """
    module_name, qualname = function.__module__, function.__qualname__
    module = sys.modules.get(module_name)
    found = getattr(module, qualname, None)
    if found is not function and getattr(found, "function", None) is not function:
        raise _cannot(tool_name, f"{module_name}.{qualname} is something else by now")
    file = getattr(module, "__file__", None)
    if module_name != MAIN and _is_importable(module_name, file):
        return Place(module_name, qualname)
    if not file:
        raise _cannot(tool_name, f"its module {module_name!r} has no file")
    return Place(module_name, qualname, str(Path(file).resolve()))


def _is_importable(name: str, file: str | None) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None or not file or spec.origin != file:
        return False
    root, _, _ = name.partition(".")
    try:
        return importlib.util.find_spec(root) is not None and not name.startswith("fsm_agent_file_")
    except (ImportError, ValueError):
        return False


def _cannot(tool_name: str, why: str) -> BadAgent:
    return BadAgent(
        f"tool {tool_name!r}: isolation='process' starts another Python that has to find the"
        f" function, and {why}. Declare it with `def` at the top of a module or agent file."
    )
