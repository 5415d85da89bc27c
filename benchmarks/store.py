"""Prints what each setting of the store costs: `./dev bench store`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from checkpoints import KeyRing, StoreSettings, open_store
from checkpoints.model import Claim, Commit, Committed, RunId
from checkpoints.redis_store import RedisStore
from checkpoints.testing.pairs import pair

COMMITS = 50  # of a run
ROUNDS = 5
WORDS = Path(__file__).with_name("__main__.py").read_text().split()


def body(n: int, size: int) -> bytes:
    """Words as tools return them, a different text each time."""
    pick = random.Random(n)
    text = " ".join(pick.choice(WORDS) for _ in range(size // 5))
    return json.dumps({"tool": "look_up", "at_ms": n, "text": text[:size]}).encode()


async def run_of(store: RedisStore, run_id: str, size: int, *, is_critical: bool) -> float:
    """A whole run of `COMMITS` commits; seconds for one of them."""
    name = RunId(run_id)
    await store.create(name, op="o", body=body(0, size), snapshot=b"s" * 120)
    claim = await store.claim(name, owner="w", nonce="n", term_ms=600_000)
    at: Claim | Committed = claim
    seq, chain = claim.head.seq, claim.head.chain
    began = time.perf_counter()
    for n in range(COMMITS):
        commit = Commit(
            op=f"op-{n}",
            expected_seq=seq,
            previous_chain=chain,
            bodies=(body(n + 1, size),),
            status="done" if n == COMMITS - 1 else "running",
            snapshot=b"s" * 120,
            is_critical=is_critical,
        )
        at = await store.commit(claim.lease, commit)
        seq, chain = at.seq, at.chain
    return (time.perf_counter() - began) / COMMITS


async def kept(store: RedisStore, run_id: str) -> int:
    """Bytes of memory that the run's keys take."""
    total = 0
    for key in store._of(RunId(run_id))[:-1]:
        total += int(await store._line.call("MEMORY", "USAGE", key, "SAMPLES", 0) or 0)
    return total


Open = Callable[[str], Awaitable[RedisStore]]


def opener(url: str, keys: KeyRing | None = None, **settings: Any) -> Open:
    def open_it(namespace: str) -> Awaitable[RedisStore]:
        return open_store(
            url,
            namespace=namespace,
            settings=StoreSettings(fold_after_s=0.0, **settings),
            keys=keys,
        )

    return open_it


async def measure(ways: dict[str, tuple[Open, bool]], size: int) -> None:
    """Time and memory of each way, in turn so that a noisy neighbour meets all alike."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    memory: dict[str, tuple[int, int]] = {}
    for round_ in range(ROUNDS):
        turned = [*ways.items()][round_:] + [*ways.items()][:round_]
        for at, (name, (open_it, is_critical)) in enumerate(turned):
            store = await open_it(f"b{os.getpid()}-{size}-{round_}-{at}")
            run_id = f"run-{round_}"
            took[name].append(await run_of(store, run_id, size, is_critical=is_critical))
            if round_ == ROUNDS - 1 and name not in memory:
                streamed = await kept(store, run_id)
                while await store._line.call("EXISTS", store._of(RunId(run_id)).journal):
                    await store.tidy()
                memory[name] = streamed, await kept(store, run_id)
            await store.aclose()
    base = statistics.median(next(iter(took.values())))
    print(f"\n{COMMITS} commits of {size} bytes")
    print(f"{'':<34} {'µs a commit':>11} {'more':>6} {'kept, KB':>9} {'folded, KB':>11}")
    for name, times in took.items():
        median = statistics.median(times)
        streamed, folded = memory[name]
        more = f"+{(median - base) * 1e6:.0f}" if median >= base else f"{(median - base) * 1e6:.0f}"
        print(
            f"{name:<34} {median * 1e6:>11.0f} {more:>6} {streamed / 1e3:>9.1f}"
            f" {folded / 1e3:>11.1f}"
        )


async def main() -> None:
    ring = KeyRing({"k1": os.urandom(32)})
    with tempfile.TemporaryDirectory(prefix="fsm-") as folder:
        # In memory only: the syncing of a file would be measured with whoever comes next.
        with pair(Path(folder), is_valkey=True) as servers:
            url = servers.url
            waiting = opener(f"{url}?durability=memory:1")
            ways = {
                "everything off": (opener(url), False),
                "compress=on": (opener(f"{url}?compress=on"), False),
                "encrypted": (opener(url, ring), False),
                "both": (opener(f"{url}?compress=on", ring), False),
                "durability=memory:1, unsafe call": (waiting, True),
                "durability=memory:1, any commit": (waiting, False),
            }
            for size in (300, 4000):
                await measure(ways, size)
        with pair(Path(folder), "--appendonly", "yes", is_valkey=True) as servers:
            ways = {
                "everything off": (opener(servers.url), False),
                "durability=disk:0, unsafe call": (
                    opener(f"{servers.url}?durability=disk:0"),
                    True,
                ),
            }
            await measure(ways, 300)


if __name__ == "__main__":
    asyncio.run(main())
