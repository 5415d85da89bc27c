"""A cluster of which a node dies, and how keys are led to their nodes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from checkpoints import Heartbeat, StoreSettings, open_store
from checkpoints.cluster import SLOTS, ClusterLines, Place, slot_of
from checkpoints.errors import LeaseLost, NotDurable, StoreUnavailable
from checkpoints.model import Claim, Committed, RunId
from checkpoints.testing.contract import commit_of, started
from checkpoints.testing.servers import free_port, start_cluster_nodes, start_redis


async def test_commits_outlive_the_death_of_a_node(short_folder: Path) -> None:
    with start_cluster_nodes(short_folder / "replicated", has_replicas=True) as nodes:
        primaries = list(nodes)[:3]
        seeds = f"127.0.0.1:{free_port()},127.0.0.1:{primaries[1]}"  # nobody is at the first
        store = await open_store(
            f"redis+cluster://{seeds}?durability=memory:1&durability_for=every",
            settings=StoreSettings(restart_s=30),
        )
        claims = {n: await started(store, RunId(f"run-{n}")) for n in range(12)}
        has_begun = asyncio.Event()

        async def work(n: int) -> Committed:
            at: Claim | Committed = claims[n]
            for round_ in range(8):
                if round_ == 2:
                    has_begun.set()
                at = await committed(n, at)
            assert isinstance(at, Committed)
            return at

        async def committed(n: int, at: Claim | Committed) -> Committed:
            try:
                return await store.commit(claims[n].lease, commit_of(at))
            except NotDurable as error:  # the dead node's replica has none of its own
                assert isinstance(error.committed, Committed)
                return error.committed

        async def kill() -> None:
            await has_begun.wait()
            nodes[primaries[0]].kill()

        async with asyncio.timeout(60):
            *ends, _ = await asyncio.gather(*(work(n) for n in range(12)), kill())

        assert [end.seq for end in ends] == [9] * 12
        for n in range(12):
            assert len(await store.journal(RunId(f"run-{n}"))) == 9
        assert len(await store.runs()) == 12
        await store.aclose()


async def test_a_node_that_hangs_costs_its_own_runs_only(
    short_folder: Path,
) -> None:
    with start_cluster_nodes(short_folder / "plain") as nodes:
        ports = list(nodes)
        store = await open_store(f"redis+cluster://127.0.0.1:{ports[0]}", partitions=16)
        claims = {n: await started(store, RunId(f"run-{n}"), term_ms=3_000) for n in range(12)}
        for n in range(12):
            await store.create(RunId(f"due-{n}"), op="o", body=b"b", snapshot=b"s")
        ends: dict[int, str] = {}
        dead = nodes[ports[1]]

        async def work(heartbeat: Heartbeat, n: int) -> None:
            try:
                async with heartbeat.held(claims[n].lease):
                    ready.append(n)
                    await over.wait()
            except LeaseLost:
                ends[n] = "lost"
                over_soon()
            else:
                ends[n] = "kept"

        ready: list[int] = []
        over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def over_soon() -> None:
            loop.call_later(3.0, over.set)  # a term later: who has no renewal has lost it by then

        async with asyncio.timeout(60), Heartbeat(store) as heartbeat, asyncio.TaskGroup() as tasks:
            for n in claims:
                tasks.create_task(work(heartbeat, n))
            while len(ready) < len(claims):
                await asyncio.sleep(0.01)
            dead.send_signal(signal.SIGSTOP)
            found = await store.agenda()
        dead.send_signal(signal.SIGCONT)
        await store.aclose()

    lost = {n for n, end in ends.items() if end == "lost"}
    assert 0 < len(lost) < len(claims)
    assert 0 < len(found.runs) < 12


async def test_a_map_that_one_caller_finds_wrong_at_once_is_still_that_of_the_others() -> None:
    lines = ClusterLines([("h", 1)], lambda host, port: pytest.fail("nobody dials"), "h:1")  # type: ignore[arg-type, return-value]
    place = ("h", 1)

    async def read() -> list[Place | None]:
        await asyncio.sleep(0)
        lines._slots = [place] * SLOTS
        return lines._slots

    lines._read_slots = read  # type: ignore[method-assign]

    async def finds_it_wrong() -> None:
        await lines._place_of(b"a")
        lines._slots = []

    _, found = await asyncio.gather(finds_it_wrong(), lines._place_of(b"b"))

    assert found == place


async def test_a_server_that_is_no_cluster_and_one_that_is_absent_are_told_apart(
    short_folder: Path,
) -> None:
    port = free_port()
    server = start_redis(short_folder / "lone.sock", short_folder, "--port", str(port))
    with pytest.raises(StoreUnavailable, match="Is it a cluster"):
        await open_store(f"redis+cluster://127.0.0.1:{port}")
    server.kill()
    server.wait()

    with pytest.raises(StoreUnavailable, match="no Redis at"):
        await open_store(f"redis+cluster://127.0.0.1:{port}")


def test_slots_are_those_of_the_cluster_specification() -> None:
    assert slot_of(b"123456789") == 0x31C3
    assert (
        slot_of(b"{user1000}.following") == slot_of(b"{user1000}.followers") == slot_of(b"user1000")
    )
    assert slot_of(b"foo{}{bar}") == slot_of(b"foo{}{bar}")
    assert slot_of(b"foo{}{bar}") != slot_of(b"bar")
    assert slot_of(b"foo{{bar}}zap") == slot_of(b"{bar")
    assert slot_of(b"foo{bar}{zap}") == slot_of(b"bar")
