"""Several real processes at one run: one decision, one owner, and a sleeper that wakes too late."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from checkpoints import open_store
from checkpoints.embedded import EmbeddedServer
from checkpoints.errors import AlreadyDecided, LeaseLost, RunBusy
from fsm_agent import Agent, Runtime, tool
from fsm_agent.engine.deps import EngineSettings
from fsm_agent.testing.crash import Ledger, fork, wait_for
from tests.crash.desk import DeskModel, make_desk

WON, REFUSED, BUSY, FENCED = 10, 11, 12, 13
LEASE_S = 0.4


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"embedded:{tmp_path / 'store'}"


def until(holds: Callable[[], bool], *, limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "the condition did not come true in time"
        os.sched_yield()


def at_once(count: int, body: Callable[[int], Awaitable[int]], gate: Path) -> Counter[int]:
    """Run `body` in `count` processes that all wait for one gate; how often each code came back."""

    def child(number: int) -> Callable[[], None]:
        def run() -> None:
            until(gate.exists)
            raise SystemExit(asyncio.run(body(number)))

        return run

    pids = [fork(child(number)) for number in range(count)]
    gate.touch()
    return Counter(wait_for(pid) for pid in pids)


async def waiting_run(url: str, ledger: Ledger) -> str:
    """A run of the desk that waits for its refund to be approved."""
    async with Runtime.open(url, model=DeskModel()) as runtime:
        result = await runtime.run(make_desk(ledger), "Refund order A7.")
        assert result.status == "waiting"
        return result.run_id


def test_four_processes_answer_one_approval_and_one_counts(tmp_path: Path, store_url: str) -> None:
    ledger = Ledger(tmp_path / "ledger")
    run_id = asyncio.run(waiting_run(store_url, ledger))

    async def answer(number: int) -> int:
        async with Runtime.open(store_url, model=DeskModel()) as runtime:
            (request,) = await runtime.requests(run_id, is_open=False)
            try:
                await runtime.decide(run_id, request.ask_id, "approve", by=f"person {number}")
            except AlreadyDecided as refused:
                assert refused.by.startswith("person ")
                assert refused.verb == "approve"
                return REFUSED
            await runtime.work(run_id, make_desk(ledger))
            return WON

    codes = at_once(4, answer, tmp_path / "gate")

    assert codes == {WON: 1, REFUSED: 3}
    assert ledger.raw("refund") == 1


def test_four_processes_claim_one_run_and_one_owns_it(tmp_path: Path, store_url: str) -> None:
    async def start() -> str:
        async with Runtime.open(store_url, model=DeskModel()) as runtime:
            return await runtime.start(make_desk(Ledger(tmp_path / "ledger")), "Refund order A7.")

    run_id = asyncio.run(start())

    async def claim(number: int) -> int:
        store = await open_store(store_url)
        try:
            await store.claim(run_id, owner=f"worker {number}", nonce=f"n{number}", term_ms=60_000)
        except RunBusy as busy:
            assert busy.owner.startswith("worker ")
            return BUSY
        finally:
            await store.aclose()
        return WON

    assert at_once(4, claim, tmp_path / "gate") == {WON: 1, BUSY: 3}


def slow_desk(folder: Path, ledger: Ledger) -> Agent:
    """A desk whose unsafe tool says that it has begun, and ends when it is told to."""

    @tool(effect="read")
    def look_up(order: str) -> str:
        """Look an order up."""
        return "42 EUR"

    @tool(effect="read")
    def hold(order: str) -> str:
        """Hold the money."""
        return "held"

    @tool(effect="unsafe", timeout_s=5.0)
    async def refund(order: str, amount: int) -> str:
        """Pay an order back."""
        ledger.record("refund", order)
        (folder / "begun").touch()
        while not (folder / "go on").exists():
            await asyncio.sleep(0.01)
        return "paid back"

    return Agent("desk", tools=[look_up, hold, refund])


def test_a_worker_that_slept_past_its_lease_is_refused(tmp_path: Path, store_url: str) -> None:
    ledger = Ledger(tmp_path / "ledger")
    settings = EngineSettings(lease_s=LEASE_S)

    async def sleeper() -> int:
        async with Runtime.open(store_url, model=DeskModel(), settings=settings) as runtime:
            agent = slow_desk(tmp_path, ledger)
            run_id = await runtime.start(agent, "Refund order A7.", run_id="sleeper")
            try:
                await runtime.work(run_id, agent)
            except LeaseLost:
                return FENCED
            return WON

    def child() -> None:
        raise SystemExit(asyncio.run(sleeper()))

    holder = EmbeddedServer(tmp_path / "store")
    holder.enter()  # the server stays when the sleeper is the only other user and stands still
    pid = fork(child)
    until((tmp_path / "begun").exists)
    os.kill(pid, signal.SIGSTOP)

    async def take_over() -> tuple[str, int, int, str]:
        async with Runtime.open(store_url, model=DeskModel(), settings=settings) as runtime:
            agent = slow_desk(tmp_path, ledger)
            while True:
                try:
                    result = await runtime.work("sleeper", agent)
                    break
                except RunBusy:
                    await asyncio.sleep(0.02)
            before = (await runtime.store.head("sleeper")).seq
            (tmp_path / "go on").touch()
            os.kill(pid, signal.SIGCONT)
            code = await asyncio.to_thread(wait_for, pid)
            after = (await runtime.store.head("sleeper")).seq
            (request,) = await runtime.requests("sleeper")  # what the person who settles is shown
            seen = "\n".join(map(str, request.evidence))
            return result.status, code, after - before, seen

    status, code, written, seen = asyncio.run(take_over())
    holder.leave()

    assert status == "waiting"  # in doubt: the runtime cannot know, and asks
    assert code == FENCED
    assert written == 0
    assert "the run was taken over" in seen
    assert ledger.raw("refund") == 1


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    tmp_path: Path, store_url: str
) -> None:
    acknowledged: list[int] = []
    server = EmbeddedServer(tmp_path / "store")
    server.enter()

    async def run() -> tuple[str, list[int], int]:
        kills = 0

        def on_event(event: object) -> None:
            nonlocal kills
            seq = getattr(event, "seq", None)
            if seq is None:
                return
            acknowledged.append(seq)
            if len(acknowledged) in (3, 6, 9):
                os.kill(server_pid(tmp_path / "store"), signal.SIGKILL)
                kills += 1

        ledger = Ledger(tmp_path / "ledger")
        async with Runtime.open(store_url, model=DeskModel(), on_event=on_event) as runtime:
            agent = make_desk(ledger)
            result = await runtime.run(agent, "Refund order A7.")
            (request,) = await runtime.requests(result.run_id)
            await runtime.decide(result.run_id, request.ask_id, "approve", by="person")
            result = await runtime.work(result.run_id, agent)
            stored = [event.seq for event in await runtime.history(result.run_id)]
            assert ledger.raw("refund") == 1
            assert ledger.raw("hold") == 1
            return result.status, stored, kills

    status, stored, kills = asyncio.run(run())
    server.leave()

    assert kills == 3
    assert status == "done"
    assert set(acknowledged) <= set(stored)
    assert stored == list(range(1, len(stored) + 1))


def server_pid(folder: Path) -> int:
    """The process that serves the folder now."""
    return int((folder / "server.pid").read_text())
