"""A primary that a sentinel knows, and its failover."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints import StoreSettings, open_store
from checkpoints.errors import StoreRegressed, StoreUnavailable
from checkpoints.model import Claim, Committed, RunId
from checkpoints.testing.contract import R, commit_of, started
from checkpoints.testing.servers import ask_node, free_port, start_sentinel_trio


@pytest.fixture
def trio(short_folder: Path) -> Iterator[tuple[int, dict[int, subprocess.Popen[bytes]]]]:
    """A sentinel's port, and a primary, its replica and the sentinel by port."""
    with start_sentinel_trio(short_folder) as trio:
        yield trio


async def test_a_commit_outlives_a_failover(
    trio: tuple[int, dict[int, subprocess.Popen[bytes]]],
) -> None:
    sentinel, nodes = trio
    store = await open_store(f"redis+sentinel://127.0.0.1:{sentinel}/agents")
    claim = await started(store)
    at = await store.commit(claim.lease, commit_of(claim))
    primary, replica, _ = nodes
    await asyncio.to_thread(ask_node, replica, "INFO replication", "master_link_status:up")
    before = await store.head(R)
    await asyncio.to_thread(ask_node, replica, f"HGET {store._of(R).head.decode()} n", "2")

    nodes[primary].kill()
    async with asyncio.timeout(30):
        at = await store.commit(claim.lease, commit_of(at))

    assert at.seq == 3
    assert (await store.head(R)).token == before.token
    assert [e.seq for e in await store.journal(R)] == [1, 2, 3]
    assert (await store.facts())["tcp_port"] == str(replica)
    await store.aclose()


async def test_commits_under_way_outlive_a_failover_and_a_dead_sentinel(
    trio: tuple[int, dict[int, subprocess.Popen[bytes]]],
) -> None:
    sentinel, nodes = trio
    # Nobody is at the first sentinel: the next one is asked, each time.
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel}/agents"
    store = await open_store(url, settings=StoreSettings(restart_s=30))
    claims = [await started(store, RunId(f"run-{n}")) for n in range(8)]
    await store._line.call("WAIT", 1, 5000)
    has_begun = asyncio.Event()

    async def work(claim: Claim) -> Committed | StoreRegressed:
        at: Claim | Committed = claim
        for round_ in range(30):
            if round_ == 5:
                has_begun.set()
            try:
                at = await store.commit(claim.lease, commit_of(at))
            except StoreRegressed as lost:
                return lost  # its last commit had not reached the replica: told, and not repeated
        assert isinstance(at, Committed)
        return at

    async def kill() -> None:
        await has_begun.wait()
        nodes[next(iter(nodes))].kill()

    async with asyncio.timeout(60):
        *ends, _ = await asyncio.gather(*map(work, claims), kill())

    for claim, end in zip(claims, ends, strict=True):
        stored = (await store.head(claim.lease.run_id)).seq
        if isinstance(end, StoreRegressed):
            assert end.stored_seq <= stored < end.known_seq
        else:
            assert stored == end.seq == 31
    await store.aclose()


async def test_an_unknown_service_is_reported(
    trio: tuple[int, dict[int, subprocess.Popen[bytes]]],
) -> None:
    with pytest.raises(StoreUnavailable, match="knows no service 'other'"):
        await open_store(f"redis+sentinel://127.0.0.1:{trio[0]}/other")
