"""Contract tests of what a store promises to those who share out work (see ..schedule)."""

# ruff: noqa: ASYNC110  what is waited for happens in a server, which has no event to await

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from ..errors import BadRunId, RunBusy, StoreDiverged, StoreUsageError, ThreadBusy
from ..model import Commit, Lease, RunId
from ..schedule import Limit, Turn
from ..store import Store
from .contract import NewStore

TERM_MS = 60_000
_names = count()


def name(word: str) -> str:
    """A name that no other test has: groups and threads may outlive one."""
    return f"{word}-{next(_names)}"


async def begin(store: Store, run_id: str) -> RunId:
    await store.create(RunId(run_id), op="op", body=b"body", snapshot=b"snapshot")
    return RunId(run_id)


async def claim(store: Store, run_id: RunId, *, term_ms: int = TERM_MS) -> Lease:
    return (await store.claim(run_id, owner="w", nonce=name("n"), term_ms=term_ms)).lease


async def end(store: Store, run_id: RunId) -> None:
    claimed = await store.claim(run_id, owner="w", nonce=name("n"), term_ms=TERM_MS)
    commit = Commit(
        op=name("op"),
        expected_seq=claimed.head.seq,
        previous_chain=claimed.head.chain,
        bodies=(b"end",),
        status="done",
        snapshot=b"",
    )
    await store.commit(claimed.lease, commit)


