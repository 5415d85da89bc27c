"""The chaos command, for a few seconds: its own misfortunes, and a verdict that can say no."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from fsm_agent import Runtime
from fsm_agent.testing.chaos import script, verdict
from fsm_agent.testing.chaos.agent import agent
from fsm_agent.testing.chaos.ledger import record
from tests.conftest import Bench, ask, finish, turns


def test_a_fleet_that_is_killed_and_frozen_keeps_every_promise(tmp_path: Path) -> None:
    chaos = subprocess.run(
        [
            *(sys.executable, "-m", "fsm_agent", "chaos", "--json"),
            *("--minutes", "0.1", "--workers", "2", "--runs", "3", "--seed", "4"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert chaos.returncode == 0, chaos.stdout + chaos.stderr
    told = json.loads(chaos.stdout.splitlines()[-1])
    assert told["is_kept"]
    assert not any(told["checks"].values())
    assert len(told["checks"]) == 7
    assert sum(told["done"].values()) > 0
    assert told["effects_sent"] >= 9
    assert "SIG" in chaos.stderr


async def judged(runtime: Runtime, ledger: Path, *run_ids: str) -> dict[str, list[str]]:
    found = await verdict.judge(runtime, run_ids, ledger)
    return {check.name: check.broken for check in found.checks if check.broken}


async def test_the_verdict_counts_what_was_lost_doubled_and_left_open(
    bench: Bench, tmp_path: Path
) -> None:
    model = turns(ask(("look", {"order": "A7"})), finish(script.ANSWER))
    runtime = await bench.runtime(model)
    await runtime.start(agent, script.TASK, run_id="a")
    await runtime.work("a", agent)
    await runtime.start(agent, script.TASK, run_id="b")
    ledger = tmp_path / "ledger"
    for tool, run_id, key in [("hold", "a", "k"), ("hold", "a", "k"), ("pay", "a", "k"),
                              ("refund", "a", "k")]:  # fmt: skip
        record(ledger, tool, run_id, key)

    first = await judged(runtime, ledger, "a")
    record(ledger, "pay", "a", "k2")
    record(ledger, "hold", "a", "k2")
    second = await judged(runtime, ledger, "a", "b", "c")

    assert first == {
        "no run is there twice or unasked": ["b"],
        "every run has ended with its answer": ["b: ready  None"],
    }
    assert second["no run is lost"] == ["c"]
    assert second["every run has ended with its answer"] == ["b: ready  None"]
    assert "a: pay 2 times" in second["each unsafe effect happened once"]
    assert "a: hold 2 times" in second["each keyed effect happened once by its key"]
    assert "b: refund 0 times" in second["each unsafe effect happened once"]
