"""One simulation: a seed's workers, runs, people and weather, and what is wrong at the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from hashlib import sha256
from logging import CRITICAL
from random import Random

import structlog

from checkpoints.errors import CheckpointError, DecisionRefused, StoreUsageError
from checkpoints.leases import Heartbeat
from checkpoints.model import CLOSED, Commit, Committed, Lease, RunId
from checkpoints.redis_store import RedisStore
from checkpoints.testing.memory import MemoryServer
from fsm_agent.engine.deps import Deps, EngineSettings
from fsm_agent.engine.resume import work_on
from fsm_agent.errors import AgentError
from fsm_agent.runtime import Request, Runtime

from .loop import PROCESS, NotSimulated, VirtualLoop
from .network import Network, Wire
from .oracles import Acks, broken
from .weather import CALM, Event, Fault, Weather, drawn
from .world import KINDS, WORLD, Model, World, agent, drawn_plan, text_of

SETTINGS = EngineSettings(lease_s=3.0, doubt_grace_s=6.0, max_recoveries=10_000)
LONGEST_PAUSE_S = 5.0  # below the grace that locks a call in doubt
BETWEEN_PAUSES_S = 15.0  # two in a row would add up to one that is too long
TIME_LIMIT_S = 900.0  # of virtual time, within which every run must have ended
_EPOCH_S = 1_700_000_000


@dataclass
class Outcome:
    """What came of a seed."""

    seed: int
    broken: list[str] = field(default_factory=list)
    runs: int = 0
    steps: int = 0  # of the event loop
    virtual_s: float = 0.0
    faults: Counter[Fault] = field(default_factory=Counter)
    takeovers: int = 0
    trace: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Equal for equal traces."""
        return sha256("\n".join(self.trace).encode()).hexdigest()[:16]

    @property
    def replay(self) -> str:
        """The line that runs this seed again."""
        return f"python -m fsm_agent.testing.simulation --seed {self.seed}"


def simulate(seed: int, *, is_calm: bool = False) -> Outcome:
    """Run a seed to its end. `is_calm` leaves the weather out: what an undisturbed run does.

    Deterministic: a seed gives the same trace on every machine with the same Python.
    """
    chance = Random(seed)
    loop = VirtualLoop(Random(chance.getrandbits(64)))
    loop.set_exception_handler(lambda loop, context: None)  # of tasks that were killed
    outcome = Outcome(seed)
    weather = drawn(chance, lease_s=SETTINGS.lease_s)
    town = _Town(loop, CALM if is_calm else weather, chance, outcome)
    with _silent():
        try:
            loop.run_until_complete(town.live())
        except NotSimulated as error:
            outcome.broken.append(str(error))
        outcome.steps, outcome.virtual_s = loop.steps, loop.time() - town.began
        _end(loop, town)
    outcome.faults = town.network.faults
    return outcome


