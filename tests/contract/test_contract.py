"""The contract on fakeredis, on the embedded Valkey and on Debian's Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from checkpoints.client import ClientTransport
from checkpoints.redis_store import RedisStore
from checkpoints.testing.contract import NewStore, StoreContract, Vandal
from checkpoints.testing.memory import MemoryServer, MemoryTransport
from checkpoints.testing.servers import Clients, RedisVandal


class TestEmbedded(StoreContract):
    """One partition, a real Valkey."""

    @pytest.fixture
    def new_store(self, embedded: Clients) -> NewStore:
        return embedded

    @pytest.fixture
    async def vandal(self, embedded: Clients) -> Vandal:
        return await embedded.vandal(1)


class TestDebianRedis(StoreContract):
    """64 partitions, Redis 7.0."""

    @pytest.fixture
    def new_store(self, debian: Clients) -> NewStore:
        return debian

    @pytest.fixture
    async def vandal(self, debian: Clients) -> Vandal:
        return await debian.vandal(64)


class FakeClients:
    """Stores on one fakeredis."""

    def __init__(self) -> None:
        from fakeredis import FakeServer

        self._server = FakeServer()
        self._open: list[RedisStore] = []

    def transport(self) -> ClientTransport:
        from fakeredis import FakeAsyncRedis

        return ClientTransport(FakeAsyncRedis(server=self._server, protocol=2), "fakeredis")

    async def __call__(self) -> RedisStore:
        store = RedisStore(self.transport)
        await store.begin("fake", 3)
        self._open.append(store)
        return store

    async def aclose(self) -> None:
        for store in self._open:
            await store.aclose()


class TestFakeRedis(StoreContract):
    """Three partitions, no server; the scripts run in lupa."""

    @pytest.fixture
    async def fake(self) -> AsyncIterator[FakeClients]:
        clients = FakeClients()
        yield clients
        await clients.aclose()

    @pytest.fixture
    def new_store(self, fake: FakeClients) -> NewStore:
        return fake

    @pytest.fixture
    async def vandal(self, fake: FakeClients) -> Vandal:
        return RedisVandal(fake.transport().call, "fake", 3)


class TestCluster(StoreContract):
    """64 partitions over three nodes: a script that touches an undeclared key fails here."""

    @pytest.fixture
    async def cluster(self, cluster_url: str) -> AsyncIterator[Clients]:
        clients = Clients(cluster_url)
        yield clients
        await clients.aclose()

    @pytest.fixture
    def new_store(self, cluster: Clients) -> NewStore:
        return cluster

    @pytest.fixture
    async def vandal(self, cluster: Clients) -> Vandal:
        return await cluster.vandal(64)


class MemoryClients:
    """Stores on one server in this process."""

    def __init__(self) -> None:
        self._server = MemoryServer()

    def transport(self) -> MemoryTransport:
        return MemoryTransport(self._server)

    async def __call__(self) -> RedisStore:
        store = RedisStore(self.transport)
        await store.begin("memory", 3)
        return store


class TestMemory(StoreContract):
    """Three partitions; the simulation's server, which is Python under the real scripts."""

    @pytest.fixture
    def memory(self) -> MemoryClients:
        return MemoryClients()

    @pytest.fixture
    def new_store(self, memory: MemoryClients) -> NewStore:
        return memory

    @pytest.fixture
    async def vandal(self, memory: MemoryClients) -> Vandal:
        return RedisVandal(memory.transport().call, "memory", 3)
