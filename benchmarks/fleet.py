"""Many runs on worker processes that are killed all the time: `./dev bench fleet [--runs N]`.

Each run makes one keyed call whose effect is counted in a file outside the store, by its key, as
the system behind such a call would. What is printed is checked: no run is lost or ends twice.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fleet_worker import ByContent, make_agent, quiet
from checkpoints.connect import open_store
from checkpoints.embedded import EmbeddedServer
from checkpoints.store import Store
from fsm_agent.run import codec
from fsm_agent.run.record import replay
from fsm_agent.runtime import Runtime

LEASE_S = 2.0
RUNS_AT_ONCE = 16  # in each worker
STARTS_AT_ONCE = 64


@dataclass
class Crew:
    """Worker processes on one store."""

    store_url: str
    ledger: Path
    size: int
    lease_s: float = LEASE_S
    think_s: float = 0.0
    kills: int = 0
    _pids: list[int] = field(default_factory=list)
    _nursery: subprocess.Popen[str] | None = None

    def __enter__(self) -> Crew:
        numbers = (self.lease_s, RUNS_AT_ONCE, self.think_s)
        arguments = [self.store_url, str(self.ledger), *map(str, numbers)]
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fleet_worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._pids = [self._born() for _ in range(self.size)]
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self._pids:
            _kill(pid)
        assert self._nursery
        assert self._nursery.stdin
        self._nursery.stdin.close()
        self._nursery.wait()

    def _born(self) -> int:
        assert self._nursery
        assert self._nursery.stdin
        assert self._nursery.stdout
        self._nursery.stdin.write("another\n")
        self._nursery.stdin.flush()
        return int(self._nursery.stdout.readline())

    def kill_one(self) -> None:
        """SIGKILL for one of them, and another one in its place."""
        at = random.randrange(self.size)
        _kill(self._pids[at])
        self._pids[at] = self._born()
        self.kills += 1


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@dataclass
class Outcome:
    """What became of the runs."""

    took_s: float
    done: int
    other: Counter[str]  # runs that are not done, by status
    effects: int  # different keys in the ledger
    sent: int  # calls, repeats after a crash included
    wrong: list[str]  # runs whose journal, answer or effect is not what it should be
    takeovers: int
    kills: int


async def fill(store: Store, runs: int, ledger: Path) -> set[str]:
    """Put runs on record; their ids."""
    agent = make_agent(str(ledger))
    gate = asyncio.Semaphore(STARTS_AT_ONCE)

    async def begin(number: int) -> str:
        async with gate:
            return await runtime.start(agent, f"order-{number}")

    async with (
        Runtime.open(store, model=ByContent(), is_live=False) as runtime,
        asyncio.TaskGroup() as tasks,
    ):
        begun = [tasks.create_task(begin(number)) for number in range(runs)]
    return {task.result() for task in begun}


async def work(
    store: Store,
    crew: Crew,
    run_ids: set[str],
    *,
    kill_every_s: float | None,
    patience_s: float = 1800.0,
) -> Outcome:
    """Let the crew work until nothing is left to do, killing one of them every so often."""
    began = time.perf_counter()
    kill_at = began if kill_every_s else float("inf")  # the first at once: all may be done soon
    while await _is_some_left(store):
        now = time.perf_counter()
        if now >= kill_at and kill_every_s:
            crew.kill_one()
            kill_at = now + kill_every_s
        if now > began + patience_s:
            break
        await asyncio.sleep(0.05)
    took_s = time.perf_counter() - began
    return await _checked(store, crew, run_ids, took_s)


async def _is_some_left(store: Store) -> bool:
    for status in ("ready", "running", "sleeping"):
        if await store.runs(status=status, limit=1):
            return True
    return False


async def _checked(store: Store, crew: Crew, run_ids: set[str], took_s: float) -> Outcome:
    lines = [line.split() for line in crew.ledger.read_text().splitlines()]
    keys_of: dict[str, set[str]] = {}
    for key, order in lines:
        keys_of.setdefault(order, set()).add(key)
    heads = await store.runs(limit=len(run_ids) + 1)
    statuses = Counter(head.status for head in heads)
    wrong = [f"{run_id} is lost" for run_id in run_ids - {head.run_id for head in heads}]
    takeovers = 0
    for head in heads:
        entries = await store.journal(head.run_id)  # its chain is verified
        run = replay(head.run_id, [codec.decode(entry.body) for entry in entries])
        takeovers += run.takeovers
        if run.answer is None or len(keys_of.get(run.task, ())) != 1 or run.tool_calls != 1:
            wrong.append(f"{head.run_id}: {head.status}, effects {keys_of.get(run.task)}")
    return Outcome(
        took_s=took_s,
        done=statuses.pop("done", 0),
        other=statuses,
        effects=len({key for key, _ in lines}),
        sent=len(lines),
        wrong=wrong,
        takeovers=takeovers,
        kills=crew.kills,
    )


async def measure(
    runs: int, workers: int, *, kill_every_s: float | None = None, think_s: float = 0.0
) -> Outcome:
    """One fleet on an embedded store of its own."""
    with tempfile.TemporaryDirectory(prefix="fsm-fleet-") as folder:
        holder = EmbeddedServer(Path(folder) / "store")
        await asyncio.to_thread(holder.enter)
        url, ledger = f"embedded:{Path(folder) / 'store'}", Path(folder) / "ledger"
        store = await open_store(url)
        try:
            run_ids = await fill(store, runs, ledger)
            with Crew(url, ledger, workers, think_s=think_s) as crew:
                return await work(store, crew, run_ids, kill_every_s=kill_every_s)
        finally:
            await store.aclose()
            await asyncio.to_thread(holder.leave)


async def main() -> int:
    parser = argparse.ArgumentParser(prog="fleet", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--scaling-runs", type=int, default=2_000)
    options = parser.parse_args()
    cores = os.cpu_count()
    print(f"Python {sys.version.split()[0]}, {cores} cores for store, workers and this process")
    print(f"\n{options.runs} runs on {options.workers} workers, one killed every second")
    outcome = await measure(options.runs, options.workers, kill_every_s=1.0)
    print(f"{'done':>8} {'others':>9} {'effects':>8} {'sent':>6} {'kills':>6} {'takeovers':>10} "
          f"{'wrong':>6} {'s':>7} {'runs/s':>7}")  # fmt: skip
    print(f"{outcome.done:>8} {outcome.other.total():>9} {outcome.effects:>8} {outcome.sent:>6} "
          f"{outcome.kills:>6} {outcome.takeovers:>10} {len(outcome.wrong):>6} "
          f"{outcome.took_s:>7.1f} {options.runs / outcome.took_s:>7.0f}")  # fmt: skip
    for line in outcome.wrong[:10]:
        print(f"  {line}")
    print(f"\nNobody killed, {options.scaling_runs} runs, {RUNS_AT_ONCE} at once in each worker")
    print(f"{'workers':>8} {'runs/s':>7} {'with a model that takes half a second: runs/s':>46}")
    for workers in (1, 2, 4):
        calm = await measure(options.scaling_runs, workers)
        slow = await measure(options.scaling_runs // 5, workers, think_s=0.5)
        print(f"{workers:>8} {options.scaling_runs / calm.took_s:>7.0f}"
              f" {options.scaling_runs // 5 / slow.took_s:>46.0f}")  # fmt: skip
    return int(bool(outcome.wrong or outcome.other))


if __name__ == "__main__":
    quiet()
    sys.exit(asyncio.run(main()))
