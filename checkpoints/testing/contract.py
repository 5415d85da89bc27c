"""Contract tests that every store passes.

    class TestMyStore(StoreContract):
        @pytest.fixture
        async def new_store(self): ...  # () -> Awaitable[Store]: another client of the same data
        @pytest.fixture
        async def vandal(self): ...         # a Vandal of the same data

pytest with pytest-asyncio in its auto mode runs them.
"""

# ruff: noqa: ASYNC110  what is waited for happens in a server, which has no event to await

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from time import monotonic
from typing import Any, Protocol

import msgspec
import pytest

from ..chain import genesis
from ..errors import (
    AlreadyDecided,
    AlreadyVoted,
    AskClaimed,
    AskExpired,
    AskLocked,
    AskNotExpired,
    AskNotFound,
    BadRunId,
    CorruptEntry,
    DecisionStale,
    EntryTooLarge,
    LeaseLost,
    RunBusy,
    RunClosed,
    RunExists,
    RunNotFound,
    StoreDiverged,
    StoreRegressed,
    StoreUsageError,
)
from ..leases import Heartbeat
from ..model import Ask, Claim, Commit, Committed, Decision, Lease, Notice, RunId
from ..store import Store

NewStore = Callable[[], Awaitable[Store]]
R = RunId("run-1")
TERM_MS = 60_000
SHORT_MS = 30
BAD_IDS = (
    *("", "*", "../x", "a:b", "{t}", "x" * 65, "x" * 10_000, "a\0b", "a\n", "\u202eabc", "ключ"),
    *("a b", "']]", "😀", "a/b", "a{b}c"),
)
_names = count()


class Vandal(Protocol):
    """Damage below the store's surface."""

    async def flip(self, run_id: RunId, seq: int) -> None:
        """Change one byte of an entry's body."""

    async def cut(self, run_id: RunId, seq: int) -> None:
        """Remove an entry."""

    async def forget(self) -> None:
        """Remove everything, as FLUSHALL does."""

    async def rewind(self, run_id: RunId, head: bytes) -> None:
        """Put a head back that `copy` gave, as a lossy failover does."""

    async def copy(self, run_id: RunId) -> bytes:
        """The head as it is now."""

    async def occupy(self, run_id: RunId) -> None:
        """Put a value of another type where the run's journal would be."""

    async def digest(self) -> object:
        """Everything stored, in a form that can be compared."""


def entry(n: int) -> bytes:
    """A body that is not text."""
    return b"entry %d \x00\xff\r\n" % n


def commit_of(at: Claim | Committed, *bodies: bytes, **changes: Any) -> Commit:
    """A commit that follows a claim or a commit."""
    seq, chain = (at.head.seq, at.head.chain) if isinstance(at, Claim) else (at.seq, at.chain)
    commit = Commit(
        op=f"op-{next(_names)}",
        expected_seq=seq,
        previous_chain=chain,
        bodies=bodies or (entry(seq + 1),),
        status="running",
        snapshot=b"snapshot \xff",
    )
    return msgspec.structs.replace(commit, **changes)


def ask(ask_id: str = "q1", **changes: Any) -> Ask:
    """A request."""
    return msgspec.structs.replace(Ask(ask_id=ask_id, digest="d1", body=b"pay \xff?"), **changes)


def decision(decision_id: str = "c1", **changes: Any) -> Decision:
    """An approval of `ask()`."""
    made = Decision(
        decision_id=decision_id, verb="approve", by="Mia Ö.", digest="d1", body=b"yes \xff"
    )
    return msgspec.structs.replace(made, **changes)


def notice(notice_id: str = "n1", **changes: Any) -> Notice:
    """Something to tell about run R."""
    return msgspec.structs.replace(
        Notice(notice_id=notice_id, run_id=R, body=b"tell \xff\r\n them"), **changes
    )


async def started(store: Store, run_id: RunId = R, *, term_ms: int = TERM_MS) -> Claim:
    """A new run, claimed."""
    await store.create(run_id, op="begin", body=entry(1), snapshot=b"s1")
    return await store.claim(run_id, owner="w1", nonce=f"n-{next(_names)}", term_ms=term_ms)


async def taken_over(store: Store, run_id: RunId = R, *, term_ms: int = TERM_MS) -> Claim:
    """A claim by another worker as soon as the lease ran out."""
    while True:
        try:
            nonce = f"n-{next(_names)}"
            return await store.claim(run_id, owner="w2", nonce=nonce, term_ms=term_ms)
        except RunBusy:
            await asyncio.sleep(0.005)


async def parked(store: Store, *asks: Ask, **changes: Any) -> Committed:
    """A run that waits for a person."""
    claim = await started(store)
    changes = {"status": "waiting", "release": True, "opened": asks or (ask(),)} | changes
    return await store.commit(claim.lease, commit_of(claim, **changes))


