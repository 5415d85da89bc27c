"""Rooms import one way, and each heavy library has one room (style.md, 'Rooms')."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = (
    ("errors", "clock", "settings", "blocking"),
    ("run",),
    ("labels",),
    ("context", "reflection", "observations", "tools"),
    ("llm",),
    ("capabilities",),
    ("engine",),
    ("worker", "observability", "notify"),
    ("audit", "waiting"),
    ("people", "archive", "versions", "result", "watching"),
    ("runtime",),
    ("telling",),
    ("inbox",),
    ("cli",),
)
RANK = {room: rank for rank, layer in enumerate(LAYERS) for room in layer}
HOME = {
    "openai": "llm",
    "transitions": "run",
    "redis": "checkpoints",
    "cryptography": "checkpoints",
    "mcp": "tools",
    "jsonschema_rs": "tools",
    "taskiq": "worker",
    "taskiq_redis": "worker",
    "taskiq_aio_pika": "worker",
    "PIL": "observations",
    "pypdfium2": "observations",
    "av": "observations",
    "opentelemetry": "observability",
    "starlette": "inbox",
    "uvicorn": "inbox",
    "jinja2": "inbox",
}
# These show what is in the testing room to a person; nothing else may need it.
MAY_IMPORT_TESTING = (
    "fsm_agent.cli.demo.",
    "fsm_agent.cli.commands.crashtest",
    "fsm_agent.cli.commands.chaos",
)


def modules() -> Iterator[tuple[str, Path]]:
    for package in ("fsm_agent", "checkpoints"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def imports(module: str, path: Path) -> Iterator[tuple[str, int]]:
    """Every module that `module` imports anywhere: in functions and for types alike."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(package, node)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield (full if full in MODULES else base), node.lineno
        elif isinstance(node, ast.Call) and _is_dynamic(node):
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value, node.lineno


def _base(package: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    anchor = ".".join(parts[: len(parts) - node.level + 1])
    return f"{anchor}.{node.module}" if node.module else anchor


def _is_dynamic(node: ast.Call) -> bool:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name in ("import_module", "__import__")


def room(module: str) -> str:
    """The room of a module of ours, or the package where it is none."""
    parts = module.split(".")
    if parts[0] == "fsm_agent":
        return parts[1] if len(parts) > 1 else "fsm_agent"
    return parts[0]


@cache
def crossings() -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (module, imported, f"{path.relative_to(ROOT)}:{line} imports {imported}")
        for module, path in MODULES.items()
        for imported, line in imports(module, path)
    )


def test_the_walk_sees_imports_of_every_form() -> None:
    seen = {imported for _, imported, _ in crossings()}

    assert "fsm_agent.run.state" in seen
    assert "checkpoints.connect" in seen  # inside a function of runtime.py
    assert len(MODULES) > 60


def test_every_room_has_a_place_in_the_order() -> None:
    rooms = {room(module) for module in MODULES} - {
        "fsm_agent",
        "checkpoints",
        "testing",
        "__main__",
    }

    assert rooms <= set(RANK)


def test_a_room_imports_only_rooms_before_it() -> None:
    wrong = [
        where
        for module, imported, where in crossings()
        if (mine := RANK.get(room(module))) is not None
        and (theirs := RANK.get(room(imported))) is not None
        and room(imported) != room(module)
        and imported.startswith("fsm_agent")
        and theirs >= mine
        and not _are_neighbours(room(module), room(imported))
    ]

    assert wrong == []


def _are_neighbours(importer: str, imported: str) -> bool:
    """Rooms of one layer do not import each other, but for the errors and the clock."""
    return {importer, imported} <= set(LAYERS[0])


def test_no_room_imports_testing_but_what_shows_it_to_a_person() -> None:
    wrong = [
        where
        for module, imported, where in crossings()
        if imported.startswith("fsm_agent.testing")
        and room(module) != "testing"
        and not module.startswith(MAY_IMPORT_TESTING)
    ]

    assert wrong == []


def test_no_room_imports_the_front_door() -> None:
    """`fsm_agent` itself re-exports the runtime, so importing it is importing everything."""
    wrong = [
        where
        for module, imported, where in crossings()
        if imported == "fsm_agent" and room(module) in RANK and RANK[room(module)] < RANK["cli"]
    ]

    assert wrong == []


def test_checkpoints_knows_nothing_of_agents() -> None:
    wrong = [
        where
        for module, imported, where in crossings()
        if module.startswith("checkpoints") and room(imported) != "checkpoints"
        and imported.startswith("fsm_agent")
    ]  # fmt: skip

    assert wrong == []


@pytest.mark.parametrize("library", HOME)
def test_a_heavy_library_is_imported_in_its_room_only(library: str) -> None:
    wrong = [
        where
        for module, imported, where in crossings()
        if imported.split(".")[0] == library and room(module) != HOME[library]
    ]

    assert wrong == []


@pytest.mark.parametrize("pure", ["run", "labels", "context", "reflection"])
def test_pure_rooms_reach_no_outside_world(pure: str) -> None:
    outside = {"asyncio", "time", "socket", "os", "random", "secrets", "structlog", "pathlib",
               "subprocess", "threading", "uuid", "checkpoints"}  # fmt: skip
    wrong = [
        where
        for module, imported, where in crossings()
        if room(module) == pure and imported.split(".")[0] in outside
    ]
    asynchronous = [
        str(path.relative_to(ROOT))
        for module, path in MODULES.items()
        if room(module) == pure
        and any(isinstance(n, ast.AsyncFunctionDef) for n in ast.walk(ast.parse(path.read_text())))
    ]

    assert wrong == []
    assert asynchronous == []