class _Town:
    """Everything that lives in one simulation."""

    def __init__(
        self, loop: VirtualLoop, weather: Weather, chance: Random, outcome: Outcome
    ) -> None:
        self.began = loop.time()
        self._loop, self._weather, self._chance, self._outcome = loop, weather, chance, outcome
        self._clock_jump_s = 0.0
        self._server = MemoryServer(self._now_us)
        self.network = Network(self._server, weather, Random(chance.getrandbits(64)), loop)
        self._world = World(Random(chance.getrandbits(64)))
        self.network.note = self._world.note = self._note
        self._acks: Acks = {}
        self._world.strike, self._world.breaks = self._strike, self._model_breaks
        self._strikes = Random(chance.getrandbits(64))
        self._may_pause_at = 0.0
        self._workers: list[str] = []
        self._born = 0

    def _now_us(self) -> int:
        return int((_EPOCH_S + self._loop.time() + self._clock_jump_s) * 1_000_000)

    def _note(self, text: str) -> None:
        if self.network.is_down:
            return
        self._outcome.trace.append(f"{self._loop.time() - self.began:.4f} {text}")

    async def live(self) -> None:
        kinds = tuple(kind for kind in KINDS if kind != "post" or not self._weather.moves_the_clock)
        run_ids = [f"run-{n}" for n in range(self._chance.randint(1, 3))]
        for run_id in run_ids:
            self._world.plans[f"Do {run_id}."] = drawn_plan(self._chance, kinds)
        for _ in range(self._chance.randint(2, 3)):
            self._start_worker()
        for name in ("ann", "bob"):
            self._spawn(name, self._person(name))
        self._spawn("starter", self._starter(run_ids))
        for event in self._weather.events:
            self._loop.call_later(event.at_s, self._befall, event)
        calm_store = RedisStore(lambda: _Calm(self._server), chance=Random(0))
        await calm_store.begin("sim", 1)
        await self._until_ended(calm_store, run_ids)
        await self._judge(calm_store, run_ids)

    async def _until_ended(self, store: RedisStore, run_ids: list[str]) -> None:
        while self._loop.time() < self.began + TIME_LIMIT_S:
            heads = {head.run_id: head for head in await store.runs()}
            ended = [head for head in heads.values() if head.status in CLOSED]
            if len(ended) == len(run_ids):
                return
            await asyncio.sleep(1.0)

    async def _judge(self, store: RedisStore, run_ids: list[str]) -> None:
        known = {head.run_id for head in await store.runs()}
        for run_id in run_ids:
            self._outcome.runs += 1
            if run_id not in known:
                self._outcome.broken.append(f"{run_id}: was never stored")
                continue
            self._outcome.takeovers += (await store.head(RunId(run_id))).token - 1
            self._outcome.broken += await broken(
                store,
                self._world,
                f"Do {run_id}.",
                run_id,
                self._acks,
                is_probing_sure=not self._weather.moves_the_clock,
            )

    # -- machines ---------------------------------------------------------------------------------

    def _spawn(self, name: str, life: object) -> None:
        context = Context()
        context.run(WORLD.set, self._world)
        context.run(PROCESS.set, name)
        self._loop.create_task(life, name=name, context=context)  # type: ignore[arg-type]

    def _start_worker(self) -> None:
        self._born += 1
        name = f"worker-{self._born}"
        self._workers.append(name)
        self._spawn(name, self._worker(name))

    def _strike(self) -> None:
        """Perhaps something befalls the machine that is about to have an effect, or just had it."""
        if self.network.is_stormy and self._strikes.random() < self._weather.tool_rate:
            fault = self._strikes.choice([Fault.CRASH, Fault.PAUSE])
            self._hit(PROCESS.get(), fault, LONGEST_PAUSE_S * self._strikes.uniform(0.7, 1.0))

    def _model_breaks(self) -> bool:
        is_broken = self.network.is_stormy and self._strikes.random() < self._weather.model_rate
        self.network.faults[Fault.MODEL] += is_broken
        return is_broken

    def _befall(self, event: Event) -> None:
        name = self._workers[event.worker % len(self._workers)]
        self._hit(name, event.fault, event.length_s)

    def _hit(self, name: str, fault: Fault, length_s: float) -> None:
        if self.network.is_down:
            return
        if fault is Fault.PAUSE:
            if self._weather.moves_the_clock or self._loop.time() < self._may_pause_at:
                return
            length_s = min(length_s, LONGEST_PAUSE_S)
            self._may_pause_at = self._loop.time() + length_s + BETWEEN_PAUSES_S
        self.network.faults[fault] += 1
        self._note(f"{name} {fault} {length_s:.1f} s")
        match fault:
            case Fault.CRASH:
                self._loop.halt(name)  # for ever
                self._workers.remove(name)
                self._start_worker()
            case Fault.PAUSE:
                self._loop.halt(name)
                self._loop.call_later(length_s, self._wake, name, context=Context())
            case Fault.PARTITION:
                self.network.cut(name, length_s)
            case Fault.CLOCK_JUMP:
                self._clock_jump_s += length_s

    def _wake(self, name: str) -> None:
        if name in self._workers:  # else it was killed while it was paused
            self._loop.go_on(name)

    # -- lives ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _runtime(self, name: str) -> AsyncIterator[Runtime]:
        chance = Random(self._chance.getrandbits(64))
        store = _Heard(lambda: Wire(self.network), chance=chance)
        store.acks = self._acks
        while True:
            with suppress(CheckpointError):
                await store.begin("sim", 1)
                break
            await asyncio.sleep(0.5)
        async with Heartbeat(store) as heartbeat:
            deps = Deps(
                store=store,
                model=Model(),
                heartbeat=heartbeat,
                new_id=lambda: f"{chance.getrandbits(128):032x}",
                jitter=chance.random,
                clock=_LoopClock(),
                settings=SETTINGS,
                work_on=work_on,
            )
            yield Runtime(deps, owner=name)

    async def _worker(self, name: str) -> None:
        chance = Random(self._chance.getrandbits(64))
        async with self._runtime(name) as runtime, asyncio.TaskGroup() as tasks:
            busy: set[str] = set()
            while True:
                with suppress(CheckpointError):
                    for run_id in await runtime.store.due():
                        if run_id not in busy and len(busy) < 2:
                            busy.add(run_id)
                            tasks.create_task(self._work(runtime, run_id, busy))
                await asyncio.sleep(chance.uniform(0.1, 1.0))

    async def _work(self, runtime: Runtime, run_id: str, busy: set[str]) -> None:
        try:
            result = await runtime.work(run_id, agent())
            self._note(f"{PROCESS.get()} {run_id} {result.status}")
        except (CheckpointError, AgentError) as error:
            self._note(f"{PROCESS.get()} {run_id} {type(error).__name__}: {error}")
        finally:
            busy.discard(run_id)

    async def _starter(self, run_ids: list[str]) -> None:
        async with self._runtime("starter") as runtime:
            for run_id in run_ids:
                await asyncio.sleep(self._chance.random() * 2)
                while True:
                    with suppress(CheckpointError):
                        await runtime.start(agent(), f"Do {run_id}.", run_id=run_id)
                        break
                    await asyncio.sleep(0.5)

    async def _person(self, name: str) -> None:
        """Two of them see the same requests, and each decides what the other has not."""
        chance = Random(self._chance.getrandbits(64))
        async with self._runtime(name) as runtime:
            while True:
                await asyncio.sleep(chance.uniform(0.2, 3.0))
                with suppress(DecisionRefused, CheckpointError):
                    for request in await runtime.requests():
                        await self._decide(runtime, request, name, chance)

    async def _decide(self, runtime: Runtime, request: Request, by: str, chance: Random) -> None:
        verb, answer = self._verdict(request)
        if verb is None:
            return
        for _ in range(chance.choice([1, 1, 2])):  # a double click
            with suppress(DecisionRefused, StoreUsageError):
                await runtime.decide(
                    request.run_id,
                    request.ask_id,
                    verb,  # type: ignore[arg-type]
                    by=by,
                    answer=answer,
                    digest=request.digest,
                    decision_id=f"{by}-{request.run_id}-{request.ask_id}",
                )

    def _verdict(self, request: Request) -> tuple[str | None, str | None]:
        """What a person says who approves all, and looks at the world before settling a doubt."""
        question = request.question
        if question.kind != "in_doubt":
            return "approve", None
        if self._world.sent(question.tool, f"{request.run_id} {question.call_id}"):
            number = int(question.arguments.partition(":")[2].strip(" }"))
            return "happened", text_of(question.tool, number)
        # Whoever cannot trust the lock waits until nothing can be on its way any more.
        is_sure = not self._weather.moves_the_clock
        is_over = self._loop.time() > self.began + self._weather.storm_s + 30.0
        return ("rerun" if is_sure or is_over else None), None