async def outcomes(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """Results and exceptions of calls made at once."""
    return list(await asyncio.gather(*calls, return_exceptions=True))


class StoreContract:
    """The promises, one test each."""

    @pytest.fixture
    async def store(self, new_store: NewStore) -> Store:
        """One client."""
        return await new_store()

    # -- create ------------------------------------------------------------------------------------

    async def test_a_new_run_is_ready_and_due_now(self, store: Store) -> None:
        assert await store.create(R, op="begin", body=entry(1), snapshot=b"s1\xff")

        head = await store.head(R)
        assert (head.seq, head.status, head.snapshot, head.token) == (1, "ready", b"s1\xff", 0)
        assert head.due_ms is not None
        assert head.due_ms <= await store.now_ms()
        assert await store.due() == [R]
        assert [e.body for e in await store.journal(R)] == [entry(1)]

    async def test_creating_again_with_the_same_op_changes_nothing(self, store: Store) -> None:
        claim = await started(store)
        await store.commit(claim.lease, commit_of(claim))
        before = await store.head(R)

        assert not await store.create(R, op="begin", body=entry(1), snapshot=b"s1")

        assert await store.head(R) == before

    async def test_creating_again_with_another_op_is_refused(self, store: Store) -> None:
        await started(store)

        with pytest.raises(RunExists):
            await store.create(R, op="other", body=entry(1), snapshot=b"s1")

    async def test_of_many_creators_one_creates(self, store: Store) -> None:
        made = await outcomes(
            [store.create(R, op="begin", body=entry(1), snapshot=b"") for _ in range(50)]
        )

        assert sorted(made) == [False] * 49 + [True]
        assert len(await store.journal(R)) == 1

    async def test_a_new_run_may_begin_with_many_entries_and_go_on_from_the_last(
        self, store: Store
    ) -> None:
        bodies = [entry(n) for n in range(1, 301)]
        assert await store.create(R, op="o", body=bodies[0], snapshot=b"s", following=bodies[1:])
        assert not await store.create(R, op="o", body=bodies[0], snapshot=b"s", following=[b"x"])

        claim = await store.claim(R, owner="w1", nonce="n", term_ms=TERM_MS)
        committed = await store.commit(claim.lease, commit_of(claim))

        assert (claim.head.seq, committed.seq) == (300, 301)
        assert [e.body for e in await store.journal(R)][:300] == bodies

    async def test_of_many_creators_of_many_entries_one_creates(
        self, store: Store, new_store: NewStore
    ) -> None:
        others = [store, *[await new_store() for _ in range(3)]]

        made = await outcomes(
            [
                each.create(R, op=f"o{n % 2}", body=entry(n % 2), snapshot=b"", following=[b"3"])
                for n, each in enumerate(others * 5)
            ]
        )

        assert sum(each is True for each in made) == 1
        assert sum(isinstance(each, RunExists) for each in made) == 10
        assert len(await store.journal(R)) == 2

    async def test_a_new_run_that_is_not_due_sleeps_until_it_is_claimed_or_told_something(
        self, store: Store
    ) -> None:
        await store.create(R, op="o", body=entry(1), snapshot=b"s", is_due=False)
        head = await store.head(R)
        assert (head.status, head.due_ms, await store.due()) == ("sleeping", None, [])
        assert [h.run_id for h in await store.runs(status="sleeping")] == [R]

        claim = await store.claim(R, owner="w1", nonce="n", term_ms=TERM_MS)
        await store.release(claim.lease, due_ms=None)
        assert ((await store.head(R)).status, await store.due()) == ("sleeping", [])

        await store.signal(R, signal_id="s", body=b"come")
        assert await store.due() == [R]

    async def test_a_run_with_an_entry_above_the_cap_is_not_begun(self, store: Store) -> None:
        with pytest.raises(EntryTooLarge):
            await store.create(
                R, op="o", body=b"1", snapshot=b"", following=[b"2", b"x" * (1 << 21)]
            )

        with pytest.raises(RunNotFound):
            await store.head(R)

    @pytest.mark.parametrize("bad", BAD_IDS, ids=lambda bad: repr(bad[:12]))
    async def test_a_bad_id_touches_no_key(self, store: Store, vandal: Vandal, bad: str) -> None:
        run_id, lease = RunId(bad), Lease(RunId(bad), 1, "n", "w", TERM_MS)
        await started(store)
        claim = Claim(
            lease=lease, head=await store.head(R), is_takeover=False, server_ms=await store.now_ms()
        )
        before = await vandal.digest()

        made = await outcomes(
            [
                store.create(run_id, op="o", body=b"b", snapshot=b"s"),
                store.claim(run_id, owner="w", nonce="n", term_ms=TERM_MS),
                store.renew([lease]),
                store.release(lease, due_ms=None),
                store.commit(lease, commit_of(claim)),
                store.signal(run_id, signal_id="s", body=b""),
                store.decide(run_id, "q", decision()),
                store.comment(run_id, "q", by="b", text="t"),
                store.claim_ask(run_id, "q", by="b"),
                store.release_ask(run_id, "q", by="b"),
                store.mailbox(run_id),
                store.head(run_id),
                store.journal(run_id),
                store.asks(run_id),
                store.report_orphan(run_id, b"x"),
                store.orphans(run_id),
                store.publish(run_id, [b"x"]),
                anext(aiter(store.live(run_id))),
                store.put_blob(run_id, b"x"),
                store.get_blob(run_id, "0" * 64),
            ]
        )

        assert {type(error) for error in made} == {BadRunId}
        assert await vandal.digest() == before

    async def test_quotes_and_lua_in_values_are_only_values(self, store: Store) -> None:
        evil = "']] redis.call('FLUSHALL') --[["
        await store.create(R, op=evil, body=evil.encode(), snapshot=evil.encode())
        claim = await store.claim(R, owner=evil, nonce=evil, term_ms=TERM_MS)
        await store.commit(claim.lease, commit_of(claim, opened=(ask(evil),)))
        await store.signal(R, signal_id=evil, body=evil.encode())

        ruling = await store.decide(R, evil, decision(evil, verb=evil, by=evil))

        assert (ruling.verb, ruling.by) == (evil, evil)
        assert [s.signal_id for s in await store.mailbox(R)] == [evil, "decision:" + evil]
        assert (await store.head(R)).owner == evil

    async def test_foreign_data_under_a_key_is_refused_and_kept(
        self, store: Store, vandal: Vandal
    ) -> None:
        await vandal.occupy(R)
        before = await vandal.digest()

        with pytest.raises(StoreDiverged, match="not this program's"):
            await store.create(R, op="o", body=b"b", snapshot=b"s")

        assert await vandal.digest() == before

    async def test_foreign_data_met_by_a_commit_is_refused_and_kept(
        self, store: Store, vandal: Vandal
    ) -> None:
        claim = await started(store)
        await vandal.occupy(R)
        before = await vandal.digest()

        with pytest.raises(StoreDiverged, match="not this program's"):
            await store.commit(claim.lease, commit_of(claim))

        assert await vandal.digest() == before

    # -- claim, renew, release ---------------------------------------------------------------------

    async def test_a_claim_grants_a_lease_and_the_head(self, store: Store) -> None:
        claim = await started(store)

        assert claim.lease.token == 1
        assert not claim.is_takeover
        assert (claim.head.seq, claim.head.status, claim.head.owner) == (1, "running", "w1")
        assert claim.head.lease_until_ms == claim.server_ms + TERM_MS == claim.head.due_ms
        assert await store.due() == []
        assert await store.head(R) == claim.head

    async def test_a_claimed_run_is_busy_for_others(self, store: Store) -> None:
        claim = await started(store)

        with pytest.raises(RunBusy) as busy:
            await store.claim(R, owner="w1", nonce="another", term_ms=TERM_MS)

        assert (busy.value.owner, busy.value.until_ms) == ("w1", claim.head.lease_until_ms)

    async def test_a_repeated_claim_gives_the_same_lease(self, store: Store) -> None:
        await store.create(R, op="begin", body=entry(1), snapshot=b"")
        first = await store.claim(R, owner="w1", nonce="n", term_ms=TERM_MS)

        again = await store.claim(R, owner="w1", nonce="n", term_ms=TERM_MS)

        assert again.lease == first.lease
        assert again.is_takeover == first.is_takeover

    async def test_of_many_claimers_one_owns(self, new_store: NewStore) -> None:
        stores = [await new_store() for _ in range(4)]
        await stores[0].create(R, op="begin", body=entry(1), snapshot=b"")

        made = await outcomes(
            [
                stores[n % 4].claim(R, owner="same-id", nonce=f"n{n}", term_ms=TERM_MS)
                for n in range(60)
            ]
        )

        assert sum(isinstance(one, Claim) for one in made) == 1
        assert sum(isinstance(one, RunBusy) for one in made) == 59

    async def test_an_unknown_run_cannot_be_claimed(self, store: Store) -> None:
        with pytest.raises(RunNotFound):
            await store.claim(R, owner="w", nonce="n", term_ms=TERM_MS)

    async def test_a_dead_owner_is_taken_over_and_counted(self, store: Store) -> None:
        await started(store, term_ms=SHORT_MS)

        second = await taken_over(store, term_ms=SHORT_MS)
        third = await taken_over(store)

        assert (second.is_takeover, second.head.recoveries, second.lease.token) == (True, 1, 2)
        assert (third.is_takeover, third.head.recoveries, third.lease.token) == (True, 2, 3)

    async def test_progress_resets_the_count_of_takeovers(self, store: Store) -> None:
        await started(store, term_ms=SHORT_MS)
        claim = await taken_over(store)
        idle = await store.commit(claim.lease, commit_of(claim, is_progress=False))
        assert (await store.head(R)).recoveries == 1

        await store.commit(claim.lease, commit_of(idle))

        assert (await store.head(R)).recoveries == 0

    async def test_an_expired_lease_makes_the_run_due(self, store: Store) -> None:
        await started(store, term_ms=SHORT_MS)

        while not (due := await store.due()):
            await asyncio.sleep(0.005)

        assert due == [R]

    async def test_renewals_tell_held_from_lost(self, store: Store) -> None:
        old = await started(store, term_ms=SHORT_MS)
        new = await taken_over(store)
        other = await started(store, RunId("run-2"))
        await store.signal(other.lease.run_id, signal_id="s", body=b"")

        fates = await store.renew([old.lease, other.lease])

        assert not fates[R].is_held
        assert fates[other.lease.run_id].is_held
        assert fates[other.lease.run_id].mail == 1
        assert (await store.renew([new.lease]))[R].is_held

    async def test_a_renewal_moves_the_end(self, store: Store) -> None:
        claim = await started(store, term_ms=SHORT_MS)
        longer = msgspec.structs.replace(claim.lease, term_ms=TERM_MS)

        await store.renew([longer])

        head = await store.head(R)
        assert head.lease_until_ms > claim.head.lease_until_ms + TERM_MS / 2
        assert head.due_ms == head.lease_until_ms

    async def test_renewing_what_does_not_exist_is_lost(self, store: Store) -> None:
        fates = await store.renew([Lease(R, 1, "n", "w", TERM_MS)])

        assert not fates[R].is_held

    async def test_renewing_nothing_is_nothing(self, store: Store) -> None:
        assert await store.renew([]) == {}

    async def test_a_released_run_can_be_claimed_at_once(self, store: Store) -> None:
        first = await started(store)
        await store.release(first.lease, due_ms=5)
        head = await store.head(R)
        assert (head.lease_until_ms, head.due_ms, head.status) == (0, 5, "ready")

        second = await store.claim(R, owner="w2", nonce="n2", term_ms=TERM_MS)

        assert not second.is_takeover
        assert second.lease.token == 2

    async def test_a_run_is_released_as_waiting_or_as_it_was(self, store: Store) -> None:
        first = await started(store)
        await store.release(first.lease, due_ms=None, status="waiting")
        await store.release(first.lease, due_ms=5, status="sleeping")  # not held: changes nothing
        assert (await store.head(R)).status == "waiting"
        assert [h.run_id for h in await store.runs(status="waiting")] == [R]
        assert await store.runs(status="ready") == []

        again = await store.claim(R, owner="w2", nonce="n2", term_ms=TERM_MS)
        await store.release(again.lease, due_ms=5)

        head = await store.head(R)
        assert (head.status, head.due_ms) == ("waiting", 5)

    async def test_a_released_lease_writes_nothing_more(self, store: Store) -> None:
        claim = await started(store)
        await store.release(claim.lease, due_ms=None)

        with pytest.raises(LeaseLost):
            await store.commit(claim.lease, commit_of(claim))
        assert not (await store.renew([claim.lease]))[R].is_held
        await store.release(claim.lease, due_ms=7)

        assert (await store.head(R)).due_ms is None

    async def test_releasing_a_lost_lease_leaves_the_new_owner_alone(self, store: Store) -> None:
        old = await started(store, term_ms=SHORT_MS)
        await taken_over(store)
        before = await store.head(R)

        await store.release(old.lease, due_ms=None)

        assert await store.head(R) == before

    async def test_mail_that_came_while_held_wakes_a_released_run(self, store: Store) -> None:
        claim = await started(store)
        await store.signal(R, signal_id="s", body=b"")

        await store.release(claim.lease, due_ms=None)

        assert await store.due() == [R]

    # -- commit ------------------------------------------------------------------------------------

    async def test_a_commit_appends_and_extends_the_lease(self, store: Store) -> None:
        claim = await started(store)

        done = await store.commit(claim.lease, commit_of(claim, b"\x00\xff", b""))

        head = await store.head(R)
        assert (done.seq, done.was_repeat, done.chain) == (3, False, head.chain)
        assert (head.seq, head.snapshot) == (3, b"snapshot \xff")
        assert head.lease_until_ms == done.server_ms + TERM_MS == head.due_ms
        assert [e.body for e in await store.journal(R)] == [entry(1), b"\x00\xff", b""]
        assert [e.seq for e in await store.journal(R, after=1)] == [2, 3]
        assert await store.journal(R, after=3) == []

    async def test_a_repeated_commit_is_one_commit(self, store: Store) -> None:
        claim = await started(store)
        commit = commit_of(claim, b"a", b"b", b"c", outbox=(notice(),))
        first = await store.commit(claim.lease, commit)

        again = await store.commit(claim.lease, commit)

        assert again.was_repeat
        assert (again.seq, again.chain) == (first.seq, first.chain)
        assert len(await store.journal(R)) == 4
        assert len(await store.take_notices()) == 1

    async def test_many_copies_of_a_commit_are_one_commit(self, store: Store) -> None:
        claim = await started(store)
        commit = commit_of(claim, b"a", b"b")

        made = await outcomes([store.commit(claim.lease, commit) for _ in range(50)])

        assert [one.was_repeat for one in made].count(False) == 1
        assert len(await store.journal(R)) == 3

    async def test_the_repeat_of_a_releasing_commit_is_known(self, store: Store) -> None:
        claim = await started(store)
        commit = commit_of(claim, status="waiting", release=True)
        await store.commit(claim.lease, commit)

        assert (await store.commit(claim.lease, commit)).was_repeat

    async def test_the_repeat_of_a_closing_commit_is_known(self, store: Store) -> None:
        claim = await started(store)
        commit = commit_of(claim, status="done")
        await store.commit(claim.lease, commit)

        assert (await store.commit(claim.lease, commit)).was_repeat

    async def test_a_superseded_writer_is_fenced(self, store: Store) -> None:
        old = await started(store, term_ms=SHORT_MS)
        new = await taken_over(store)

        with pytest.raises(LeaseLost):
            await store.commit(old.lease, commit_of(old))

        await store.commit(new.lease, commit_of(new))
        with pytest.raises(LeaseLost):
            await store.commit(old.lease, commit_of(old))
        assert len(await store.journal(R)) == 2

    async def test_a_superseded_writer_is_fenced_even_for_what_it_committed(
        self, store: Store
    ) -> None:
        old = await started(store, term_ms=SHORT_MS)
        commit = commit_of(old)
        await store.commit(old.lease, commit)
        await taken_over(store)

        with pytest.raises(LeaseLost):
            await store.commit(old.lease, commit)

    async def test_the_nonce_fences_where_the_token_is_equal(self, store: Store) -> None:
        claim = await started(store)
        twin = msgspec.structs.replace(claim.lease, nonce="another")

        with pytest.raises(LeaseLost):
            await store.commit(twin, commit_of(claim))

        assert not (await store.renew([twin]))[R].is_held

    async def test_an_expired_owner_may_commit_if_nobody_took_over(self, store: Store) -> None:
        claim = await started(store, term_ms=SHORT_MS)
        while not await store.due():
            await asyncio.sleep(0.005)

        done = await store.commit(claim.lease, commit_of(claim))

        assert (await store.head(R)).lease_until_ms == done.server_ms + SHORT_MS

    async def test_a_commit_on_a_wrong_seq_or_chain_diverges(self, store: Store) -> None:
        claim = await started(store)
        done = await store.commit(claim.lease, commit_of(claim))

        for commit in (
            commit_of(claim),
            commit_of(done, previous_chain=genesis(R)),
            commit_of(done, expected_seq=0),
            commit_of(done, expected_seq=7),
        ):
            with pytest.raises(StoreDiverged):
                await store.commit(claim.lease, commit)
        assert len(await store.journal(R)) == 2

    async def test_a_store_that_forgot_has_regressed(self, store: Store, vandal: Vandal) -> None:
        claim = await started(store)
        old_head = await vandal.copy(R)
        done = await store.commit(claim.lease, commit_of(claim))
        await vandal.cut(R, 2)
        await vandal.rewind(R, old_head)

        with pytest.raises(StoreRegressed) as regressed:
            await store.commit(claim.lease, commit_of(done))

        assert (regressed.value.known_seq, regressed.value.stored_seq) == (2, 1)

    async def test_a_store_that_forgot_everything_has_regressed(
        self, store: Store, vandal: Vandal
    ) -> None:
        claim = await started(store)
        await vandal.forget()

        with pytest.raises(StoreRegressed):
            await store.commit(claim.lease, commit_of(claim))
        with pytest.raises(StoreRegressed):
            await store.claim(R, owner="w", nonce="n", term_ms=TERM_MS)

    async def test_a_lease_grant_lost_in_a_failover_leaves_one_writer(
        self, store: Store, vandal: Vandal
    ) -> None:
        await store.create(R, op="begin", body=entry(1), snapshot=b"")
        unclaimed = await vandal.copy(R)
        lost = await store.claim(R, owner="w1", nonce="n1", term_ms=TERM_MS)
        await vandal.rewind(R, unclaimed)
        kept = await store.claim(R, owner="w2", nonce="n2", term_ms=TERM_MS)
        assert lost.lease.token == kept.lease.token

        with pytest.raises(LeaseLost):
            await store.commit(lost.lease, commit_of(lost))

        assert (await store.commit(kept.lease, commit_of(kept))).seq == 2

    @pytest.mark.parametrize("status", ["done", "error"])
    async def test_a_closed_run_takes_nothing_more(self, store: Store, status: Any) -> None:
        claim = await started(store)
        done = await store.commit(claim.lease, commit_of(claim, status=status, opened=(ask(),)))

        head = await store.head(R)
        assert (head.status, head.due_ms, head.lease_until_ms) == (status, None, 0)
        for refused in (
            store.commit(claim.lease, commit_of(done)),
            store.claim(R, owner="w", nonce="n", term_ms=TERM_MS),
            store.signal(R, signal_id="s", body=b""),
            store.decide(R, "q1", decision()),
            store.comment(R, "q1", by="b", text="t"),
            store.claim_ask(R, "q1", by="b"),
        ):
            with pytest.raises(RunClosed) as closed:
                await refused
            assert closed.value.status == status
        assert await store.head(R) == head
        assert await store.asks() == []
        assert await store.due() == []

    async def test_a_released_run_is_due_when_the_commit_says_so(self, store: Store) -> None:
        claim = await started(store)
        soon = await store.now_ms() + 40

        await store.commit(
            claim.lease, commit_of(claim, status="sleeping", release=True, due_ms=soon)
        )

        assert (await store.head(R)).due_ms == soon
        while not (due := await store.due()):
            assert await store.now_ms() < soon + 5000
            await asyncio.sleep(0.01)
        assert due == [R]
        assert await store.now_ms() >= soon

    async def test_mail_that_the_writer_has_not_seen_wakes_a_parked_run(self, store: Store) -> None:
        claim = await started(store)
        await store.signal(R, signal_id="s1", body=b"")
        held = await store.commit(claim.lease, commit_of(claim))
        assert held.mail == 1
        assert await store.due() == []

        await store.commit(
            claim.lease, commit_of(held, status="waiting", release=True, seen_mail=0)
        )

        assert await store.due() == [R]

    async def test_mail_that_the_writer_has_seen_wakes_nobody(self, store: Store) -> None:
        claim = await started(store)
        await store.signal(R, signal_id="s1", body=b"")

        await store.commit(
            claim.lease, commit_of(claim, status="waiting", release=True, seen_mail=1)
        )

        assert await store.due() == []

    async def test_no_signal_is_lost_between_writing_and_parking(self, new_store: NewStore) -> None:
        worker, sender = await new_store(), await new_store()
        for n in range(20):
            run_id = RunId(f"race-{n}")
            claim = await started(worker, run_id)
            park = commit_of(claim, status="waiting", release=True)

            await asyncio.gather(
                worker.commit(claim.lease, park), sender.signal(run_id, signal_id="s", body=b"")
            )

            assert run_id in await worker.due(limit=100)

    async def test_a_commit_above_the_cap_is_refused(self, store: Store) -> None:
        claim = await started(store)

        with pytest.raises(EntryTooLarge):
            await store.commit(claim.lease, commit_of(claim, bytes(1 << 21)))

        assert (await store.head(R)).seq == 1

    # -- journal -----------------------------------------------------------------------------------

    async def test_a_long_journal_is_read_whole(self, store: Store) -> None:
        claim = await started(store)
        at: Claim | Committed = claim
        for _ in range(6):
            at = await store.commit(claim.lease, commit_of(at, *(entry(n) for n in range(200))))

        entries = await store.journal(R)

        assert [e.seq for e in entries] == list(range(1, 1202))
        assert (await store.journal(R, after=600))[0].seq == 601

    async def test_an_unknown_journal_is_not_empty_but_not_found(self, store: Store) -> None:
        for read in (store.journal(R), store.head(R)):
            with pytest.raises(RunNotFound):
                await read

    async def test_a_changed_byte_is_named_by_its_seq(self, store: Store, vandal: Vandal) -> None:
        claim = await started(store)
        await store.commit(claim.lease, commit_of(claim, b"aaaa", b"bbbb", b"cccc"))
        await vandal.flip(R, 3)

        with pytest.raises(CorruptEntry) as corrupt:
            await store.journal(R)

        assert corrupt.value.seq == 3
        with pytest.raises(CorruptEntry):
            await store.journal(R, after=1)

    @pytest.mark.parametrize("seq", [1, 2, 4])
    async def test_a_missing_entry_is_named_by_its_seq(
        self, store: Store, vandal: Vandal, seq: int
    ) -> None:
        claim = await started(store)
        await store.commit(claim.lease, commit_of(claim, b"aaaa", b"bbbb", b"cccc"))
        await vandal.cut(R, seq)

        with pytest.raises(CorruptEntry) as corrupt:
            await store.journal(R)

        assert corrupt.value.seq == seq

    async def test_entries_of_one_run_do_not_fit_another(self, store: Store) -> None:
        for name in ("a", "b"):
            await store.create(RunId(name), op="o", body=b"same", snapshot=b"")

        chains = {(await store.head(RunId(name))).chain for name in ("a", "b")}

        assert len(chains) == 2

    # -- mailbox -----------------------------------------------------------------------------------

    async def test_signals_wait_in_order_until_they_are_consumed(self, store: Store) -> None:
        await parked(store)

        assert await store.signal(R, signal_id="a b", body=b"1 \xff")
        assert await store.signal(R, signal_id="c", body=b"")

        assert await store.due() == [R]
        box = await store.mailbox(R)
        assert [(s.signal_id, s.number, s.body) for s in box] == [
            ("a b", 1, b"1 \xff"),
            ("c", 2, b""),
        ]
        claim = await store.claim(R, owner="w", nonce="n", term_ms=TERM_MS)
        await store.commit(claim.lease, commit_of(claim, consumed=("a b",)))
        assert [s.signal_id for s in await store.mailbox(R)] == ["c"]
        assert (await store.head(R)).mail == 2

    async def test_a_waiting_signal_is_kept_once(self, store: Store) -> None:
        claim = await started(store)
        await store.signal(R, signal_id="cancel", body=b"1")

        assert not await store.signal(R, signal_id="cancel", body=b"2")

        assert [s.body for s in await store.mailbox(R)] == [b"1"]
        await store.commit(claim.lease, commit_of(claim, consumed=("cancel",)))
        assert await store.signal(R, signal_id="cancel", body=b"3")

    async def test_an_unknown_run_takes_no_signal(self, store: Store) -> None:
        with pytest.raises(RunNotFound):
            await store.signal(R, signal_id="s", body=b"")

    # -- asks --------------------------------------------------------------------------------------

    async def test_a_decision_is_recorded_mailed_and_wakes_the_run(self, store: Store) -> None:
        await parked(store)
        (record,) = await store.asks()
        assert (record.run_id, record.ask, record.ruling) == (R, ask(), None)
        assert await store.due() == []

        ruling = await store.decide(R, "q1", decision())

        assert (ruling.verb, ruling.by, ruling.is_repeat) == ("approve", "Mia Ö.", False)
        assert await store.due() == [R]
        (mail,) = await store.mailbox(R)
        assert (mail.signal_id, mail.body) == ("decision:q1", b"yes \xff")
        assert await store.asks() == await store.asks(R) == []
        assert [r.ruling for r in await store.asks(R, is_open=False)] == [ruling]
        assert [r.ruling for r in await store.asks(is_open=False)] == [ruling]

    async def test_the_same_decision_again_is_the_same(self, store: Store) -> None:
        await parked(store)
        first = await store.decide(R, "q1", decision())

        again = await store.decide(R, "q1", decision())

        assert again == msgspec.structs.replace(first, is_repeat=True)
        assert len(await store.mailbox(R)) == 1

    async def test_the_same_decision_again_is_known_after_the_end(self, store: Store) -> None:
        await parked(store)
        await store.decide(R, "q1", decision())
        claim = await store.claim(R, owner="w", nonce="n", term_ms=TERM_MS)
        await store.commit(claim.lease, commit_of(claim, status="done"))

        assert (await store.decide(R, "q1", decision())).is_repeat

    async def test_of_many_deciders_one_rules(self, new_store: NewStore) -> None:
        stores = [await new_store() for _ in range(4)]
        await parked(stores[0])

        made = await outcomes(
            [stores[n % 4].decide(R, "q1", decision(f"c{n}", by=f"p{n}")) for n in range(60)]
        )

        refused = [one for one in made if isinstance(one, AlreadyDecided)]
        (ruling,) = [one for one in made if not isinstance(one, AlreadyDecided)]
        assert len(refused) == 59
        assert {(r.by, r.verb, r.at_ms) for r in refused} == {(ruling.by, "approve", ruling.at_ms)}
        assert len(await stores[0].mailbox(R)) == 1

    async def test_a_decision_on_something_else_is_stale(self, store: Store) -> None:
        await parked(store)

        with pytest.raises(DecisionStale) as stale:
            await store.decide(R, "q1", decision(digest="d0"))

        assert stale.value.digest == "d1"
        assert await store.mailbox(R) == []

    async def test_a_missing_request_names_the_open_ones(self, store: Store) -> None:
        await parked(store, ask("q1"), ask("q2"))

        with pytest.raises(AskNotFound) as missing:
            await store.decide(R, "q9", decision())

        assert sorted(missing.value.open_ids) == ["q1", "q2"]
        with pytest.raises(RunNotFound):
            await store.decide(RunId("nobody"), "q1", decision())

    async def test_expiry_is_by_the_stores_clock(self, store: Store) -> None:
        await parked(store, ask(expires_ms=await store.now_ms() - 1))

        with pytest.raises(AskExpired):
            await store.decide(R, "q1", decision())

        assert len(await store.asks()) == 1

    async def test_an_expiry_is_taken_from_the_deadline_on_and_once(self, store: Store) -> None:
        expires_ms = await store.now_ms()
        later = ask("q3", expires_ms=expires_ms + 3_600_000)
        await parked(store, ask(expires_ms=expires_ms), ask("q2"), later)
        expiry = decision("e1", verb="expire", by="time", is_expiry=True)
        for early in ("q2", "q3"):
            with pytest.raises(AskNotExpired):
                await store.decide(R, early, expiry)
        assert await store.mailbox(R) == []

        ruling = await store.decide(R, "q1", expiry)

        assert (ruling.verb, ruling.by, ruling.at_ms >= expires_ms) == ("expire", "time", True)
        assert (await store.decide(R, "q1", expiry)).is_repeat
        assert len(await store.mailbox(R)) == 1
        assert await store.due() == [R]

    async def test_who_comes_after_the_deadline_is_told_so_before_it_is_on_record_and_after(
        self, store: Store
    ) -> None:
        deadline = await store.now_ms() - 1
        await parked(store, ask(expires_ms=deadline))

        for _ in range(2):
            with pytest.raises(AskExpired) as expired:
                await store.decide(R, "q1", decision())
            assert expired.value.expires_ms == deadline
            await store.decide(R, "q1", decision("e1", verb="expire", is_expiry=True))

    async def test_an_expiry_after_a_decision_is_told_who_was_first(self, store: Store) -> None:
        expires_ms = await store.now_ms() + 1_000
        await parked(store, ask(expires_ms=expires_ms))
        await store.decide(R, "q1", decision())
        while await store.now_ms() < expires_ms:
            await asyncio.sleep(0.005)

        with pytest.raises(AlreadyDecided) as decided:
            await store.decide(R, "q1", decision("e1", verb="expire", is_expiry=True))

        assert decided.value.verb == "approve"
        assert (await store.decide(R, "q1", decision())).is_repeat

    async def test_a_quorum_needs_distinct_voters_and_mails_each(self, store: Store) -> None:
        await parked(store, ask(quorum=3))

        first = await store.decide(R, "q1", decision("c1", by="Mia", voter="mia"))
        with pytest.raises(AlreadyVoted) as voted:
            await store.decide(R, "q1", decision("c2", by="MIA", voter="mia"))
        second = await store.decide(R, "q1", decision("c3", by="leo é", voter="leo"))

        assert (first.missing, second.missing, voted.value.missing) == (2, 1, 2)
        (record,) = await store.asks()
        assert record.ask == ask(quorum=3)
        assert record.ruling is None
        assert [(v.by, v.verb) for v in record.votes] == [("Mia", "approve"), ("leo é", "approve")]
        again = await store.decide(R, "q1", decision("c1", by="Mia", voter="mia"))
        assert (again.is_repeat, again.by, again.missing) == (True, "Mia", 1)
        last = await store.decide(R, "q1", decision("c4", by="zoe", voter="zoe"))
        assert (last.missing, last.by) == (0, "zoe")
        assert [s.signal_id for s in await store.mailbox(R)] == [
            "vote:1:q1", "vote:2:q1", "decision:q1",
        ]  # fmt: skip
        assert await store.asks() == []
        assert (await store.decide(R, "q1", decision("c3"))).missing == 0
        with pytest.raises(AlreadyDecided, match="zoe"):
            await store.decide(R, "q1", decision("c5", by="kim", voter="kim"))
        (record,) = await store.asks(is_open=False)
        assert [v.by for v in record.votes] == ["Mia", "leo é", "zoe"]

    async def test_a_vote_wakes_the_run_and_leaves_the_request_open(self, store: Store) -> None:
        await parked(store, ask(quorum=2))

        await store.decide(R, "q1", decision())

        assert await store.due() == [R]
        assert [r.ask.ask_id for r in await store.asks()] == ["q1"]

    async def test_a_veto_decides_alone(self, store: Store) -> None:
        await parked(store, ask(quorum=2))
        await store.decide(R, "q1", decision())

        ruling = await store.decide(R, "q1", decision("c2", verb="reject", is_veto=True))

        assert (ruling.verb, ruling.missing) == ("reject", 0)
        assert await store.asks() == []

    async def test_of_many_voters_at_once_exactly_the_quorum_is_counted(
        self, new_store: NewStore
    ) -> None:
        stores = [await new_store() for _ in range(4)]
        await parked(stores[0], ask(quorum=5))

        made = await outcomes(
            [
                stores[n % 4].decide(R, "q1", decision(f"c{n}", by=f"p{n}", voter=f"p{n % 20}"))
                for n in range(60)
            ]
        )

        assert sorted(r.missing for r in made if not isinstance(r, Exception)) == [0, 1, 2, 3, 4]
        (record,) = await stores[0].asks(is_open=False)
        assert len({v.by for v in record.votes}) == 5
        assert len(await stores[0].mailbox(R)) == 5

    async def test_asking_again_forgets_the_votes(self, store: Store) -> None:
        claim = await started(store)
        at = await store.commit(claim.lease, commit_of(claim, opened=(ask(quorum=2),)))
        await store.decide(R, "q1", decision())

        await store.commit(claim.lease, commit_of(at, opened=(ask(quorum=2, digest="d2"),)))

        assert (await store.decide(R, "q1", decision("c2", digest="d2"))).missing == 1

    async def test_comments_and_claims_stay_with_the_request_and_decide_nothing(
        self, store: Store
    ) -> None:
        await parked(store)

        await store.comment(R, "q1", by="Mia Ö.", text="why 40?\n\0")
        await store.comment(R, "q1", by="leo", text="")
        await store.claim_ask(R, "q1", by="Mia Ö.", voter="mia")
        await store.claim_ask(R, "q1", by="MIA", voter="mia")
        with pytest.raises(AskClaimed, match="MIA"):
            await store.claim_ask(R, "q1", by="leo")
        with pytest.raises(AskClaimed):
            await store.release_ask(R, "q1", by="leo")

        (record,) = await store.asks()
        assert [(c.by, c.text) for c in record.comments] == [
            ("Mia Ö.", "why 40?\n\0"), ("leo", ""),
        ]  # fmt: skip
        assert (record.claimed_by, record.claimed_ms > 0) == ("MIA", True)
        assert [r.comments for r in await store.asks(R)] == [record.comments]
        assert await store.due() == []
        await store.release_ask(R, "q1", by="mia", voter="mia")
        await store.release_ask(R, "q1", by="leo")
        assert (await store.asks())[0].claimed_by == ""
        assert await store.decide(R, "q1", decision())
        with pytest.raises(AlreadyDecided, match="approve by Mia"):
            await store.comment(R, "q1", by="leo", text="late")

    async def test_a_comment_needs_a_request_and_has_a_cap(self, store: Store) -> None:
        await parked(store)
        with pytest.raises(AskNotFound, match="q1"):
            await store.comment(R, "q9", by="mia", text="?")
        with pytest.raises(RunNotFound):
            await store.claim_ask(RunId("nobody"), "q1", by="mia")
        for n in range(100):
            await store.comment(R, "q1", by="mia", text=str(n))

        with pytest.raises(StoreUsageError, match="comments"):
            await store.comment(R, "q1", by="mia", text="one too many")

    async def test_a_locked_verb_waits_for_the_stores_clock(self, store: Store) -> None:
        unlock_ms = await store.now_ms() + 300
        await parked(store, ask(unlock_ms=unlock_ms), ask("q2", unlock_ms=unlock_ms))

        with pytest.raises(AskLocked) as locked:
            await store.decide(R, "q1", decision(needs_unlock=True))

        assert locked.value.unlock_ms == unlock_ms
        assert await store.decide(R, "q2", decision(verb="reject"))
        while await store.now_ms() < unlock_ms:
            await asyncio.sleep(0.02)
        assert await store.decide(R, "q1", decision(needs_unlock=True))

    async def test_a_withdrawn_request_is_gone(self, store: Store) -> None:
        claim = await started(store)
        opened = await store.commit(claim.lease, commit_of(claim, opened=(ask("q1"), ask("q2"))))

        await store.commit(claim.lease, commit_of(opened, withdrawn=("q1",)))

        assert [r.ask.ask_id for r in await store.asks()] == ["q2"]
        with pytest.raises(AskNotFound):
            await store.decide(R, "q1", decision())

    async def test_asking_again_replaces_an_open_request_and_no_decided_one(
        self, store: Store
    ) -> None:
        claim = await started(store)
        at = await store.commit(claim.lease, commit_of(claim, opened=(ask("q1"), ask("q2"))))
        ruling = await store.decide(R, "q2", decision())

        changed = (ask("q1", digest="d2"), ask("q2", digest="d2"))
        await store.commit(claim.lease, commit_of(at, opened=changed))

        with pytest.raises(DecisionStale):
            await store.decide(R, "q1", decision())
        assert (await store.decide(R, "q2", decision())).at_ms == ruling.at_ms
        assert [r.ask.ask_id for r in await store.asks()] == ["q1"]

    async def test_a_decision_on_a_held_run_is_found_when_it_parks(self, store: Store) -> None:
        claim = await started(store)
        at = await store.commit(claim.lease, commit_of(claim, opened=(ask(),)))
        await store.decide(R, "q1", decision())
        assert await store.due() == []
        assert (await store.renew([claim.lease]))[R].mail == 1

        await store.commit(claim.lease, commit_of(at, status="waiting", release=True))

        assert await store.due() == [R]

    # -- outbox ------------------------------------------------------------------------------------

    async def test_a_notice_comes_with_its_commit_and_not_without(self, store: Store) -> None:
        claim = await started(store)
        assert await store.take_notices() == []

        fenced = msgspec.structs.replace(claim.lease, nonce="another")
        with pytest.raises(LeaseLost):
            await store.commit(fenced, commit_of(claim, outbox=(notice(),)))
        assert await store.take_notices() == []

        done = await store.commit(claim.lease, commit_of(claim, outbox=(notice(), notice("n2"))))
        taken = await store.take_notices()
        assert {n.notice_id for n in taken} == {"n1", "n2"}
        wanted = notice(taken[0].notice_id, at_ms=done.server_ms, stored=taken[0].stored)
        assert taken[0] == wanted

    async def test_a_notice_waits_for_its_time(self, store: Store) -> None:
        claim = await started(store)
        soon = await store.now_ms() + SHORT_MS
        later = notice("later", at_ms=soon + TERM_MS)

        await store.commit(claim.lease, commit_of(claim, outbox=(later, notice(at_ms=soon))))

        taken: Sequence[Notice] = []
        while not taken:
            assert await store.now_ms() < soon + TERM_MS / 2
            taken = await store.take_notices()
        assert [n.notice_id for n in taken] == ["n1"]
        assert await store.now_ms() >= soon

    async def test_a_taken_notice_is_given_again_if_nobody_settles_it(self, store: Store) -> None:
        claim = await started(store)
        await store.commit(claim.lease, commit_of(claim, outbox=(notice(),)))
        (first,) = await store.take_notices(hold_ms=TERM_MS)
        assert await store.take_notices() == []  # somebody is at it

        claim = await started(store, RunId("run-2"))
        other = notice("n2", run_id=RunId("run-2"))
        await store.commit(claim.lease, commit_of(claim, outbox=(other,)))
        (again,) = await store.take_notices(hold_ms=1)
        while not (found := await store.take_notices(hold_ms=TERM_MS)):
            pass
        assert [n.notice_id for n in found] == [again.notice_id] == ["n2"]
        assert first.notice_id == "n1"

    async def test_a_settled_notice_is_gone_and_what_replaces_it_comes(self, store: Store) -> None:
        claim = await started(store)
        await store.commit(claim.lease, commit_of(claim, outbox=(notice(),)))
        (taken,) = await store.take_notices(hold_ms=1)

        other = msgspec.structs.replace(taken, channel="ops", tries=1)
        assert await store.settle_notice(taken, again=[(other, 0)])
        assert not await store.settle_notice(taken, again=[(other, 0)])

        (found,) = await store.take_notices(hold_ms=TERM_MS)
        assert (found.notice_id, found.channel, found.tries) == ("n1", "ops", 1)
        assert found.body == notice().body
        assert await store.settle_notice(found)
        assert not await store.settle_notice(found)

    async def test_two_tellers_take_each_notice_once(
        self, store: Store, new_store: NewStore
    ) -> None:
        claim = await started(store)
        many = tuple(notice(f"n{n}") for n in range(40))
        await store.commit(claim.lease, commit_of(claim, outbox=many))
        other = await new_store()

        taken = [
            *await store.take_notices(limit=15),
            *await other.take_notices(limit=15),
            *await store.take_notices(limit=15),
        ]

        assert sorted(n.notice_id for n in taken) == sorted(n.notice_id for n in many)

    async def test_a_notice_needs_names_without_spaces(self, store: Store) -> None:
        claim = await started(store)

        for bad in (notice(""), notice("a b"), notice(channel="a\nb")):
            with pytest.raises(StoreUsageError):
                await store.commit(claim.lease, commit_of(claim, outbox=(bad,)))

    # -- lists -------------------------------------------------------------------------------------

    async def test_runs_are_listed_by_status_newest_first(self, store: Store) -> None:
        names = [RunId(f"r{n}") for n in range(4)]
        for name in names:
            await store.create(name, op="o", body=b"", snapshot=b"")
            stamp = await store.now_ms()
            while await store.now_ms() == stamp:
                await asyncio.sleep(0.001)
        claim = await store.claim(names[1], owner="w", nonce="n", term_ms=TERM_MS)
        await store.commit(claim.lease, commit_of(claim, status="done"))
        await store.claim(names[2], owner="w", nonce="n2", term_ms=TERM_MS)

        assert [h.run_id for h in await store.runs()] == names[::-1]
        assert [h.run_id for h in await store.runs(limit=2)] == [names[3], names[2]]
        assert [h.run_id for h in await store.runs(status="ready")] == [names[3], names[0]]
        assert [h.run_id for h in await store.runs(status="done")] == [names[1]]
        assert [h.run_id for h in await store.runs(status="running")] == [names[2]]
        assert await store.runs(status="error") == []

    async def test_the_longest_overdue_come_first(self, store: Store) -> None:
        for name, due_ms in (("a", 30), ("b", 10), ("c", 20)):
            claim = await started(store, RunId(name))
            await store.release(claim.lease, due_ms=due_ms)

        assert await store.due() == ["b", "c", "a"]
        assert await store.due(limit=2) == ["b", "c"]

    # -- beside the journal ------------------------------------------------------------------------

    async def test_orphan_reports_are_kept_once_and_capped(self, store: Store) -> None:
        for n in range(40):
            await store.report_orphan(R, b"%d" % n)
        await store.report_orphan(R, b"39")

        assert await store.orphans(R) == [b"%d" % n for n in range(8, 40)]

    async def test_blobs_are_kept_by_digest(self, store: Store) -> None:
        digest = await store.put_blob(R, b"\x00\xff")

        assert await store.put_blob(R, b"\x00\xff") == digest
        assert await store.get_blob(R, digest) == b"\x00\xff"
        assert await store.get_blob(R, "0" * 64) is None

    async def test_blobs_may_come_before_their_run_and_end_if_it_never_does(
        self, new_store: NewStore
    ) -> None:
        store: Any = await new_store()

        async def left_ms() -> int:
            left: int = await store._line.call("PTTL", store._of(R).blobs)
            return left

        early = await store.put_blob(R, b"early")
        before = await left_ms()
        await store.create(R, op="o", body=b"b", snapshot=b"s")
        after = await left_ms()
        late = await store.put_blob(R, b"late")

        assert 0 < before <= store.settings.early_blobs_s * 1000
        assert (after, await left_ms()) == (-1, -1)
        assert [await store.get_blob(R, name) for name in (early, late)] == [b"early", b"late"]

    async def test_live_payloads_come_as_they_are_published(self, new_store: NewStore) -> None:
        writer, reader = await new_store(), await new_store()
        await writer.publish(R, [b"before"])
        heard: list[bytes] = []

        async def listen() -> None:
            async for _, payload in reader.live(R):
                heard.append(payload)
                if payload == b"3":
                    return

        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            listener = tasks.create_task(listen())
            # Published until heard: nothing tells from outside when the listener began.
            while not heard:
                await writer.publish(R, [b"1"])
                await asyncio.sleep(0.01)
            await writer.publish(R, [b"2", b"3"])
            await listener

        assert b"before" not in heard
        assert heard[-2:] == [b"2", b"3"]

    async def test_live_goes_on_after_an_id(self, store: Store) -> None:
        await store.publish(R, [b"1", b"2", b"3"])
        live = aiter(store.live(R, after="0-0"))
        first_id, _ = await anext(live)

        async with asyncio.timeout(10):
            _, payload = await anext(aiter(store.live(R, after=first_id)))

        assert payload == b"2"

    # -- heartbeat ---------------------------------------------------------------------------------

    async def test_a_heartbeat_keeps_a_lease(self, store: Store) -> None:
        claim = await started(store, term_ms=800)
        begun = monotonic()

        async with Heartbeat(store) as heartbeat, heartbeat.held(claim.lease):
            while monotonic() < begun + 1.2:
                assert heartbeat.may_start(claim.lease)
                with pytest.raises(RunBusy):
                    await store.claim(R, owner="w2", nonce="n2", term_ms=TERM_MS)
                await asyncio.sleep(0.02)

        assert not heartbeat.may_start(claim.lease)

    async def test_a_heartbeat_cancels_the_work_of_a_lost_lease(self, store: Store) -> None:
        claim = await started(store, term_ms=3000)
        stolen = msgspec.structs.replace(claim.lease, term_ms=1)

        async with Heartbeat(store, interval_s=0.02) as heartbeat:
            with pytest.raises(LeaseLost):  # noqa: PT012
                async with heartbeat.held(claim.lease, since=monotonic()):
                    await store.renew([stolen])
                    await taken_over(store)
                    await asyncio.sleep(30)
            assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    async def test_a_heartbeat_tells_of_new_mail(self, store: Store) -> None:
        claim = await started(store)
        counts: asyncio.Queue[int] = asyncio.Queue()

        async with (
            Heartbeat(store, interval_s=0.01) as heartbeat,
            heartbeat.held(claim.lease, on_mail=counts.put_nowait),
        ):
            await store.signal(R, signal_id="s", body=b"")
            async with asyncio.timeout(5):
                assert await counts.get() == 1

    async def test_the_server_tells_facts(self, store: Store) -> None:
        facts = await store.facts()

        assert facts["partitions"] >= 1