class ScheduleContract:
    """`new_store` is that of StoreContract."""

    @pytest.fixture
    def new_store(self) -> NewStore:
        raise NotImplementedError

    # -- what is due --------------------------------------------------------------------------

    async def test_the_agenda_holds_what_is_due_and_says_when_there_is_more(
        self, new_store: NewStore
    ) -> None:
        store = await new_store()
        first, second = await begin(store, "a-1"), await begin(store, "a-2")
        held, over = await begin(store, "a-3"), await begin(store, "a-4")
        lease = await claim(store, held)
        await end(store, over)

        agenda = await store.agenda()

        assert {run.run_id for run in agenda.runs} == {first, second}
        assert all(run.due_ms <= agenda.now_ms for run in agenda.runs)
        assert agenda.next_ms is not None
        assert 0 < agenda.next_ms - agenda.now_ms <= lease.term_ms

    async def test_a_lease_that_ran_out_is_seen_however_long_the_backlog_is(
        self, new_store: NewStore
    ) -> None:
        store = await new_store()
        for number in range(40):
            await begin(store, f"b-{number}")
        lost = await begin(store, "lost")
        await claim(store, lost, term_ms=1)
        await _until_due(store, lost)

        agenda = await store.agenda(limit=1)

        assert lost in {run.run_id for run in agenda.runs}

    async def test_a_wake_makes_a_parked_run_due_and_changes_no_other(
        self, new_store: NewStore
    ) -> None:
        store = await new_store()
        parked, held, over = [await begin(store, f"w-{n}") for n in range(3)]
        await store.release(await claim(store, parked), due_ms=None)
        lease = await claim(store, held)
        await end(store, over)

        for run_id in (parked, held, over, RunId("nobody")):
            await store.wake(run_id)

        assert [run.run_id for run in (await store.agenda()).runs] == [parked]
        assert (await store.renew([lease]))[held].is_held

    async def test_a_due_index_that_somebody_wrote_over_hides_no_other(
        self, new_store: NewStore
    ) -> None:
        store: Any = await new_store()
        for number in range(40):
            await begin(store, f"f-{number}")
        parts = store._all_keys().partitions
        before = {run.run_id for run in (await store.agenda()).runs}
        lost = {run_id for run_id in before if store._of(run_id).partition == parts[0]}
        await store._line.call("DEL", parts[0].due)
        await store._line.call("SET", parts[0].due, "somebody else's")

        if len(parts) == 1:
            for look in (store.agenda, store.due):
                with pytest.raises(StoreDiverged, match="not this program's"):
                    await look()
        else:
            assert {run.run_id for run in (await store.agenda()).runs} == before - lost
            assert set(await store.due(limit=40)) == before - lost
        await store._line.call("DEL", parts[0].due)
        assert {run.run_id for run in (await store.agenda()).runs} == before - lost

    async def test_what_is_none_of_ours_in_a_due_index_is_no_error(
        self, new_store: NewStore
    ) -> None:
        store: Any = await new_store()
        ours = await begin(store, "ours")
        due = store._of(ours).partition.due
        for member, score in ((b"\xff/..", "-inf"), (b"never", "inf")):
            await store._line.call("ZADD", due, score, member)

        agenda = await store.agenda()

        assert ours in {run.run_id for run in agenda.runs}
        assert agenda.next_ms is not None
        assert agenda.next_ms > agenda.now_ms

    # -- limits and places --------------------------------------------------------------------

    async def test_limits_are_kept_for_all_and_taken_away(self, new_store: NewStore) -> None:
        one, other = await new_store(), await new_store()
        group, second = name("tenant:a b/*"), name("agent:x")

        await one.set_limit(group, Limit(at_once=3))
        await one.set_limit(second, Limit(per_minute=7))
        both = await other.limits()
        await other.set_limit(group, Limit())

        assert (both[group], both[second]) == (Limit(at_once=3), Limit(per_minute=7))
        assert group not in await one.limits()

    @pytest.mark.parametrize("limit", [Limit(at_once=0), Limit(per_minute=-1)])
    async def test_a_limit_below_one_is_refused(self, new_store: NewStore, limit: Limit) -> None:
        store = await new_store()

        with pytest.raises(StoreUsageError, match="is not a limit"):
            await store.set_limit("agent:x", limit)

    async def test_no_more_hold_a_place_than_there_are_however_many_ask_at_once(
        self, new_store: NewStore
    ) -> None:
        stores = [await new_store() for _ in range(3)]
        group = name("g")

        waits = await asyncio.gather(
            *(take(stores[n % 3], group, f"r-{n}", owner=f"o-{n}") for n in range(12))
        )

        assert sorted(waits)[:2] == [0, 0]
        assert all(0 < wait <= TERM_MS for wait in sorted(waits)[2:])

    async def test_a_place_is_given_back_kept_by_its_repeat_and_ends_by_itself(
        self, new_store: NewStore
    ) -> None:
        store = await new_store()
        group = name("g")
        assert await take(store, group, "a", at_once=1) == 0
        assert await take(store, group, "a", at_once=1) == 0
        assert await take(store, group, "b", at_once=1) > 0

        await store.free_slot(group, RunId("a"), owner="o")
        assert await take(store, group, "b", at_once=1, term_ms=1) == 0
        async with asyncio.timeout(10):
            while await take(store, group, "c", at_once=1) > 0:
                await asyncio.sleep(0.002)

    async def test_another_owner_of_the_same_run_frees_only_its_own_place(
        self, new_store: NewStore
    ) -> None:
        store = await new_store()
        group = name("g")
        await take(store, group, "a", at_once=2, owner="dead")
        await take(store, group, "a", at_once=2, owner="new")

        await store.free_slot(group, RunId("a"), owner="dead")

        assert await take(store, group, "b", at_once=2) == 0
        assert await take(store, group, "c", at_once=2) > 0

    async def test_owners_of_the_same_run_share_a_place_until_the_last_has_left(
        self, new_store: NewStore
    ) -> None:
        store = await new_store()
        group = name("g")

        shared = [await take(store, group, "a", at_once=2, owner=who) for who in ("o", "p:1", "q")]
        second = await take(store, group, "b", at_once=2)
        third = await take(store, group, "c", at_once=2)
        for who in ("p:1", "q", "q"):
            await store.free_slot(group, RunId("a"), owner=who)
        still = await take(store, group, "c", at_once=2)
        await store.free_slot(group, RunId("a"), owner="o")
        freed = await take(store, group, "c", at_once=2)

        assert [*shared, second, freed] == [0] * 5
        assert min(third, still) > 0

    async def test_a_place_is_shared_in_a_group_that_is_more_than_full(
        self, new_store: NewStore
    ) -> None:
        store = await new_store()
        group = name("g")
        for run_id in "abc":
            await take(store, group, run_id, at_once=3, owner="dead")

        assert await take(store, group, "b", at_once=1, owner="new") == 0
        assert await take(store, group, "d", at_once=1, owner="new") > 0

    async def test_a_run_id_that_is_none_gets_no_place(self, new_store: NewStore) -> None:
        store = await new_store()

        with pytest.raises(BadRunId):
            await take(store, name("g"), "a:b")

    async def test_only_so_many_begin_in_a_minute_and_each_counts_once(
        self, new_store: NewStore
    ) -> None:
        store = await new_store()
        group = name("g")

        first = [await take(store, group, "a", rate=2, begins=True) for _ in range(3)]
        await store.free_slot(group, RunId("a"), owner="o")
        again = await take(store, group, "a", rate=2, begins=True)
        second = await take(store, group, "b", rate=2, begins=True)
        third = await take(store, group, "c", rate=2, begins=True)
        later = await take(store, group, "c", rate=2, begins=False)

        assert [*first, again, second] == [0] * 5
        assert 50_000 < third <= 60_000
        assert later == 0  # goes on, and does not begin

    async def test_a_beginning_that_is_withdrawn_does_not_count(self, new_store: NewStore) -> None:
        store = await new_store()
        group = name("g")
        await take(store, group, "a", rate=1, begins=True)

        for _ in range(2):  # a repeat is harmless
            await store.withdraw_slot(group, RunId("a"), owner="o")

        assert await take(store, group, "b", rate=1, begins=True) == 0
        assert await take(store, group, "a", rate=1, begins=True) > 0

    @pytest.mark.parametrize("mistaken", ["first", "second"])
    async def test_who_began_a_run_keeps_its_beginning_when_another_withdraws(
        self, new_store: NewStore, mistaken: str
    ) -> None:
        store = await new_store()
        group = name("g")
        both = [
            await take(store, group, "a", rate=1, begins=True, owner=who)
            for who in ("first", "second")
        ]

        await store.withdraw_slot(group, RunId("a"), owner=mistaken)

        assert both == [0, 0]
        assert await take(store, group, "b", rate=1, begins=True) > 50_000

    async def test_a_withdrawn_place_is_free(self, new_store: NewStore) -> None:
        store = await new_store()
        group = name("g")
        await take(store, group, "a", at_once=1, begins=True)

        await store.withdraw_slot(group, RunId("a"), owner="o")

        assert await take(store, group, "b", at_once=1) == 0

    # -- threads ------------------------------------------------------------------------------

    async def test_one_run_of_a_thread_is_active_however_many_join_at_once(
        self, new_store: NewStore
    ) -> None:
        stores = [await new_store() for _ in range(3)]
        thread = name("t")

        turns = await asyncio.gather(
            *(stores[n % 3].join_thread(thread, RunId(f"r-{n}"), "queue") for n in range(9))
        )

        (active,) = [turn.active for turn in turns if turn.is_active]
        assert {turn.active for turn in turns} == {active}
        assert await stores[0].active_in(thread) == active

    async def test_runs_that_wait_become_active_in_the_order_they_came(
        self, new_store: NewStore
    ) -> None:
        store = await new_store()
        thread = name("t")
        for run_id in "abc":
            await store.join_thread(thread, RunId(run_id), "queue")
            await store.join_thread(thread, RunId(run_id), "queue")

        order = [await store.leave_thread(thread, RunId(run_id)) for run_id in "aabc"]

        assert order == ["b", "b", "c", None]
        assert await store.active_in(thread) is None

    async def test_a_refusal_stays_one_until_the_run_has_left(self, new_store: NewStore) -> None:
        store = await new_store()
        thread = name("t")
        await store.join_thread(thread, RunId("a"), "queue")
        with pytest.raises(ThreadBusy) as refused:
            await store.join_thread(thread, RunId("b"), "reject")
        await store.leave_thread(thread, RunId("a"))

        with pytest.raises(ThreadBusy):
            await store.join_thread(thread, RunId("b"), "reject")
        await store.leave_thread(thread, RunId("b"))

        assert refused.value.active == "a"
        assert (await store.join_thread(thread, RunId("b"), "reject")).is_active

    async def test_the_newest_interrupter_is_next_and_ends_those_before_it(
        self, new_store: NewStore
    ) -> None:
        store = await new_store()
        thread = name("t")
        await store.join_thread(thread, RunId("a"), "queue")
        await store.join_thread(thread, RunId("waits"), "queue")
        first = await store.join_thread(thread, RunId("b"), "interrupt")
        second = await store.join_thread(thread, RunId("c"), "interrupt")

        assert first == Turn(False, RunId("a"), (RunId("a"),))
        assert second == Turn(False, RunId("a"), (RunId("a"), RunId("b")))
        assert await store.leave_thread(thread, RunId("a")) == "c"
        # Who came later is not told to end by who asks again.
        assert await store.join_thread(thread, RunId("b"), "interrupt") == Turn(False, RunId("c"))
        assert await store.leave_thread(thread, RunId("c")) == "b"
        assert await store.leave_thread(thread, RunId("b")) == "waits"

    @pytest.mark.parametrize("thread", ["", "x" * 201])
    async def test_a_thread_without_a_proper_name_is_refused(
        self, new_store: NewStore, thread: str
    ) -> None:
        store = await new_store()

        with pytest.raises(StoreUsageError, match="a thread has a name"):
            await store.join_thread(thread, RunId("a"), "queue")

    # -- another client -----------------------------------------------------------------------

    async def test_a_twin_serves_another_thread_and_closes_for_itself(
        self, new_store: NewStore
    ) -> None:
        store = await new_store()
        run_id = await begin(store, "twin")
        lease = await claim(store, run_id)

        def elsewhere() -> bool:
            async def renew() -> bool:
                twin = store.twin()
                try:
                    return (await twin.renew([lease]))[run_id].is_held
                finally:
                    await twin.aclose()

            return asyncio.run(renew())

        assert await asyncio.to_thread(elsewhere)
        with pytest.raises(RunBusy):
            await claim(store, run_id)


