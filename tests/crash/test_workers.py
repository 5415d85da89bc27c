"""Workers as real processes: drained, killed, blocked by a tool, and killed again and again."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet import Crew, fill, work
from checkpoints import open_store
from checkpoints.embedded import EmbeddedServer
from checkpoints.model import Head, RunId
from fsm_agent import Agent, Runtime, tool
from fsm_agent.engine.deps import EngineSettings
from fsm_agent.llm.model import Piece, Reply, RequestedCall, StepRequest
from fsm_agent.run.content import ToolMessage, Usage
from fsm_agent.testing.crash import Ledger, fork, wait_for
from fsm_agent.worker.pool import Worker

LEASE_S = 1.0
PATIENCE_S = 60.0


class OneCall:
    """Calls the agent's tool once, and finishes."""

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        has_result = any(isinstance(message, ToolMessage) for message in request.messages)
        if has_result or not request.tools:
            return Reply(label="FINISH", text="done", usage=Usage(10, 1))
        call = RequestedCall(request.tools[0].name, {}, "{}")
        return Reply(label="TOOL", text="", calls=(call,), usage=Usage(10, 1))

    async def aclose(self) -> None:
        pass


@pytest.fixture
def store_url(tmp_path: Path) -> Iterator[str]:
    """A store whose server outlives the workers."""
    holder = EmbeddedServer(tmp_path / "store")
    holder.enter()
    yield f"embedded:{tmp_path / 'store'}"
    holder.leave()


def opened(url: str, lease_s: float = LEASE_S) -> Any:
    settings = EngineSettings(lease_s=lease_s, doubt_grace_s=0.0)
    return Runtime.open(url, model=OneCall(), settings=settings, is_live=False)


def worker_process(url: str, *agents: Agent, lease_s: float = LEASE_S) -> int:
    """A process that works for ever; its id. SIGTERM drains it, and it exits with 0."""

    async def main() -> None:
        async with opened(url, lease_s) as runtime:
            worker = Worker(runtime, {agent.name: agent for agent in agents})
            task = asyncio.ensure_future(worker.work())
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            await asyncio.wait([task])

    return fork(lambda: asyncio.run(main()))


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.005)


def on(url: str, body: Callable[[Runtime], Coroutine[Any, Any, Any]]) -> Any:
    """Do something on the store, from this process."""

    async def main() -> Any:
        async with opened(url) as runtime:
            return await body(runtime)

    return asyncio.run(main())


def start(url: str, agent: Agent, **options: Any) -> str:
    return str(on(url, lambda runtime: runtime.start(agent, "task", **options)))


def head(url: str, run_id: str) -> Head:
    async def read() -> Head:
        store = await open_store(url)
        try:
            return await store.head(RunId(run_id))
        finally:
            await store.aclose()

    return asyncio.run(read())


def is_done(url: str, run_id: str) -> bool:
    return head(url, run_id).status == "done"


# -- draining -------------------------------------------------------------------------------------


PROBE = Agent("probe")  # its run says that a worker is up, and has room


def until_up(url: str) -> None:
    """Wait for a worker that has the probe."""
    run_id = start(url, PROBE)
    until(lambda: is_done(url, run_id))


def test_after_sigterm_another_process_goes_on_long_before_the_lease_ends(
    tmp_path: Path, store_url: str
) -> None:
    @tool(effect="idempotent", timeout_s=60)
    async def act() -> str:
        """Do it."""
        is_first = not (tmp_path / "first").exists()
        (tmp_path / ("first" if is_first else "second")).touch()
        if is_first:
            await asyncio.sleep(60)
        return "ok"

    agent = Agent("actor", tools=[act])
    run_id = start(store_url, agent)
    one = worker_process(store_url, agent, lease_s=60.0)
    until((tmp_path / "first").exists)
    two = worker_process(store_url, agent, PROBE, lease_s=60.0)
    until_up(store_url)

    os.kill(one, signal.SIGTERM)
    drained = time.monotonic()
    until((tmp_path / "second").exists)
    took_s = time.monotonic() - drained
    until(lambda: is_done(store_url, run_id))
    os.kill(two, signal.SIGTERM)

    assert (wait_for(one), wait_for(two)) == (0, 0)
    # A tenth of a second where nothing else runs; the lease would have taken a minute.
    assert took_s < 10.0


