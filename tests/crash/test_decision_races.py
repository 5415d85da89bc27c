"""A thousand races for one decision, between real processes on a real store: one outcome each."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from checkpoints import open_store
from checkpoints.embedded import EmbeddedServer
from checkpoints.errors import AlreadyDecided, AskExpired, AskNotExpired
from checkpoints.model import Ask, Commit, Decision, RunId
from checkpoints.store import Store
from fsm_agent.testing.crash import fork, wait_for

RACES = 1000
SPACE_MS = 5  # between two deadlines: enough for all processes to come along
RUN = RunId("races")
Outcome = tuple[str, str, int]  # what a process was told: verb, by, when


@pytest.fixture
def store_url(tmp_path: Path) -> Iterator[str]:
    server = EmbeddedServer(tmp_path / "store")
    server.enter()
    yield f"embedded:{tmp_path / 'store'}"
    server.leave()


def ask_id(number: int) -> str:
    return f"a{number}"


async def open_asks(store: Store, deadlines: list[int]) -> None:
    """A parked run with a request for each deadline (0: none)."""
    await store.create(RUN, op="o", body=b"1", snapshot=b"")
    claim = await store.claim(RUN, owner="w", nonce="n", term_ms=60_000)
    asks = (
        Ask(ask_id=ask_id(n), digest="d", body=b"?", expires_ms=deadline)
        for n, deadline in enumerate(deadlines)
    )
    commit = Commit(
        op="p", expected_seq=1, previous_chain=claim.head.chain, bodies=(b"2",),
        status="waiting", snapshot=b"", release=True, opened=tuple(asks),
    )  # fmt: skip
    await store.commit(claim.lease, commit)


async def told(store: Store, number: int, decision: Decision) -> Outcome | None:
    """What came of a decision, as this process was told. None: too early."""
    try:
        ruling = await store.decide(RUN, ask_id(number), decision)
    except AlreadyDecided as error:
        return error.verb, error.by, error.at_ms
    except AskExpired:
        return "expire", "time", -1
    except AskNotExpired:
        return None
    return ruling.verb, ruling.by, ruling.at_ms


def in_processes(
    folder: Path, bodies: list[Callable[[], Awaitable[list[Outcome | None]]]]
) -> list[list[Outcome]]:
    """Run the bodies in processes of their own; what each was told, race by race."""

    def child(number: int) -> Callable[[], None]:
        def run() -> None:
            heard = asyncio.run(bodies[number]())  # type: ignore[arg-type]
            (folder / f"heard-{number}").write_text(json.dumps(heard))

        return run

    pids = [fork(child(number)) for number in range(len(bodies))]
    assert [wait_for(pid) for pid in pids] == [0] * len(bodies)
    return [json.loads((folder / f"heard-{n}").read_text()) for n in range(len(bodies))]


async def rulings_of(url: str) -> dict[str, Outcome]:
    store = await open_store(url)
    records = await store.asks(RUN, is_open=False)
    mail = Counter(signal.signal_id for signal in await store.mailbox(RUN))
    await store.aclose()
    assert mail == {f"decision:{ask_id(n)}": 1 for n in range(RACES)}
    return {r.ask.ask_id: (r.ruling.verb, r.ruling.by, r.ruling.at_ms) for r in records if r.ruling}


def test_a_thousand_races_of_two_approvers_have_one_winner_each(
    tmp_path: Path, store_url: str
) -> None:
    async def prepare() -> int:
        store = await open_store(store_url)
        await open_asks(store, [0] * RACES)
        now_ms = await store.now_ms()
        await store.aclose()
        return now_ms

    begin_ms = asyncio.run(prepare()) + 300

    def approver(name: str) -> Callable[[], Awaitable[list[Outcome | None]]]:
        async def run() -> list[Outcome | None]:
            store = await open_store(store_url)
            await _wait_until(begin_ms)
            heard = []
            for n in range(RACES):
                verb = "approve" if name == "mia" else "reject"
                made = Decision(
                    decision_id=f"{name}{n}", verb=verb, by=name, digest="d", body=name.encode()
                )
                heard.append(await told(store, n, made))
            await store.aclose()
            return heard

        return run

    heard = in_processes(tmp_path, [approver("mia"), approver("leo")])

    rulings = asyncio.run(rulings_of(store_url))
    for n in range(RACES):
        assert tuple(heard[0][n]) == tuple(heard[1][n]) == rulings[ask_id(n)]
    assert {by for _, by, _ in rulings.values()} <= {"mia", "leo"}


def test_a_thousand_races_of_an_approval_with_its_deadline_have_one_outcome_each(
    tmp_path: Path, store_url: str
) -> None:
    async def prepare() -> list[int]:
        store = await open_store(store_url)
        first_ms = await store.now_ms() + 3_000  # until all processes are there
        deadlines = [first_ms + SPACE_MS * n for n in range(RACES)]
        await open_asks(store, deadlines)
        await store.aclose()
        return deadlines

    deadlines = asyncio.run(prepare())

    async def approve() -> list[Outcome | None]:
        rng, store = random.Random(1), await open_store(store_url)

        async def race(number: int, deadline: int, ahead_ms: int) -> Outcome | None:
            await _wait_until(deadline - ahead_ms)
            made = Decision(
                decision_id=f"p{number}", verb="approve", by="mia", digest="d", body=b"yes"
            )
            return await told(store, number, made)

        # Most in the deadline's own milliseconds; some well before it, for a machine that is busy.
        ahead = [rng.choice((0, 0, 1, 1, 2, 20, 200, 1000)) for _ in deadlines]
        heard = await asyncio.gather(*map(race, range(RACES), deadlines, ahead))
        await store.aclose()
        return heard

    async def expire() -> list[Outcome | None]:
        store = await open_store(store_url)

        async def race(number: int, deadline: int) -> Outcome | None:
            await _wait_until(deadline - 1)
            made = Decision(
                decision_id=f"expiry{number}", verb="expire", by="time", digest="d", body=b"no",
                is_expiry=True,
            )  # fmt: skip
            while (outcome := await told(store, number, made)) is None:
                await asyncio.sleep(0)
            return outcome

        heard = await asyncio.gather(*map(race, range(RACES), deadlines))
        await store.aclose()
        return heard

    person, *workers = in_processes(tmp_path, [approve, expire, expire])

    rulings = asyncio.run(rulings_of(store_url))
    for n, deadline in enumerate(deadlines):
        verb, by, at_ms = rulings[ask_id(n)]
        assert (
            {(person[n][0], person[n][1])} == {(w[n][0], w[n][1]) for w in workers} == {(verb, by)}
        )
        assert (at_ms >= deadline) is (verb == "expire")
    counts = Counter(verb for verb, *_ in rulings.values())
    assert min(counts["approve"], counts["expire"]) > 20, counts


async def _wait_until(at_ms: int) -> None:
    """The store is on this machine, so its clock is ours."""
    while (left_s := at_ms / 1000 - time.time()) > 0:
        await asyncio.sleep(left_s)
