"""Finished runs: folded, expired and purged, on real servers; and a store that is nearly full."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from checkpoints import StoreSettings, open_store
from checkpoints.errors import CorruptEntry, StoreFull
from checkpoints.model import RunId
from checkpoints.testing.contract import NewStore, R, Vandal, commit_of, entry, started
from checkpoints.testing.retention import RetentionContract, ended
from checkpoints.testing.servers import Clients, start_redis

AT_ONCE = StoreSettings(fold_after_s=0.0)


class _OnServer(RetentionContract):
    partitions = 64

    @pytest.fixture
    async def clients(self, url: str) -> AsyncIterator[Clients]:
        clients = Clients(url, AT_ONCE)
        yield clients
        await clients.aclose()

    @pytest.fixture
    def new_store(self, clients: Clients) -> NewStore:
        return clients

    @pytest.fixture
    async def vandal(self, clients: Clients) -> Vandal:
        return await clients.vandal(self.partitions)


class TestEmbedded(_OnServer):
    """One partition, a real Valkey."""

    partitions = 1

    @pytest.fixture
    def url(self, embedded_url: str) -> str:
        return embedded_url


class TestDebianRedis(_OnServer):
    """64 partitions, Redis 7.0."""

    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url


class TestCluster(_OnServer):
    """64 partitions over three nodes."""

    @pytest.fixture
    def url(self, cluster_url: str) -> str:
        return cluster_url


@pytest.fixture
async def clients(redis_url: str) -> AsyncIterator[Clients]:
    clients = Clients(redis_url, AT_ONCE)
    yield clients
    await clients.aclose()


async def test_a_folded_run_takes_a_fraction_of_the_memory(clients: Clients) -> None:
    store = await clients()
    words = b"the quick brown fox looks the order up, %d "
    claim = await started(store)
    at = claim
    for n in range(50):
        at = await store.commit(claim.lease, commit_of(at, words % n * 20))  # type: ignore[assignment]
    await store.commit(claim.lease, commit_of(at, status="done"))
    keys = store._of(R)
    streamed = await store._line.call("MEMORY", "USAGE", keys.journal, "SAMPLES", 0)

    await store.tidy()

    assert await store._line.call("EXISTS", keys.journal) == 0
    assert await store._line.call("MEMORY", "USAGE", keys.folded) < streamed / 10


async def test_a_folded_journal_that_was_changed_is_corrupt(clients: Clients) -> None:
    store = await clients()
    await ended(store)
    await ended(store, RunId("run-2"))
    await store.tidy()
    data = await store._line.call("GET", store._of(RunId("run-2")).folded)
    other = bytearray(data)
    other[len(other) // 2] ^= 1

    for changed in (bytes(other), data[:-1], b"\xc1\x09nonsense", b""):
        await store._line.call("SET", store._of(R).folded, changed)
        with pytest.raises(CorruptEntry):
            await store.journal(R)
    # A whole one of another run: each run's chain begins with its own id.
    await store._line.call("SET", store._of(R).folded, data)
    with pytest.raises(CorruptEntry, match="not the last entry"):
        await store.journal(R)


async def test_near_the_memory_limit_new_runs_are_refused_and_others_finish(
    short_folder: Path,
) -> None:
    socket = short_folder / "small.sock"
    server = start_redis(socket, short_folder, "--maxmemory", "20mb")
    settings = StoreSettings(memory_alarm=0.5)
    store = await open_store(f"unix://{socket}", settings=settings)
    claim = await started(store)
    for n in range(12):
        await store.put_blob(R, bytes([n]) * (1 << 20))

    with pytest.raises(StoreFull, match="takes no new runs") as full:
        await store.create(RunId("new"), op="o", body=entry(1), snapshot=b"")

    assert full.value.used_bytes > full.value.limit_bytes / 2
    assert not await store.create(R, op="begin", body=entry(1), snapshot=b"s1")
    assert await store.create(RunId("part"), op="o", body=b"", snapshot=b"", is_needed=True)
    assert (await store.commit(claim.lease, commit_of(claim, status="done"))).seq == 2
    assert await store.purge(R)
    assert await store.create(RunId("new"), op="o", body=entry(1), snapshot=b"")
    await store.aclose()
    server.kill()
    server.wait()