class _Heard(RedisStore):
    """A store that writes down what it was told is stored."""

    acks: Acks

    async def commit(self, lease: Lease, commit: Commit) -> Committed:
        committed = await super().commit(lease, commit)
        self.acks[lease.run_id, committed.seq] = committed.chain
        return committed


class _Calm(Wire):
    """A way to the server that the weather does not touch: the judge's."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def call(self, *args: object, patience_s: float | None = None) -> object:  # type: ignore[override]
        return self._server.call(*args)  # type: ignore[arg-type]


class _LoopClock:
    """The loop's time. The wall clock is a wrong one: nothing may depend on it."""

    def wall_ms(self) -> int:
        return 0

    def steady_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _end(loop: VirtualLoop, town: _Town) -> None:
    """Let everything end in good order, the killed as well, with nobody to talk to."""
    loop.steps = 0
    town.network.is_down = True
    for name in sorted(loop.halted):
        loop.go_on(name)

    async def ended() -> None:
        me = asyncio.current_task()
        while others := [task for task in asyncio.all_tasks() if task is not me]:
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=60.0)

    try:
        loop.run_until_complete(ended())
    finally:
        loop.close()


@contextmanager
def _silent() -> Iterator[None]:
    """Without the log lines of workers that are killed by the thousand."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
