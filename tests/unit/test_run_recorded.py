"""Stored runs of every schema number still fold to what they folded to when they were written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsm_agent.run import codec
from fsm_agent.run.record import replay
from tests.recorded import make

FOLDER = Path(make.__file__).parent
STORED = sorted(FOLDER.glob("*/*.hex"))


def bodies(path: Path) -> list[bytes]:
    return [bytes.fromhex(line) for line in path.read_text().split()]


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_stored_run_replays_to_its_summary(path: Path) -> None:
    run = replay(path.stem, map(codec.decode, bodies(path)))

    assert make.summary(run) == json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_stored_run_carries_the_number_of_its_folder(path: Path) -> None:
    assert {body[0] for body in bodies(path)} == {int(path.parent.name)}


def test_every_schema_number_so_far_has_stored_runs() -> None:
    numbers = {int(path.parent.name) for path in STORED}

    assert numbers == set(range(1, codec.SCHEMA + 1))


@pytest.mark.parametrize("name", make.RUNS)
def test_the_present_schema_still_writes_the_same_bytes(name: str) -> None:
    """If this fails, what is on disk has changed its meaning: it needs the next schema number."""
    stored = FOLDER / str(codec.SCHEMA) / f"{name}.hex"

    assert [codec.encode(record) for record in make.RUNS[name]()] == bodies(stored)