def test_a_process_that_holds_on_to_its_drain_ends_at_the_second_signal(
    tmp_path: Path, store_url: str
) -> None:
    from fsm_agent.cli import process

    @tool(effect="read", timeout_s=60)
    async def stubborn() -> str:
        """Ignore everything."""
        (tmp_path / "begun").touch()
        while True:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                (tmp_path / "told").touch()

    agent = Agent("actor", tools=[stubborn])
    start(store_url, agent)

    async def main() -> None:
        async with opened(store_url) as runtime:
            await Worker(runtime, {agent.name: agent}).work()

    pid = fork(lambda: process.run(main))
    until((tmp_path / "begun").exists)
    os.kill(pid, signal.SIGTERM)
    until((tmp_path / "told").exists)
    os.kill(pid, signal.SIGTERM)

    assert wait_for(pid) == 128 + signal.SIGTERM


# -- a heartbeat that a tool cannot starve --------------------------------------------------------


def blocking(kind: str, seconds: float, begun: Path) -> Agent:
    """An agent whose tool does not let go for so long, the first time."""

    def block() -> None:
        if begun.exists():
            return
        begun.touch()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if kind == "a C call that keeps the interpreter":
                ctypes.PyDLL(None).usleep(int(seconds * 1e6))
            elif kind == "a coroutine that sleeps":
                time.sleep(seconds)
            else:
                sum(range(1000))

    @tool(effect="idempotent", timeout_s=60)
    async def in_the_loop() -> str:
        """Block the event loop."""
        block()
        return "ok"

    @tool(effect="idempotent", timeout_s=60)
    def in_a_thread() -> str:
        """Keep the interpreter busy."""
        block()
        return "ok"

    return Agent("blocker", tools=[in_a_thread if "thread" in kind else in_the_loop])


@pytest.mark.parametrize(
    "kind", ["a coroutine that sleeps", "a coroutine that computes", "a thread that computes"]
)
def test_a_blocking_tool_does_not_cost_the_lease(tmp_path: Path, store_url: str, kind: str) -> None:
    agent = blocking(kind, 2.5 * LEASE_S, tmp_path / "begun")
    run_id = start(store_url, agent)
    one = worker_process(store_url, agent)
    until((tmp_path / "begun").exists)
    two = worker_process(store_url, agent, PROBE)

    until(lambda: is_done(store_url, run_id))
    ended = head(store_url, run_id)
    for pid in (one, two):
        os.kill(pid, signal.SIGTERM)

    assert (wait_for(one), wait_for(two)) == (0, 0)
    assert ended.token == 1  # nobody took it over


def test_what_stops_even_threads_costs_the_lease_and_nothing_else(
    tmp_path: Path, store_url: str
) -> None:
    agent = blocking("a C call that keeps the interpreter", 2 * LEASE_S, tmp_path / "begun")
    run_id = start(store_url, agent)
    one = worker_process(store_url, agent)
    until((tmp_path / "begun").exists)
    two = worker_process(store_url, agent)

    until(lambda: is_done(store_url, run_id))
    ended = head(store_url, run_id)
    for pid in (one, two):
        os.kill(pid, signal.SIGTERM)

    assert (wait_for(one), wait_for(two)) == (0, 0)
    assert ended.token >= 2  # taken over; whoever lost it was fenced


# -- taking over, and giving up -------------------------------------------------------------------


