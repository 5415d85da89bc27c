"""Contract tests of what a store does about finished runs (see store.Retention).

class TestMyStore(RetentionContract): ...   # with the fixtures of StoreContract

Its vandal can also `hasten` a run: let its time be over, and tell which keys have no expiry.
"""

# ruff: noqa: ASYNC110  what is waited for happens in a server, which has no event to await

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .. import calls
from ..errors import CorruptEntry, RunClosed, RunExists, RunNotFound, RunOpen, StoreRegressed
from ..model import Commit, Lease, RunId, Status, Tidied
from .contract import (
    TERM_MS,
    NewStore,
    R,
    Vandal,
    ask,
    commit_of,
    decision,
    entry,
    notice,
    parked,
    started,
)

BODIES = (b"\x00\xff", b"", b"\xc1 looks packed", "größer 👩‍🚀".encode() * 500)


async def ended(
    store: Any, run_id: RunId = R, status: Status = "done", **changes: Any
) -> tuple[Lease, Commit]:
    """A finished run with bodies of all kinds; its last commit and the lease it was made with."""
    claim = await started(store, run_id)
    at = await store.commit(claim.lease, commit_of(claim, *BODIES))
    last = commit_of(at, b"the last of " + run_id.encode(), status=status, **changes)
    await store.commit(claim.lease, last)
    return claim.lease, last


async def tidied(store: Any) -> Tidied:
    """One round of tidying that found something to do."""
    while True:
        done: Tidied = await store.tidy()
        if done.folded or done.expired or done.failed:
            return done
        await asyncio.sleep(0.01)


async def begun_anew(store: Any) -> None:
    """A run of the same name as R, which is removed first, and is created at another time."""
    created_ms = (await store.head(R)).created_ms
    while await store.now_ms() == created_ms:
        await asyncio.sleep(0.001)
    assert await store.purge(R, is_forced=True)
    await store.create(R, op="again", body=entry(9), snapshot=b"new")


