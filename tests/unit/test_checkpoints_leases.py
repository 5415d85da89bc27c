"""The heartbeat against a store that fails on purpose."""

# ruff: noqa: PT012  what is lost is lost inside of a `held` block

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from checkpoints import Heartbeat, Store, leases
from checkpoints.errors import LeaseLost, StoreUnavailable
from checkpoints.model import Lease, Renewal, RunId


class RenewingStore:
    """Renews whatever it is asked to, unless told otherwise."""

    def __init__(self) -> None:
        self.calls: list[list[RunId]] = []
        self.lost: set[RunId] = set()
        self.mail = 0
        self.failure: Exception | None = None
        self.hangs = False
        self.dead: set[RunId] = set()  # of a part of the store that does not answer

    def apart(self, leases: Sequence[Lease]) -> Sequence[Sequence[Lease]]:
        parts = [
            [x for x in leases if (x.run_id in self.dead) is is_dead] for is_dead in (False, True)
        ]
        return [part for part in parts if part]

    async def renew(self, leases: Sequence[Lease]) -> Mapping[RunId, Renewal]:
        self.calls.append([lease.run_id for lease in leases])
        if self.hangs or self.dead.intersection(lease.run_id for lease in leases):
            await asyncio.sleep(3600)
        if self.failure is not None:
            raise self.failure
        return {
            lease.run_id: Renewal(is_held=lease.run_id not in self.lost, mail=self.mail)
            for lease in leases
        }


@pytest.fixture
def store() -> RenewingStore:
    return RenewingStore()


def heartbeat_of(store: RenewingStore, interval_s: float = 0.01) -> Heartbeat:
    return Heartbeat(cast(Store, store), interval_s=interval_s)


def lease_of(name: str, term_ms: int = 60_000) -> Lease:
    return Lease(RunId(name), 1, "nonce", "worker", term_ms)


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def test_all_leases_are_renewed_in_one_call(store: RenewingStore) -> None:
    async with heartbeat_of(store) as heartbeat, asyncio.TaskGroup() as tasks:

        async def work(name: str) -> None:
            async with heartbeat.held(lease_of(name), since=monotonic()):
                await until(lambda: len(store.calls) > 2)

        for name in ("a", "b", "c"):
            tasks.create_task(work(name))

    assert sorted(store.calls[-1]) == ["a", "b", "c"]


async def test_a_lease_that_is_lost_at_the_start_starts_nothing(store: RenewingStore) -> None:
    store.lost.add(RunId("a"))
    is_begun = False

    async with heartbeat_of(store) as heartbeat:
        with pytest.raises(LeaseLost):
            async with heartbeat.held(lease_of("a")):
                is_begun = True

    assert not is_begun


async def test_only_the_work_of_the_lost_lease_is_cancelled(store: RenewingStore) -> None:
    ends: dict[str, str] = {}

    async with heartbeat_of(store) as heartbeat, asyncio.TaskGroup() as tasks:

        async def work(name: str) -> None:
            try:
                async with heartbeat.held(lease_of(name)):
                    await until(lambda: "a" in ends)
            except LeaseLost:
                ends[name] = "lost"
            else:
                ends[name] = "kept"

        for name in ("a", "b"):
            tasks.create_task(work(name))
        store.lost.add(RunId("a"))

    assert ends == {"a": "lost", "b": "kept"}


@pytest.mark.parametrize("trouble", ["fails", "hangs"])
async def test_a_lease_that_cannot_be_renewed_is_given_up_before_its_end(
    store: RenewingStore, trouble: str
) -> None:
    lease = lease_of("a", term_ms=300)
    since = monotonic()

    async with heartbeat_of(store) as heartbeat:
        with pytest.raises(LeaseLost):
            async with heartbeat.held(lease, since=since):
                store.hangs = trouble == "hangs"
                store.failure = StoreUnavailable("gone") if trouble == "fails" else None
                await asyncio.sleep(30)
        given_up_s = monotonic() - since

    assert 0.15 < given_up_s < 0.3


@pytest.mark.parametrize("is_blocked", [False, True])
async def test_a_part_of_the_store_that_hangs_costs_its_own_leases_only(
    store: RenewingStore, is_blocked: bool
) -> None:
    twin = TwinStore()
    spare = (lambda: cast(Store, twin)) if is_blocked else None
    heartbeat = Heartbeat(cast(Store, store), interval_s=30 if is_blocked else 0.01, spare=spare)
    ends = {}

    async def work(name: str) -> None:
        try:
            async with heartbeat.held(lease_of(name, term_ms=600), since=monotonic()):
                await until(lambda: "a" in ends)
        except LeaseLost:
            ends[name] = "lost"
        else:
            ends[name] = "kept"

    def block() -> None:
        end = monotonic() + 1.2  # two terms
        while monotonic() < end:
            time.sleep(0.01)

    async with heartbeat, asyncio.TaskGroup() as tasks:
        for part in (store.dead, twin.dead):
            part.add(RunId("a"))
        for name in ("a", "b"):
            tasks.create_task(work(name))
        await asyncio.sleep(0)
        if is_blocked:
            block()

    assert ends == {"a": "lost", "b": "kept"}


