"""The quality table in small: what models of three kinds come to in each capability."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from benchmarks.minds import HOSTILE
from benchmarks.quality import Shop, agents, open_runtime, play
from fsm_agent import Runtime

CAPABILITIES = [*agents(Shop())]


@pytest.fixture
async def runtime(engine_store_url: str) -> AsyncIterator[Runtime]:
    async with open_runtime(engine_store_url) as runtime:
        yield runtime


async def test_a_good_model_solves_every_task_without_a_correction(runtime: Runtime) -> None:
    rows = [await play(runtime, capability, "good", 2) for capability in CAPABILITIES]

    assert [(row.capability, row.solved) for row in rows] == [(name, 2) for name in CAPABILITIES]
    assert sum(row.repairs for row in rows) == 0


async def test_a_sloppy_model_solves_nineteen_of_twenty(runtime: Runtime) -> None:
    rows = [await play(runtime, capability, "sloppy", 10) for capability in CAPABILITIES]

    assert sum(row.repairs for row in rows) >= 20  # it is sloppy indeed
    assert sum(row.solved for row in rows) >= 0.95 * sum(row.runs for row in rows)


@pytest.mark.parametrize("capability", CAPABILITIES)
async def test_whatever_a_hostile_model_does_ends_and_nothing_happens_unasked(
    runtime: Runtime, capability: str
) -> None:
    row = await play(runtime, capability, "hostile", len(HOSTILE))

    assert (row.ended, row.unasked) == (len(HOSTILE), 0)
