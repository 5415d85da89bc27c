"""What is due, limits and threads: on fakeredis, the embedded Valkey, Debian's Redis, a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from checkpoints.testing.contract import NewStore
from checkpoints.testing.schedule import ScheduleContract, WakeContract
from checkpoints.testing.servers import Clients
from tests.contract.test_contract import FakeClients


class TestEmbedded(ScheduleContract, WakeContract):
    @pytest.fixture
    def new_store(self, embedded: Clients) -> NewStore:
        return embedded


class TestDebianRedis(ScheduleContract, WakeContract):
    @pytest.fixture
    def new_store(self, debian: Clients) -> NewStore:
        return debian


class TestFakeRedis(ScheduleContract):
    """It has nobody to listen to: workers look at the due index."""

    @pytest.fixture
    async def new_store(self) -> AsyncIterator[NewStore]:
        clients = FakeClients()
        yield clients
        await clients.aclose()


class TestCluster(ScheduleContract, WakeContract):
    @pytest.fixture
    async def new_store(self, cluster_url: str) -> AsyncIterator[NewStore]:
        clients = Clients(cluster_url)
        yield clients
        await clients.aclose()