def test_a_killed_workers_run_goes_on_once_its_lease_has_run_out(
    tmp_path: Path, store_url: str
) -> None:
    @tool(effect="idempotent", timeout_s=60)
    async def act() -> str:
        """Hang the first time."""
        if not (tmp_path / "first").exists():
            (tmp_path / "first").touch()
            await asyncio.sleep(60)
        return "ok"

    agent = Agent("actor", tools=[act])
    run_id = start(store_url, agent)
    one = worker_process(store_url, agent)
    until((tmp_path / "first").exists)
    two = worker_process(store_url, agent, PROBE)
    until_up(store_url)

    os.kill(one, signal.SIGKILL)
    wait_for(one)
    lease_end = head(store_url, run_id).lease_until_ms
    until(lambda: is_done(store_url, run_id))
    os.kill(two, signal.SIGTERM)
    events = on(store_url, lambda runtime: runtime.history(run_id))
    (taken,) = [
        delta.claimed_ms
        for event in events
        for delta in event.record.deltas
        if getattr(delta, "is_takeover", False)
    ]

    assert wait_for(two) == 0
    # At its end and not at some next look: a worker knows when the next run becomes due.
    assert 0 <= taken - lease_end < 5_000


def test_a_run_that_kills_its_workers_ends_as_poison_and_names_the_step(
    tmp_path: Path, store_url: str
) -> None:
    ledger = Ledger(tmp_path / "ledger")

    @tool(effect="idempotent", timeout_s=60)
    async def deadly() -> str:
        """Kill whoever runs it."""
        ledger.record("deadly", "x")
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    agent = Agent("actor", tools=[deadly])
    run_id = start(store_url, agent)
    deaths = 0
    while head(store_url, run_id).status != "error":
        pid = worker_process(store_url, agent, lease_s=0.5)
        until(lambda pid=pid: _has_ended(pid) or head(store_url, run_id).status == "error")
        if head(store_url, run_id).status == "error":
            os.kill(pid, signal.SIGTERM)
            wait_for(pid)
        else:
            deaths += 1
    result = on(store_url, lambda runtime: runtime.result(run_id))

    limit = EngineSettings().max_recoveries
    assert deaths == limit + 1 == ledger.raw("deadly")
    assert result.reason == "poison"
    assert f"{limit + 1} workers died on the same step" in result.message
    assert re.search(r"ACT, after entry \d+, with deadly \(c\d+-0\) under way", result.message)


def _has_ended(pid: int) -> bool:
    """Whether a child has ended, without collecting it twice."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended:
        os.waitpid(pid, 0)
    return ended is not None


# -- starting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("filing", [{}, {"thread": "t"}])
def test_a_start_that_is_killed_and_repeated_is_one_run(
    tmp_path: Path, store_url: str, moment: str, filing: dict[str, str]
) -> None:
    agent = Agent("actor")

    class Deadly:
        """A store at whose create the process dies."""

        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def create(self, *args: Any, **options: Any) -> bool:
            if moment == "after":
                await self._store.create(*args, **options)
            os.kill(os.getpid(), signal.SIGKILL)
            return True

    async def die() -> None:
        store = await open_store(store_url)
        async with Runtime.open(Deadly(store), model=OneCall()) as runtime:  # type: ignore[arg-type]
            await runtime.start(agent, "task", run_id="r-1", **filing)

    assert wait_for(fork(lambda: asyncio.run(die()))) == -signal.SIGKILL
    again = [start(store_url, agent, run_id="r-1", **filing) for _ in range(2)]
    result = on(store_url, lambda runtime: runtime.work("r-1", agent))
    heads = on(store_url, lambda runtime: runtime.runs())

    assert again == ["r-1", "r-1"]
    assert result.status == "done"
    assert [each.run_id for each in heads] == ["r-1"]


# -- all of it ------------------------------------------------------------------------------------


def test_hundreds_of_runs_on_workers_that_are_killed_are_all_done_once(
    tmp_path: Path, store_url: str
) -> None:
    async def run() -> Any:
        store = await open_store(store_url)
        ledger = tmp_path / "ledger"
        try:
            run_ids = await fill(store, 200, ledger)
            with Crew(store_url, ledger, 3, lease_s=0.7, think_s=0.1) as crew:
                return await work(store, crew, run_ids, kill_every_s=0.4, patience_s=100.0)
        finally:
            await store.aclose()

    outcome = asyncio.run(run())

    assert outcome.wrong == []
    assert (outcome.done, outcome.other.total(), outcome.effects) == (200, 0, 200)
    assert outcome.kills >= 1
