"""The engine on a virtual clock: every seed keeps every promise, and wrong engines are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from checkpoints import leases
from checkpoints.errors import LeaseLost
from fsm_agent.engine import act, calls, session
from fsm_agent.testing.simulation import simulate
from fsm_agent.testing.simulation.weather import Fault

SEEDS = 150


def test_every_seed_keeps_every_promise_and_every_fault_comes_up() -> None:
    faults: Counter[Fault] = Counter()
    claims = 0
    for seed in range(SEEDS):
        outcome = simulate(seed)

        assert outcome.broken == [], outcome.replay
        faults += outcome.faults
        claims += outcome.takeovers

    assert all(faults[fault] for fault in Fault)
    assert claims > SEEDS / 4


def test_an_undisturbed_run_is_undisturbed() -> None:
    outcome = simulate(3, is_calm=True)

    assert outcome.broken == []
    assert outcome.faults.total() == 0


def test_a_seed_gives_the_same_trace_here_and_in_another_process() -> None:
    mine = [simulate(seed).digest for seed in range(20, 26)]

    assert [simulate(seed).digest for seed in range(20, 26)] == mine
    assert len(set(mine)) == 6
    code = "from fsm_agent.testing.simulation import simulate\n"
    code += "print(*(simulate(seed).digest for seed in range(20, 26)))"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == mine


# -- wrong engines --------------------------------------------------------------------------------


def no_intent(patch: pytest.MonkeyPatch) -> None:
    """Starts a tool before its intent is on record."""

    async def forgetful(self: Any, works: list[calls.Work]) -> None:
        for work in works:
            self._seen.forget(work.call_id)

    patch.setattr(act._Batch, "_put_intents_on_record", forgetful)


def no_lock(patch: pytest.MonkeyPatch) -> None:
    """Lets a call be run again while the worker that lost it may still be about to send it."""
    patch.setattr(calls.Scene, "unlock_ms", lambda self, call: 0)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Goes on after it was told that another worker has the run."""
    commit = session.Session._commit

    async def deaf(self: Any, park: Any, is_critical: bool) -> None:
        try:
            await commit(self, park, is_critical)
        except LeaseLost:
            self._staged = []

    patch.setattr(session.Session, "_commit", deaf)
    patch.setattr(leases.Heartbeat, "may_start", lambda *_: True)
    patch.setattr(
        leases.Heartbeat, "_lose", lambda self, held, error: setattr(held, "is_lost", True)
    )


def key_per_attempt(patch: pytest.MonkeyPatch) -> None:
    """Sends a repeat with another key."""
    key = calls.Scene._key
    patch.setattr(
        calls.Scene,
        "_key",
        lambda self, call, tool, bound: f"{key(self, call, tool, bound)}-{call.starts}",
    )
    patch.setattr(calls.Scene, "_change_of", lambda *_: "")


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (no_intent, "was sent 2 times"),
        (no_lock, "was sent 2 times"),
        (no_fence, "attempts are on record"),
        (key_per_attempt, "with 2 keys"),
    ],
)
def test_a_wrong_engine_is_found(
    monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], None], words: str
) -> None:
    break_it(monkeypatch)

    found = (line for seed in range(SEEDS) for line in simulate(seed).broken)

    assert any(words in line for line in found)
