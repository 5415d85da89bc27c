"""What is due, limits and threads: on fakeredis, the embedded Valkey, Debian's Redis, a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from checkpoints.keys import group_keys
from checkpoints.testing.contract import NewStore
from checkpoints.testing.schedule import ScheduleContract, WakeContract, take
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


async def test_what_an_older_version_recorded_counts_for_its_run(debian: Clients) -> None:
    """It put bare run ids where members are now; both may work side by side."""
    store = await debian()
    _, begun = group_keys(store._all_keys().namespace, "g")
    await store._line.call("ZADD", begun, await store.now_ms(), "a")

    again = await take(store, "g", "a", rate=1, begins=True)
    other = await take(store, "g", "b", rate=1, begins=True)

    assert again == 0
    assert other > 50_000


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
