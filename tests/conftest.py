"""A real store for the engine's tests, a model that is scripted by content, and ways to die."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import structlog

from checkpoints import open_store
from checkpoints.embedded import EmbeddedServer
from checkpoints.errors import RunBusy, StoreUnavailable
from checkpoints.model import Commit, Committed, Lease, ParkedStatus, RunId
from checkpoints.redis_store import RedisStore
from fsm_agent import Agent, Result, Runtime
from fsm_agent.engine.deps import EngineSettings
from fsm_agent.llm.model import Piece, Reply, RequestedCall, StepRequest
from fsm_agent.run import codec
from fsm_agent.run.content import AssistantMessage, ToolMessage, Usage
from fsm_agent.run.delta import Settled
from fsm_agent.run.record import Record, Run, apply

# What a shell starts in the background ignores Ctrl-C, and so does all that it starts in turn.
# What the tests interrupt must hear it, wherever the suite was started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_namespaces = count()
USAGE = Usage(10, 5)


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A test that runs the command in its own process sets up the logs of all that follow."""
    before, was_set = structlog.get_config(), structlog.is_configured()
    yield
    structlog.configure(**before) if was_set else structlog.reset_defaults()


@pytest.fixture(scope="session")
def engine_store_url() -> Iterator[str]:
    """An embedded server for all tests of the engine; each test has a namespace of its own."""
    folder = Path(tempfile.mkdtemp(prefix="fsm-"))
    server = EmbeddedServer(folder / "engine")
    server.enter()
    yield f"embedded:{folder / 'engine'}"
    server.leave()
    shutil.rmtree(folder, ignore_errors=True)


# -- models ---------------------------------------------------------------------------------------

Said = Reply | Exception
Answer = Callable[[StepRequest], "Said | Awaitable[Said]"]


class ScriptedModel:
    """Answers by what the request holds, so a request that is sent again is answered alike."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[StepRequest] = []

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        self.requests.append(request)
        said = self.answer(request)
        if not isinstance(said, (Reply, Exception)):
            said = await said
        if isinstance(said, Exception):
            raise said
        on_piece(Piece("body", said.text))
        return said

    async def aclose(self) -> None:
        pass


def turns(*replies: Reply) -> ScriptedModel:
    """The nth reply to a conversation in which the model has spoken n times; the last for ever."""

    def answer(request: StepRequest) -> Reply:
        spoken = sum(isinstance(m, AssistantMessage) for m in request.messages)
        return replies[min(spoken, len(replies) - 1)]

    return ScriptedModel(answer)


def ask(*calls: tuple[str, dict[str, Any]]) -> Reply:
    """A reply that wants these tools."""
    wanted = tuple(RequestedCall(name, arguments, "{}") for name, arguments in calls)
    return Reply(label="TOOL", text="", calls=wanted, usage=USAGE)


def think(text: str = "hm") -> Reply:
    return Reply(label="THINK", text=text, usage=USAGE)


def finish(text: str = "done") -> Reply:
    return Reply(label="FINISH", text=text, usage=USAGE)


def broken(violation: Any = "missing_label", text: str = "no label here") -> Reply:
    return Reply(label=None, text=text, usage=USAGE, violation=violation, detail="said so")


def results(request: StepRequest) -> list[tuple[str, str, str]]:
    """Tool results that the model was shown: name, status, text."""
    return [(m.name, m.status, m.text) for m in request.messages if isinstance(m, ToolMessage)]


# -- stores ---------------------------------------------------------------------------------------


class Watched:
    """A store that counts its commits, calls a hook around each, and can die like a process."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.commits: list[Commit] = []
        self.is_dead = False
        self.before_commit: Callable[[Commit], Awaitable[None]] | None = None
        self.after_commit: Callable[[Commit], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, lease: Lease, commit: Commit) -> Committed:
        if self.before_commit:
            await self.before_commit(commit)
        self._check()
        committed = await self._store.commit(lease, commit)
        self.commits.append(commit)  # acknowledged
        if self.after_commit:
            await self.after_commit(commit)
        return committed

    async def release(
        self, lease: Lease, *, due_ms: int | None, status: ParkedStatus | None = None
    ) -> None:
        self._check()
        await self._store.release(lease, due_ms=due_ms, status=status)

    async def renew(self, leases: Any) -> Any:
        self._check()
        return await self._store.renew(leases)

    def _check(self) -> None:
        if self.is_dead:
            raise StoreUnavailable("this worker is dead", applied=None)

    def records(self) -> list[list[Record]]:
        return [[codec.decode(body) for body in commit.bodies] for commit in self.commits]