async def test_nothing_may_start_once_the_margin_is_gone(store: RenewingStore) -> None:
    lease = lease_of("a")

    async with heartbeat_of(store, interval_s=30) as heartbeat:
        assert not heartbeat.may_start(lease)
        async with heartbeat.held(lease, since=monotonic() - 39):
            assert heartbeat.may_start(lease)
            assert 0 < heartbeat.left_s(lease) < 1.5
            assert not heartbeat.may_start(Lease(lease.run_id, 2, "other", "w", 60_000))
            store.failure = StoreUnavailable("gone")
            with pytest.raises(LeaseLost):
                async with heartbeat.held(lease_of("b"), since=monotonic() - 39.9):
                    await asyncio.sleep(30)


async def test_an_old_claim_is_renewed_before_anything_starts(store: RenewingStore) -> None:
    lease = lease_of("a")

    async with heartbeat_of(store) as heartbeat, heartbeat.held(lease, since=monotonic() - 41):
        assert store.calls
        assert heartbeat.may_start(lease)


async def test_a_cancellation_from_elsewhere_is_no_lost_lease(store: RenewingStore) -> None:
    async with heartbeat_of(store) as heartbeat:

        async def work() -> None:
            async with heartbeat.held(lease_of("a")):
                await asyncio.sleep(30)

        task = asyncio.ensure_future(work())
        await until(lambda: store.calls)
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_timeout_in_the_body_stays_a_timeout(store: RenewingStore) -> None:
    async with heartbeat_of(store) as heartbeat, heartbeat.held(lease_of("a")):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await asyncio.sleep(30)


async def test_a_lost_lease_inside_a_timeout_is_a_lost_lease(store: RenewingStore) -> None:
    async with heartbeat_of(store) as heartbeat:
        with pytest.raises(LeaseLost):
            async with asyncio.timeout(30), heartbeat.held(lease_of("a")):
                store.lost.add(RunId("a"))
                await asyncio.sleep(30)

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_mail_is_told_once_for_each_growth(store: RenewingStore) -> None:
    counts: list[int] = []
    store.mail = 3

    async with (
        heartbeat_of(store) as heartbeat,
        heartbeat.held(lease_of("a"), on_mail=counts.append, since=monotonic(), mail=2),
    ):
        await until(lambda: counts)
        store.mail = 5
        await until(lambda: len(counts) == 2)
        seen = len(store.calls)
        await until(lambda: len(store.calls) > seen + 2)

    assert counts == [3, 5]


async def test_a_failing_listener_ends_the_heartbeat_and_its_parent(store: RenewingStore) -> None:
    def fail(_: int) -> None:
        raise ValueError("listener")

    store.mail = 1
    with pytest.raises(ExceptionGroup) as group:
        async with (
            heartbeat_of(store) as heartbeat,
            heartbeat.held(lease_of("a"), on_mail=fail, since=monotonic(), mail=0),
        ):
            await asyncio.sleep(30)

    assert group.group_contains(ValueError, match="listener")


class TwinStore(RenewingStore):
    """What another thread renews with."""

    async def aclose(self) -> None:
        self.calls.append([])


async def test_a_lease_that_came_in_a_long_pause_is_renewed_for_a_blocked_loop(
    store: RenewingStore,
) -> None:
    twin = TwinStore()
    heartbeat = Heartbeat(cast(Store, store), interval_s=30.0, spare=lambda: cast(Store, twin))

    async with heartbeat, heartbeat.held(lease_of("a", term_ms=600), since=monotonic()):
        end = monotonic() + 10
        while not twin.calls and monotonic() < end:
            time.sleep(0.01)  # noqa: ASYNC251  the point of the test
        await asyncio.sleep(0)
        assert heartbeat.may_start(lease_of("a", term_ms=600))

    assert twin.calls[0] == ["a"]
    assert twin.calls[-1] == []  # closed
    assert store.calls == []


@pytest.mark.parametrize("allowed_s", [0.0, 30.0])
async def test_a_loop_that_is_silent_for_longer_than_it_may_be_keeps_nothing(
    store: RenewingStore, monkeypatch: pytest.MonkeyPatch, allowed_s: float
) -> None:
    monkeypatch.setattr(leases, "_SILENCE_S", 0.3)
    twin = TwinStore()
    heartbeat = Heartbeat(cast(Store, store), interval_s=30.0, spare=lambda: cast(Store, twin))
    seen = []

    with capture_logs() as logs, suppress(LeaseLost):
        async with heartbeat, heartbeat.held(lease_of("a", term_ms=300), since=monotonic()):
            with heartbeat.allowing(allowed_s), heartbeat.allowing(0.0):
                for silent_s in (0.5, 0.5):
                    end = monotonic() + silent_s
                    while monotonic() < end:
                        time.sleep(0.01)  # noqa: ASYNC251  the point of the test
                    seen.append(len(twin.calls))
            await asyncio.sleep(0)

    assert seen[0] > 0
    assert (seen[1] > seen[0]) is bool(allowed_s)
    told = [log for log in logs if log["event"] == "lease.loop_is_silent"]
    assert len(told) == (0 if allowed_s else 1)


async def test_a_lease_that_was_lost_while_the_loop_was_blocked_ends_the_work(
    store: RenewingStore,
) -> None:
    twin = TwinStore()
    twin.lost.add(RunId("a"))
    heartbeat = Heartbeat(cast(Store, store), interval_s=30.0, spare=lambda: cast(Store, twin))

    async with heartbeat:
        with pytest.raises(LeaseLost):
            async with heartbeat.held(lease_of("a", term_ms=600), since=monotonic()):
                end = monotonic() + 10
                while not twin.calls and monotonic() < end:
                    time.sleep(0.01)  # noqa: ASYNC251
                await asyncio.sleep(30)