class WakeContract:
    """For stores that can be heard."""

    @pytest.fixture
    def new_store(self) -> NewStore:
        raise NotImplementedError

    async def test_whoever_listens_hears_of_runs_that_become_due(self, new_store: NewStore) -> None:
        store, other = await new_store(), await new_store()
        heard: list[str] = []

        async def listen() -> None:
            async for run_id in other.wakes():
                heard.append(run_id)

        listening = asyncio.create_task(listen())
        try:
            await _heard(store, heard, "ready")
            run_id = await begin(store, "h-1")
            await _until(lambda: "h-1" in heard)
            heard.clear()
            await store.release(await claim(store, run_id), due_ms=None)
            await store.signal(run_id, signal_id="s", body=b"said")
            await _until(lambda: heard == ["h-1"])
            lease = await claim(store, run_id)
            await store.release(lease, due_ms=await store.now_ms())
            await _until(lambda: heard == ["h-1", "h-1"])
        finally:
            listening.cancel()
            await asyncio.wait([listening])


async def take(
    store: Store,
    group: str,
    run_id: str,
    *,
    at_once: int | None = 2,
    rate: int | None = None,
    owner: str = "o",
    term_ms: int = TERM_MS,
    begins: bool = False,
) -> int:
    limit = Limit(at_once=None if rate else at_once, per_minute=rate)
    return await store.take_slot(
        group, RunId(run_id), limit, owner=owner, term_ms=term_ms, begins=begins
    )


async def _heard(store: Store, heard: list[str], word: str) -> None:
    """Wait until the listener listens: what was said before that is lost."""
    async with asyncio.timeout(10):
        for number in count():
            run_id = await begin(store, f"{word}-{number}")
            await end(store, run_id)
            if heard:
                return
            await asyncio.sleep(0.01)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def _until_due(store: Store, run_id: RunId) -> None:
    async with asyncio.timeout(10):
        while True:
            head = await store.head(run_id)
            if head.due_ms is not None and head.due_ms <= await store.now_ms():
                return
            await asyncio.sleep(0.002)
