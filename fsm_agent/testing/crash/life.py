"""The life of one process of a sweep: it takes the run up, and sees it to its end if it is let."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from checkpoints.connect import open_store
from checkpoints.errors import RunBusy, RunClosed, StoreUnavailable
from checkpoints.redis_store import RedisStore
from checkpoints.settings import StoreSettings
from fsm_agent.engine.deps import EngineSettings
from fsm_agent.runtime import Result, Runtime
from fsm_agent.testing.faults import Fault

from .case import Strike
from .evidence import Ending, collect
from .keeper import let_go_of_keepers
from .ledger import Ledger
from .network import Network
from .people import decide
from .points import Points
from .scenario import Scenario
from .store import PointedStore, end_leases
from .tools import pointed_agent

WORLD = "FSM_AGENT_CRASH_DIR"  # names a folder that the tools of a case have for themselves
LOOK_S = 0.02
OPEN_TRIES = 5
# Under a fault that lasts, a process is to give up soon.
SHORT_LEASE_S = 0.45
SHORT_RESTART_S = 0.2


@dataclass(frozen=True)
class Life:
    """One process: which case it is in, and what strikes it."""

    scenario: Scenario
    socket: Path  # of the real store
    run_id: str  # of the namespace, too: new in each case, and so are idempotency keys
    folder: Path  # of the case, shared by its processes
    number: int  # of the process in its case
    strike: Strike | None
    is_wired: bool  # its requests pass a network that can be struck

    def live(self) -> None:
        """The body of the forked process. How it ended is written down, unless it was killed."""
        let_go_of_keepers()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # whoever stops the sweep means no run of it
        random.seed(self.scenario.seed)
        world = self.folder / "world"
        world.mkdir(exist_ok=True)
        os.environ[WORLD] = str(world)
        try:
            asyncio.run(self._live())
            ending = Ending("done")
        except asyncio.CancelledError:
            ending = Ending("cancelled")
        except Exception as error:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup) and len(cause.exceptions) == 1:
                cause = cause.exceptions[0]
            ending = Ending("failed", type(cause).__name__, str(cause))
        (self.folder / f"end-{self.number}").write_bytes(msgspec.json.encode(ending))

    async def _live(self) -> None:
        async with AsyncExitStack() as stack:
            path, network = self.socket, None
            if self.is_wired:
                network = await stack.enter_async_context(self._network())
                path = network.socket
            store = await self._open(path)
            stack.push_async_callback(store.aclose)
            await end_leases(store, self.folder / "leases")
            if network:
                network.arm()
            kill_at = self.strike.kill_at if self.strike else None
            points = Points(self.folder / f"points-{self.number}", kill_at)
            ledger = Ledger(self.folder / "ledger", points)
            pointed = PointedStore(store, points, self.folder / "leases")
            result = await self._work(pointed, points, ledger)
            if network:
                network.disarm()
            evidence = await collect(store, result)
            (self.folder / "evidence").write_bytes(msgspec.msgpack.encode(evidence))

    def _network(self) -> Network:
        worker = asyncio.current_task()
        assert worker
        strike = None if self.strike and self.strike.is_kill else self.strike
        return Network(
            self.socket, self.folder, self.number, strike=strike, on_cancel=worker.cancel
        )

    async def _open(self, path: Path) -> RedisStore:
        # Opening asks once, by design; a machine under load may be too slow for short patience.
        for left in reversed(range(OPEN_TRIES)):
            try:
                return await open_store(
                    f"unix://{path}",
                    namespace=self.run_id,
                    partitions=1,
                    settings=self._store_settings(),
                )
            except StoreUnavailable:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _store_settings(self) -> StoreSettings:
        if self.strike and self.strike.lasts:
            return StoreSettings(answer_s=0.1, restart_s=SHORT_RESTART_S)
        if self.strike and self.strike.fault is Fault.SLOW_REPLY:
            return StoreSettings(answer_s=0.2)
        return StoreSettings()

    async def _work(self, store: PointedStore, points: Points, ledger: Ledger) -> Result:
        scenario = self.scenario
        lasts = self.strike is not None and self.strike.lasts
        settings = EngineSettings(
            lease_s=SHORT_LEASE_S if lasts else scenario.lease_s,
            doubt_grace_s=scenario.doubt_grace_s,
            retry_base_s=0.01,
        )
        agent = pointed_agent(scenario.agent(ledger), points, ledger)
        model = scenario.make_model()
        facade: object = store
        try:
            async with Runtime.open(
                facade,  # type: ignore[arg-type]
                model=model,
                settings=settings,
                is_live=False,
                owner=f"process-{self.number}",
            ) as runtime:
                await runtime.start(agent, scenario.task, run_id=self.run_id, requester="crashtest")
                while True:
                    try:
                        result = await runtime.work(self.run_id, agent)
                    except RunClosed:
                        return await runtime.result(self.run_id)
                    except RunBusy:
                        await asyncio.sleep(LOOK_S)
                        continue
                    if result.status in ("done", "error"):
                        return result
                    await self._help(runtime, store, ledger)
        finally:
            await model.aclose()

    async def _help(self, runtime: Runtime, store: PointedStore, ledger: Ledger) -> None:
        """What a parked run waits for: a person, or time."""
        requests = await runtime.requests(self.run_id)
        for request in requests:
            await decide(runtime, request, self.scenario.decide, ledger)
        if not requests:
            await store.skip_to_due(self.run_id)
