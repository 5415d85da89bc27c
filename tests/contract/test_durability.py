"""Writes that copies must confirm, and stores that forget what they had acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints import Heartbeat, StoreSettings, open_store, scripts
from checkpoints.errors import (
    BadStoreUrl,
    NotDurable,
    StoreRegressed,
    StoreUsageError,
)
from checkpoints.model import Claim, Committed
from checkpoints.redis_store import RedisStore
from checkpoints.testing.contract import (
    TERM_MS,
    R,
    ask,
    commit_of,
    decision,
    parked,
    started,
)
from checkpoints.testing.pairs import Pair, pair
from checkpoints.testing.proxy import Fault, FaultProxy

# A copy that is there is waited for as long as a slow machine needs; one that is not, shortly.
PATIENT = "durability=memory:1&durability_s=50"
HASTY = "durability=memory:1&durability_s=0.1"
EVERY = "&durability_for=every"


@pytest.fixture
def servers(short_folder: Path) -> Iterator[Pair]:
    with pair(short_folder) as servers:
        yield servers


async def opened(servers: Pair, options: str = "") -> RedisStore:
    return await open_store(f"{servers.url}?{options}" if options else servers.url)


async def written(store: RedisStore, at: Claim | Committed, count: int, lease: object) -> Committed:
    for _ in range(count):
        at = await store.commit(lease, commit_of(at))  # type: ignore[arg-type]
    assert isinstance(at, Committed)
    return at


async def test_a_critical_commit_waits_for_the_replica(servers: Pair) -> None:
    store, hasty = await opened(servers, PATIENT), await opened(servers, HASTY)
    claim = await started(store)

    first = await store.commit(claim.lease, commit_of(claim, is_critical=True))
    servers.freeze_replica()
    with pytest.raises(NotDurable, match="0 of 1 replicas") as missing:
        await hasty.commit(claim.lease, commit_of(first, is_critical=True))

    second = missing.value.committed
    assert second.seq == first.seq + 1
    third = await store.commit(claim.lease, commit_of(second))  # nobody asked to wait for this one
    servers.thaw_replica()
    fourth = await store.commit(claim.lease, commit_of(third, is_critical=True))
    assert fourth.seq == 5
    assert len(await store.journal(R)) == 5
    await hasty.aclose()
    await store.aclose()


async def test_with_every_all_commits_wait(servers: Pair) -> None:
    store, hasty = await opened(servers, PATIENT + EVERY), await opened(servers, HASTY + EVERY)
    claim = await started(store)
    at = await written(store, claim, 3, claim.lease)
    servers.freeze_replica()

    with pytest.raises(NotDurable):
        await hasty.commit(claim.lease, commit_of(at))
    with pytest.raises(NotDurable):
        await hasty.create("other", op="o", body=b"b", snapshot=b"")  # type: ignore[arg-type]

    servers.thaw_replica()
    assert not await store.create("other", op="o", body=b"b", snapshot=b"")  # type: ignore[arg-type]
    await hasty.aclose()
    await store.aclose()


async def test_many_critical_commits_at_once_are_each_confirmed(servers: Pair) -> None:
    store = await opened(servers, PATIENT)
    claims = [await started(store, f"run-{n}") for n in range(40)]  # type: ignore[arg-type]

    done = await asyncio.gather(
        *(store.commit(claim.lease, commit_of(claim, is_critical=True)) for claim in claims)
    )

    assert [one.seq for one in done] == [2] * 40
    await store.aclose()


async def test_a_decision_is_told_as_saved_once_the_replica_has_it(servers: Pair) -> None:
    store, hasty = await opened(servers, PATIENT), await opened(servers, HASTY)
    await parked(store, ask())
    servers.freeze_replica()

    with pytest.raises(NotDurable, match="the decision on 'q1'"):
        await hasty.decide(R, "q1", decision())

    servers.thaw_replica()
    assert (await store.decide(R, "q1", decision())).is_repeat
    assert len(await store.mailbox(R)) == 1
    await hasty.aclose()
    await store.aclose()


async def test_a_script_that_the_server_forgot_is_sent_again_with_its_wait(servers: Pair) -> None:
    store = await opened(servers, PATIENT + EVERY)
    claim = await started(store)
    await store._line.call("SCRIPT", "FLUSH")

    assert (await store.commit(claim.lease, commit_of(claim))).seq == 2
    await store.aclose()


@pytest.mark.parametrize("fault", ["lost_request", "lost_reply", "half_reply", "twice"])
async def test_a_confirmed_commit_through_a_fault_is_one_entry(servers: Pair, fault: Fault) -> None:
    target = Path(servers.url.removeprefix("unix://"))
    async with FaultProxy(target, target.with_name("proxy.sock")) as proxy:
        store = await open_store(f"unix://{proxy.socket}?{PATIENT}")
        claim = await started(store)
        first = await store.commit(claim.lease, commit_of(claim, is_critical=True))
        proxy.inject(fault, scripts.load("commit").sha)

        done = await store.commit(claim.lease, commit_of(first, is_critical=True))

        assert proxy.hits == 1
        assert (done.seq, done.was_repeat) == (3, fault != "lost_request")
        assert len(await store.journal(R)) == 3
        await store.aclose()


async def test_disk_is_waited_for_on_both_machines(short_folder: Path) -> None:
    with pair(short_folder, "--appendonly", "yes", is_valkey=True) as servers:
        store = await opened(servers, "durability=disk:1&durability_s=50")
        claim = await started(store)

        at = await store.commit(claim.lease, commit_of(claim, is_critical=True))

        assert at.seq == 2
        servers.fail_over()
        assert [e.seq for e in await store.journal(R)] == [1, 2]
        await store.aclose()


async def test_a_server_that_cannot_confirm_is_refused_when_it_is_opened(servers: Pair) -> None:
    with pytest.raises(StoreUsageError, match="disk:N needs Redis"):
        await opened(servers, "durability=disk:1")
    with pytest.raises(BadStoreUrl, match="memory:N"):
        await opened(servers, "durability=three")
    with pytest.raises(BadStoreUrl, match="unsafe or every"):
        await opened(servers, "durability=memory:1&durability_for=all")
    with pytest.raises(BadStoreUrl, match=r"0\.01 to 60"):
        await opened(servers, "durability=memory:1&durability_s=nan")
    with pytest.raises(BadStoreUrl, match="beside it"):
        await opened(servers, "durability_for=every")


# -- stores that forget ----------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
async def test_a_failover_that_lost_commits_is_met_by_the_next_one(
    servers: Pair, lost: int
) -> None:
    store = await opened(servers)
    claim = await started(store)
    at = await written(store, claim, 2, claim.lease)
    servers.wait_for_replica()
    await store._line.call("WAIT", 1, 5000)
    servers.promote()
    at = await written(store, at, lost, claim.lease)

    servers.fail_over()

    with pytest.raises(StoreRegressed) as regressed:
        await store.commit(claim.lease, commit_of(at))
    assert (regressed.value.known_seq, regressed.value.stored_seq) == (3 + lost, 3)
    with pytest.raises(StoreRegressed):
        await store.journal(R)
    await store.aclose()


async def test_a_heartbeat_tells_that_commits_were_lost(servers: Pair) -> None:
    store = await opened(servers)
    claim = await started(store)
    at = await written(store, claim, 1, claim.lease)
    await store._line.call("WAIT", 1, 5000)
    servers.promote()
    await written(store, at, 2, claim.lease)

    async with Heartbeat(store, interval_s=0.05) as heartbeat:
        with pytest.raises(StoreRegressed) as regressed:  # noqa: PT012
            async with heartbeat.held(claim.lease):
                servers.fail_over()
                await asyncio.sleep(30)

    assert (regressed.value.known_seq, regressed.value.stored_seq) == (4, 2)
    await store.aclose()


async def test_a_claim_of_a_run_that_lost_entries_sets_it_aside_and_is_told_once(
    servers: Pair,
) -> None:
    store = await opened(servers)
    claim = await started(store)
    await store._line.call("WAIT", 1, 5000)
    servers.promote()
    await store.commit(claim.lease, commit_of(claim, status="sleeping", release=True, due_ms=1))
    servers.fail_over()
    await (await opened(servers)).release(claim.lease, due_ms=1)

    with pytest.raises(StoreRegressed):
        await store.claim(R, owner="w2", nonce="n2", term_ms=TERM_MS)

    assert await store.due() == []
    assert (await store.head(R)).lease_until_ms == 0
    assert (await store.claim(R, owner="w2", nonce="n3", term_ms=TERM_MS)).head.seq == 1
    await store.aclose()


async def test_an_end_that_was_lost_is_noticed_too(servers: Pair) -> None:
    store = await opened(servers)
    claim = await started(store)
    await store._line.call("WAIT", 1, 5000)
    servers.promote()
    await store.commit(claim.lease, commit_of(claim, status="done", keep_ms=60_000))
    servers.fail_over()
    await (await opened(servers)).release(claim.lease, due_ms=1)

    with pytest.raises(StoreRegressed):
        await store.claim(R, owner="w2", nonce="n2", term_ms=TERM_MS)

    assert await store.due() == []
    await store.aclose()


async def test_a_restart_from_an_old_dump_is_a_regression_and_no_silent_loss(
    servers: Pair,
) -> None:
    settings = StoreSettings(answer_s=1.0)
    store = await open_store(servers.url, settings=settings)
    claim = await started(store)
    at = await written(store, claim, 2, claim.lease)
    await store._line.call("SAVE")
    at = await written(store, at, 4, claim.lease)

    servers.restart()

    with pytest.raises(StoreRegressed) as regressed:
        await store.commit(claim.lease, commit_of(at))
    assert (regressed.value.known_seq, regressed.value.stored_seq) == (7, 3)
    await store.aclose()


async def test_what_a_replica_has_confirmed_survives_its_promotion(servers: Pair) -> None:
    store = await opened(servers, PATIENT + EVERY)
    claim = await started(store)
    at = await written(store, claim, 20, claim.lease)

    servers.fail_over()
    hasty = await opened(servers, HASTY + EVERY)
    at = await _without_replica(hasty, claim, at)
    await hasty.aclose()

    assert [e.seq for e in await store.journal(R)] == list(range(1, at.seq + 1))
    await store.aclose()


async def _without_replica(store: RedisStore, claim: Claim, at: Committed) -> Committed:
    """The new primary has no replica yet: applied, and not confirmed."""
    with pytest.raises(NotDurable) as missing:
        await store.commit(claim.lease, commit_of(at))
    assert isinstance(missing.value.committed, Committed)
    return missing.value.committed