class Bench:
    """Runtimes and stores on one namespace, closed at the end of the test."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url, self._stack = url, stack
        self._namespace = f"e{os.getpid()}-{next(_namespaces)}"

    def beside(self, url: str) -> Bench:
        """The same namespace by another address."""
        bench = Bench(url, self._stack)
        bench._namespace = self._namespace
        return bench

    async def store(self) -> Watched:
        store = await open_store(self._url, namespace=self._namespace)
        self._stack.push_async_callback(store.aclose)
        return Watched(store)

    async def runtime(
        self,
        model: ScriptedModel,
        *,
        store: Watched | None = None,
        lease_s: float = 15.0,
        **options: Any,
    ) -> Runtime:
        """A runtime with quick times; `options` are Runtime.open's, or fields of EngineSettings."""
        fields = {
            name: options.pop(name) for name in EngineSettings.__annotations__ if name in options
        }
        fields = {"doubt_grace_s": 0.0, "retry_base_s": 0.01} | fields
        opened = Runtime.open(
            store or await self.store(),
            model=model,
            settings=EngineSettings(lease_s=lease_s, **fields),
            owner=options.pop("owner", f"worker-{next(_namespaces)}"),
            **options,
        )
        return await self._stack.enter_async_context(_forgiving(opened))

    async def run_of(self, run_id: str) -> Run:
        """The run as its journal makes it, checked entry by entry."""
        run = Run(run_id=run_id)
        for entry in await (await self.store()).journal(RunId(run_id)):
            run = apply(run, codec.decode(entry.body))
        return run

    async def has_settled(self, run_id: str, count: int) -> bool:
        return len(await self.settled(run_id)) >= count

    async def settled(self, run_id: str) -> list[tuple[str, str]]:
        """Call id and status of each result, as they were committed."""
        return [
            (delta.call_id, delta.status)
            for entry in await (await self.store()).journal(RunId(run_id))
            for delta in codec.decode(entry.body).deltas
            if isinstance(delta, Settled)
        ]


@asynccontextmanager
async def _forgiving(opened: AbstractAsyncContextManager[Runtime]) -> AsyncIterator[Runtime]:
    async with opened as runtime:
        yield runtime


@pytest.fixture
async def bench(engine_store_url: str) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(engine_store_url, stack)


# -- dying and waiting ----------------------------------------------------------------------------


async def until(condition: Callable[[], Any], limit_s: float = 10.0) -> Any:
    """Return once the condition holds; what it says may have to be awaited."""
    end = monotonic() + limit_s
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.002)


async def die(store: Watched, working: asyncio.Task[Any]) -> None:
    """End a worker as SIGKILL would: nothing more of it reaches the store."""
    store.is_dead = True
    working.cancel()
    await asyncio.wait([working])


async def take_over(runtime: Runtime, run_id: str, agent: Agent, limit_s: float = 10.0) -> Result:
    """Work on a run as soon as the lease of its dead worker has run out."""
    end = monotonic() + limit_s
    while True:
        try:
            return await runtime.work(run_id, agent)
        except RunBusy:
            assert monotonic() < end, "the lease did not run out in time"
            await asyncio.sleep(0.01)


class Ledger(Counter[str]):
    """Effects outside the store, counted."""

    def record(self, name: str) -> int:
        self[name] += 1
        return self[name]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


class ManualClock:
    """A clock that only moves when somebody sleeps or says so."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._steady = 0.0

    def wall_ms(self) -> int:
        return int(self._steady * 1000)

    def steady_s(self) -> float:
        return self._steady

    def advance(self, seconds: float) -> None:
        self._steady += seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)