class RetentionContract:
    """The promises, one test each. Stores fold at once (`fold_after_s=0`)."""

    @pytest.fixture
    async def store(self, new_store: NewStore) -> Any:
        """One client."""
        return await new_store()

    async def test_a_folded_run_reads_as_before(self, store: Any, new_store: NewStore) -> None:
        await ended(store)
        before = (await store.head(R), await store.journal(R), await store.journal(R, after=3))
        runs = await store.runs()

        assert (await store.tidy()).folded == (R,)

        for reader in (store, await new_store()):
            after = (
                await reader.head(R),
                await reader.journal(R),
                await reader.journal(R, after=3),
            )
            assert after == before
            assert await reader.journal(R, after=6) == []
            assert await reader.runs() == runs
        assert await store.tidy() == Tidied()

    async def test_of_many_that_tidy_at_once_each_leaves_the_run_whole(
        self, new_store: NewStore
    ) -> None:
        stores: list[Any] = [await new_store() for _ in range(4)]
        for n in range(6):
            await ended(stores[0], RunId(f"run-{n}"))

        made = await asyncio.gather(*(store.tidy() for store in stores))

        assert {run_id for done in made for run_id in done.folded} == {f"run-{n}" for n in range(6)}
        assert not any(done.failed for done in made)
        for n in range(6):
            assert len(await stores[1].journal(RunId(f"run-{n}"))) == 6

    async def test_repeats_of_the_first_and_the_last_call_are_known_after_folding(
        self, store: Any
    ) -> None:
        lease, last = await ended(store)
        first = await store.commit(lease, last)
        await store.tidy()

        again = await store.commit(lease, last)

        assert again.was_repeat
        assert (again.seq, again.chain) == (first.seq, first.chain)
        assert not await store.create(R, op="begin", body=entry(1), snapshot=b"")
        with pytest.raises(RunExists):
            await store.create(R, op="other", body=entry(1), snapshot=b"")
        with pytest.raises(RunClosed):
            await store.commit(lease, commit_of(again))

    async def test_what_is_under_way_is_never_folded_or_removed(self, store: Any) -> None:
        await parked(store)

        assert await store.tidy() == Tidied()
        with pytest.raises(RunOpen, match="waiting"):
            await store.purge(R)
        assert await store.finished(before_ms=1 << 50) == []

        assert len(await store.journal(R)) == 2

    async def test_a_journal_that_does_not_verify_is_left_for_a_person(
        self, store: Any, vandal: Vandal
    ) -> None:
        await ended(store)
        await vandal.flip(R, 2)

        assert (await store.tidy()).failed == (R,)

        with pytest.raises(CorruptEntry) as corrupt:
            await store.journal(R)
        assert corrupt.value.seq == 2
        assert await store.tidy() == Tidied()

    async def test_a_run_is_gone_when_its_time_is_over(self, store: Any, vandal: Any) -> None:
        await store.create(RunId("other"), op="o", body=b"", snapshot=b"")
        before = await vandal.digest()
        await parked(store, ask(), ask("q2"))
        await store.decide(R, "q1", decision())
        claim = await store.claim(R, owner="w", nonce="n", term_ms=TERM_MS)
        await store.put_blob(R, b"blob")
        await store.report_orphan(R, b"seen")
        await store.publish(R, [b"live"])
        await store.commit(claim.lease, commit_of(claim, status="done", keep_ms=3_600_000))
        await store.report_orphan(R, b"later")
        assert (await store.tidy()).folded == (R,)
        assert len(await store.journal(R)) == 3

        assert await vandal.hasten(R) == []
        assert (await store.tidy()).expired == (R,)

        with pytest.raises(RunNotFound):
            await store.journal(R)
        assert [h.run_id for h in await store.runs()] == ["other"]
        assert await store.asks(is_open=False) == []
        assert await vandal.digest() == before
        assert await store.create(R, op="anew", body=b"", snapshot=b"")

    async def test_a_run_that_expires_before_it_is_folded_leaves_nothing(
        self, store: Any, vandal: Vandal
    ) -> None:
        before = await vandal.digest()
        await ended(store, keep_ms=1)

        while R not in (await tidied(store)).expired:
            pass

        assert await vandal.digest() == before

    @pytest.mark.parametrize("is_folded", [True, False])
    async def test_a_purged_run_leaves_no_trace(
        self, store: Any, vandal: Vandal, is_folded: bool
    ) -> None:
        await store.create(RunId("other"), op="o", body=b"b", snapshot=b"s")
        before = await vandal.digest()
        await parked(store, ask(), ask("q2"), outbox=(notice(),))
        await store.decide(R, "q1", decision())
        await store.publish(R, [b"text"])
        await store.put_blob(R, b"blob")
        claim = await store.claim(R, owner="w", nonce="n", term_ms=TERM_MS)
        await store.commit(claim.lease, commit_of(claim, status="error", outbox=(notice("n2"),)))
        await store.report_orphan(R, b"seen")
        if is_folded:
            await store.tidy()

        assert await store.purge(R)

        assert not await store.purge(R)
        after: Any = await vandal.digest()
        assert {k: v for k, v in after.items() if v} == before

    async def test_a_run_under_way_is_purged_only_by_force(
        self, store: Any, new_store: NewStore
    ) -> None:
        claim = await started(store)

        assert await (await new_store()).purge(R, is_forced=True)  # type: ignore[attr-defined]

        with pytest.raises(StoreRegressed):
            await store.commit(claim.lease, commit_of(claim))
        assert await store.due() == []

    @pytest.mark.parametrize("who", ["worker", "reader"])
    async def test_a_name_that_is_used_again_is_another_run_and_no_loss(
        self, new_store: NewStore, who: str
    ) -> None:
        one: Any = await new_store()
        other: Any = await new_store()
        await ended(one if who == "worker" else other)
        await one.journal(R)
        await begun_anew(other)

        if who == "reader":
            assert [each.seq for each in await one.journal(R)] == [1]
        taken = await one.claim(R, owner="w2", nonce="n2", term_ms=TERM_MS)

        assert (taken.head.seq, taken.head.snapshot) == (1, b"new")
        await one.commit(taken.lease, commit_of(taken))
        assert len(await one.journal(R)) == 2

    @pytest.mark.parametrize("how", ["renew", "claim", "journal"])
    async def test_an_open_run_that_is_begun_anew_was_lost_and_is_told_once(
        self, new_store: NewStore, how: str
    ) -> None:
        one: Any = await new_store()
        claim = await started(one)
        await one.commit(claim.lease, commit_of(claim, *BODIES))
        await begun_anew(await new_store())

        if how == "renew":
            fate = (await one.renew([claim.lease]))[R]
            assert (fate.is_held, fate.forgot) == (False, (1 + len(BODIES), 1))
        else:
            with pytest.raises(StoreRegressed, match="Unless somebody has removed the run"):
                await (one.journal(R) if how == "journal" else one.claim(
                    R, owner="w2", nonce="n2", term_ms=TERM_MS
                ))  # fmt: skip

        assert [each.seq for each in await one.journal(R)] == [1]
        assert (await one.claim(R, owner="w2", nonce="n3", term_ms=TERM_MS)).head.seq == 1
        assert (await one.head(R)).due_ms is not None

    async def test_a_run_of_ours_that_is_gone_was_lost_or_long_since_removed(
        self, store: Any, new_store: NewStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other: Any = await new_store()
        await store.create(R, op="o", body=entry(1), snapshot=b"s")
        claim = await other.claim(R, owner="w", nonce="n", term_ms=TERM_MS)
        await other.commit(claim.lease, commit_of(claim, status="done"))
        await other.purge(R)

        with pytest.raises(StoreRegressed, match="Unless somebody has removed the run"):
            await store.head(R)
        monkeypatch.setattr(calls, "_FRESH_S", 0.0)
        for read in (store.head, store.journal):
            with pytest.raises(RunNotFound):
                await read(R)

    async def test_a_run_that_was_only_looked_at_may_have_ended_and_be_gone(
        self, store: Any, new_store: NewStore
    ) -> None:
        reader: Any = await new_store()
        claim = await started(store)
        await reader.journal(R)
        await store.commit(claim.lease, commit_of(claim, status="done"))
        await store.purge(R)

        for read in (reader.head, reader.journal, store.head):
            with pytest.raises(RunNotFound):
                await read(R)

    async def test_keys_that_are_not_ours_hide_no_other_run_from_who_tidies_and_notifies(
        self, store: Any
    ) -> None:
        for n in range(8):
            claim = await started(store, RunId(f"run-{n}"))
            last = commit_of(
                claim, status="done", outbox=(notice(f"n{n}", run_id=RunId(f"run-{n}")),)
            )
            await store.commit(claim.lease, last)
        parts = [store._of(RunId(f"run-{n}")).partition for n in range(8)]
        ids = {n for n, part in enumerate(parts) if part != parts[0] or len(set(parts)) == 1}
        for n in ids:
            await store._line.call("ZADD", parts[n].ended, 0, b"\xff/..")
        head = store._of(RunId(f"run-{(broken := min(ids))}")).head
        await store._line.call("DEL", head)
        await store._line.call("SET", head, "somebody else's")
        if len(ids) < 8:
            for key in (parts[0].ended, parts[0].outbox):
                await store._line.call("DEL", key)
                await store._line.call("SET", key, "somebody else's")

        done = await store.tidy(limit=40)
        told = await store.take_notices(limit=40)

        assert set(done.folded) == {f"run-{n}" for n in ids - {broken}}
        assert f"run-{broken}" in done.failed
        assert {each.run_id for each in told} == {f"run-{n}" for n in ids}

    async def test_the_finished_are_listed_by_when_they_ended(self, store: Any) -> None:
        for n, status in enumerate(("done", "error", "done")):
            await ended(store, RunId(f"run-{n}"), status)  # type: ignore[arg-type]
            stamp = await store.now_ms()
            while await store.now_ms() == stamp:
                await asyncio.sleep(0.001)
        times = [(await store.head(RunId(f"run-{n}"))).updated_ms for n in range(3)]

        assert [h.run_id for h in await store.finished(before_ms=1 << 50)] == [
            "run-0", "run-1", "run-2",
        ]  # fmt: skip
        assert [h.run_id for h in await store.finished(before_ms=times[2])] == ["run-0", "run-1"]
        assert not await store.purge(RunId("run-2"), ended_before_ms=times[2])
        assert await store.purge(RunId("run-1"), ended_before_ms=times[2])
        assert [h.run_id for h in await store.runs()] == ["run-2", "run-0"]
