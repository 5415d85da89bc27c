"""The loop without a world: virtual time, an order by seed, and processes that stand still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from random import Random
from time import monotonic
from typing import Any

import pytest

from checkpoints.errors import LeaseLost
from checkpoints.leases import Heartbeat
from checkpoints.model import Lease, Renewal, RunId
from fsm_agent.testing.simulation.loop import PROCESS, NotSimulated, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop(Random(1))
    yield made
    made.close()


def spawn(loop: VirtualLoop, name: str, life: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    context = Context()
    context.run(PROCESS.set, name)
    return loop.create_task(life, context=context)


def test_a_day_takes_no_time(loop: VirtualLoop) -> None:
    begun, before = monotonic(), loop.time()

    loop.run_until_complete(asyncio.sleep(86_400))

    assert loop.time() - before == pytest.approx(86_400)
    assert monotonic() - begun < 10


def test_the_order_of_what_is_ready_depends_on_the_seed_only() -> None:
    def order(seed: int) -> str:
        loop, seen = VirtualLoop(Random(seed)), []

        async def one(name: str) -> None:
            await asyncio.sleep(0)
            seen.append(name)

        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                for name in "abcdef":
                    tasks.create_task(one(name))

        loop.run_until_complete(main())
        loop.close()
        return "".join(seen)

    assert order(3) == order(3)
    assert len({order(seed) for seed in range(20)}) > 5


def test_a_halted_process_goes_on_with_its_timers_overdue(loop: VirtualLoop) -> None:
    woke: list[float] = []

    async def sleeper() -> None:
        await asyncio.sleep(1)
        woke.append(loop.time())

    spawn(loop, "frozen", sleeper())
    begun = loop.time()
    loop.call_later(0.5, loop.halt, "frozen")
    loop.call_later(9.0, loop.go_on, "frozen")

    loop.run_until_complete(asyncio.sleep(20))

    assert woke == [pytest.approx(begun + 9.0)]


def test_a_dead_process_does_nothing_more_not_even_its_cleanup(loop: VirtualLoop) -> None:
    done: list[str] = []

    async def life() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            done.append("cleaned up")

    task = spawn(loop, "dead", life())
    loop.call_later(0.5, loop.halt, "dead")
    loop.call_later(2.0, task.cancel)

    loop.run_until_complete(asyncio.sleep(60))
    assert done == []

    loop.go_on("dead")
    loop.run_until_complete(asyncio.wait([task]))


async def thread() -> None:
    await asyncio.to_thread(lambda: None)


async def connection() -> None:
    await asyncio.open_connection("127.0.0.1", 1)


async def process() -> None:
    await asyncio.create_subprocess_exec("true")


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def spinning() -> None:
    while True:
        await asyncio.sleep(0)


@pytest.mark.parametrize("forbidden", [thread, connection, process, for_ever, spinning])
def test_what_cannot_be_simulated_is_refused(
    loop: VirtualLoop, forbidden: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    with pytest.raises(NotSimulated):
        loop.run_until_complete(forbidden())


class SilentStore:
    """Answers the first renewal, and no other."""

    calls = 0

    def apart(self, leases: list[Lease]) -> list[list[Lease]]:
        return [leases] if leases else []

    async def renew(self, leases: list[Lease]) -> dict[str, Renewal]:
        self.calls += 1
        if self.calls > 1:
            await asyncio.get_running_loop().create_future()
        return {lease.run_id: Renewal(is_held=True, mail=0) for lease in leases}


def test_a_heartbeat_rests_while_the_work_of_a_lost_lease_is_ending(loop: VirtualLoop) -> None:
    store: Any = SilentStore()

    async def slow_to_end(heartbeat: Heartbeat) -> None:
        async with heartbeat.held(Lease(RunId("r"), 1, "n", "w", 3_000)):
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(30)

    async def main() -> None:
        async with Heartbeat(store) as heartbeat:
            with pytest.raises(LeaseLost):
                await slow_to_end(heartbeat)

    loop.run_until_complete(main())

    assert store.calls < 10
    assert loop.steps < 1_000
