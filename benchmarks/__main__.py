"""Prints what a turn, a resume, many runs and a run's bytes cost: `./dev bench [--quick]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog
from redis.asyncio import Redis

from benchmarks.agent import PAYLOAD, InstantModel, make_agent
from benchmarks.floor import Floor
from checkpoints.connect import open_store
from checkpoints.embedded import EmbeddedServer
from fsm_agent.runtime import Runtime

Measured = tuple[float, float]  # wall and CPU, in seconds


async def timed(work: Callable[[], Awaitable[object]]) -> Measured:
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return time.perf_counter() - wall, time.process_time() - cpu


async def alternating(
    rounds: int, one: Callable[[], Awaitable[object]], other: Callable[[], Awaitable[object]]
) -> tuple[Measured, Measured]:
    """Medians of both, measured in turn so that a noisy neighbour meets both alike."""
    ones, others = [], []
    for _ in range(rounds):
        ones.append(await timed(one))
        others.append(await timed(other))
    return _medians(ones), _medians(others)


def _medians(measured: list[Measured]) -> Measured:
    return (
        statistics.median(wall for wall, _ in measured),
        statistics.median(cpu for _, cpu in measured),
    )


async def ours(url: str, turns: int, runs: int = 1) -> list[str]:
    """`runs` whole runs at once of `turns` turns each; their ids."""
    store = await open_store(url)
    agent = make_agent()
    try:
        async with Runtime.open(store, model=InstantModel(turns)) as runtime:
            return await ours_on(runtime, agent, turns, runs)
    finally:
        await store.aclose()


async def ours_on(runtime: Runtime, agent, turns: int, runs: int) -> list[str]:  # type: ignore[no-untyped-def]
    async def one(_: int) -> str:
        # A model of its own for each run: it counts its calls.
        own = runtime.with_model(InstantModel(turns))
        result = await own.run(agent, "Take notes.")
        assert result.status == "done", result
        return result.run_id

    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(one(n)) for n in range(runs)]
    return [task.result() for task in started]


async def bench_turns(url: str, socket: str, rounds: int, sizes: list[int]) -> None:
    print("\nA whole turn: model call, tool call, intent and result on record, fence, indexes")
    print(
        f"{'turns':>6} {'floor µs':>9} {'ours µs':>9} {'ratio':>6} {'floor CPU':>10} {'our CPU':>8}"
    )
    floor = Floor(socket)
    await floor.begin()
    store = await open_store(url)
    async with Runtime.open(store, model=InstantModel(0)) as runtime:
        agent = make_agent()
        await ours_on(runtime, agent, 20, 1)  # warm
        for turns in sizes:
            repeat = rounds if turns < 1000 else max(3, rounds // 2)
            (fw, fc), (ow, oc) = await alternating(
                repeat,
                lambda turns=turns: floor.turns(turns),
                lambda turns=turns: ours_on(runtime, agent, turns, 1),
            )
            print(
                f"{turns:>6} {fw / turns * 1e6:>9.0f} {ow / turns * 1e6:>9.0f} {ow / fw:>6.2f}"
                f" {fc / turns * 1e6:>10.0f} {oc / turns * 1e6:>8.0f}"
            )
    await store.aclose()
    await floor.aclose()


async def bench_runs(url: str, socket: str, counts: list[int]) -> None:
    print("\nRuns at once in one process, 10 turns each")
    print(
        f"{'runs':>6} {'floor runs/s':>13} {'our runs/s':>11} {'ratio':>6} {'our CPU ms/run':>15}"
    )
    for runs in counts:
        floor = Floor(socket, connections=min(runs, 64))
        await floor.begin()

        async def many(floor: Floor = floor, runs: int = runs) -> None:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(runs):
                    tasks.create_task(floor.turns(10))

        repeat = 5 if runs < 1000 else 2
        (fw, _), (ow, oc) = await alternating(repeat, many, lambda runs=runs: ours(url, 10, runs))
        print(
            f"{runs:>6} {runs / fw:>13.0f} {runs / ow:>11.0f} {ow / fw:>6.2f}"
            f" {oc / runs * 1e3:>15.2f}"
        )
        await floor.aclose()


RESUME = """
import asyncio, json, sys, time
began = time.perf_counter()
async def main():
    from checkpoints.connect import open_store
    from fsm_agent.runtime import Runtime
    from benchmarks.agent import InstantModel
    imported = time.perf_counter()
    store = await open_store(sys.argv[1])
    async with Runtime.open(store, model=InstantModel(0), is_live=False) as runtime:
        opened = time.perf_counter()
        events = await runtime.history(sys.argv[2])
        loaded = time.perf_counter()
        again = time.perf_counter()
        await runtime.result(sys.argv[2])
        warm = time.perf_counter() - again
    await store.aclose()
    print(json.dumps({"import": imported - began, "open": opened - imported,
                      "load": loaded - opened, "warm": warm, "entries": len(events)}))
asyncio.run(main())
"""


async def bench_resume(url: str, sizes: list[int]) -> None:
    print("\nResume: a fresh process loads and replays a run's whole journal")
    columns = ("import ms", "open ms", "load ms", "warm ms", "process ms")
    print(f"{'turns':>6} {'entries':>8}" + "".join(f"{column:>11}" for column in columns))
    for turns in sizes:
        (run_id,) = await ours(url, turns)
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", RESUME, url, run_id], capture_output=True, text=True, check=True
        )
        whole = time.perf_counter() - began
        took = json.loads(done.stdout)
        print(
            f"{turns:>6} {took['entries']:>8}"
            + "".join(f"{took[part] * 1e3:>11.1f}" for part in ("import", "open", "load", "warm"))
            + f"{whole * 1e3:>11.0f}"
        )


async def bench_bytes(url: str, socket: str, sizes: list[int]) -> None:
    print("\nBytes kept in the store by a run, messages of 1 KiB; the floor is one XADD a message")
    print(f"{'turns':>6} {'content':>9} {'floor':>9} {'kept':>9} {'ratio':>6} {'per turn':>9}")
    client = Redis(unix_socket_path=socket)
    floor = Floor(socket)
    await floor.begin()
    kept_before = turns_before = 0
    for turns in sizes:
        least = await floor.kept(turns)
        (run_id,) = await ours(url, turns)
        kept = 0
        async for key in client.scan_iter(match=f"*{run_id}*"):
            kept += int(await client.memory_usage(key, samples=0) or 0)
        content = turns * len(PAYLOAD)
        growth = (kept - kept_before) / (turns - turns_before)
        kept_before, turns_before = kept, turns
        print(f"{turns:>6} {content:>9} {least:>9} {kept:>9} {kept / least:>6.2f} {growth:>9.0f}")
    await floor.aclose()
    await client.aclose()


async def bench_wire(url: str, socket: str, turns: int) -> None:
    print(f"\nOn the wire, a turn of a run of {turns}: seven transitions in two round trips")
    print(f"{'':>6} {'scripts':>8} {'sent B':>8} {'answered B':>11}")
    client = Redis(unix_socket_path=socket)
    floor = Floor(socket)
    await floor.begin()

    async def counted() -> tuple[int, int, int]:
        told = await client.info("everything")
        scripts = told["cmdstat_evalsha"]["calls"]
        return scripts, told["total_net_input_bytes"], told["total_net_output_bytes"]

    for name, work in (("floor", floor.turns), ("ours", partial(ours, url))):
        before = await counted()
        await work(turns)
        scripts, sent, answered = (
            (now - then) / turns for then, now in zip(before, await counted(), strict=True)
        )
        print(f"{name:>6} {scripts:>8.2f} {sent:>8.0f} {answered:>11.0f}")
    await floor.aclose()
    await client.aclose()


async def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    rounds = 3 if options.quick else 5
    sizes = [10, 100] if options.quick else [10, 100, 1000]
    with tempfile.TemporaryDirectory(prefix="fsm-bench-") as folder:
        url = f"embedded:{folder}"
        holder = EmbeddedServer(Path(folder))
        socket = await asyncio.to_thread(holder.enter)
        try:
            python = sys.version.split()[0]
            print(
                f"Python {python}, {os.cpu_count()} cores, an embedded server, synced each second"
            )
            await bench_turns(url, socket, rounds, sizes)
            await bench_runs(url, socket, [1, 100] if options.quick else [1, 100, 1000])
            await bench_resume(url, sizes)
            await bench_bytes(url, socket, [50, 100, 200])
            await bench_wire(url, socket, 200)
        finally:
            await asyncio.to_thread(holder.leave)


if __name__ == "__main__":
    asyncio.run(main())
