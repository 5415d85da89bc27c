"""A fleet at work, and a seed's worth of misfortune."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

from checkpoints.errors import CheckpointError, DecisionRefused
from fsm_agent.llm.model import Piece, Reply, StepRequest
from fsm_agent.runtime import Request, Runtime
from fsm_agent.testing.model_server import ModelServer

from .agent import agent
from .fleet import LEASE_S, Fleet
from .ledger import effects
from .script import SCRIPT, TASK
from .verdict import Verdict, judge

Misfortune = Literal["kill", "freeze", "kill store"]
KINDS: tuple[Misfortune, ...] = ("kill", "kill", "kill", "freeze", "freeze", "kill store")
# Shorter than the grace that locks a call in doubt, or else a person may be told 'nothing
# happened' of a call that a frozen worker is still about to send.
LONGEST_FREEZE_S = 3.0
LOOK_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much of everything."""

    minutes: float = 1.0
    workers: int = 3
    runs: int = 20
    seed: int = 0
    settle_s: float = 180.0  # for the runs to end, once nothing goes wrong any more


@dataclass
class Report:
    """What was done to the fleet, and what became of the promises."""

    plan: Plan
    verdict: Verdict
    done: dict[str, int] = field(default_factory=dict)  # misfortunes by kind
    took_s: float = 0.0
    exit_codes: list[int] = field(default_factory=list)

    @property
    def is_kept(self) -> bool:
        """Whether every promise was kept, and something was there to break it."""
        return self.verdict.is_kept and sum(self.done.values()) > 0


async def play(plan: Plan, folder: Path, tell: Callable[[str], None]) -> Report:
    """Run the fleet in `folder` through the misfortunes of the plan, and judge what is left."""
    began, chance = time.monotonic(), Random(plan.seed)
    run_ids = [f"chaos-{plan.seed}-{n}" for n in range(plan.runs)]
    with ModelServer(SCRIPT, models=("scripted",)).in_thread() as server:
        fleet = Fleet(folder, server.base_url)
        async with Runtime.open(fleet.store, model=_NoModel(), is_live=False) as runtime:
            try:
                done = await _disturbed(plan, fleet, runtime, run_ids, chance, tell)
            finally:
                codes = await fleet.stop()
            verdict = await judge(runtime, run_ids, fleet.ledger)
    return Report(plan, verdict, done, time.monotonic() - began, codes)


async def _disturbed(
    plan: Plan,
    fleet: Fleet,
    runtime: Runtime,
    run_ids: list[str],
    chance: Random,
    tell: Callable[[str], None],
) -> dict[str, int]:
    for _ in range(plan.workers):
        await fleet.start_worker()
    async with _aside(_decide_for_ever(runtime, fleet)):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_start_all(runtime, run_ids, plan.minutes * 60))
            striking = tasks.create_task(_strike(plan, fleet, chance, tell))
        tell(f"nothing goes wrong any more; waiting for {plan.runs} runs to end")
        await _until_ended(runtime, run_ids, plan.settle_s)
    return striking.result()


async def _start_all(runtime: Runtime, run_ids: list[str], within_s: float) -> None:
    """Spread over the time, so that there is always something to break."""
    for run_id in run_ids:
        while True:
            with suppress(CheckpointError):
                await runtime.start(agent, TASK, run_id=run_id)
                break
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(0.8 * within_s / len(run_ids))


async def _strike(
    plan: Plan, fleet: Fleet, chance: Random, tell: Callable[[str], None]
) -> dict[str, int]:
    done = dict.fromkeys(KINDS, 0)
    end = time.monotonic() + plan.minutes * 60
    async with asyncio.TaskGroup() as thawing:
        while time.monotonic() < end:
            await asyncio.sleep(chance.uniform(0.3, 1.5))
            kind, number = chance.choice(KINDS), chance.random()
            length_s = chance.uniform(1.5 * LEASE_S, LONGEST_FREEZE_S)
            running = fleet.rested() if kind == "freeze" else fleet.running()
            if kind == "kill store":
                if not fleet.kill_store():
                    continue
                tell("SIGKILL to the store's server")
            elif not running:
                continue
            else:
                worker = running[int(number * len(running))]
                if kind == "kill":
                    await fleet.kill(worker)
                    tell(f"SIGKILL to worker {worker.pid}")
                else:
                    fleet.freeze(worker)
                    thawing.create_task(_thaw_later(fleet, worker, length_s))
                    tell(f"SIGSTOP to worker {worker.pid} for {length_s:.1f} s")
            done[kind] += 1
    return {str(kind): count for kind, count in done.items()}


async def _thaw_later(fleet: Fleet, worker: asyncio.subprocess.Process, seconds: float) -> None:
    await asyncio.sleep(seconds)
    fleet.thaw(worker)


async def _until_ended(runtime: Runtime, run_ids: list[str], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        with suppress(CheckpointError):
            heads = await runtime.runs(limit=len(run_ids))
            if sum(head.status in ("done", "error") for head in heads) == len(run_ids):
                return
        await asyncio.sleep(LOOK_S)


async def _decide_for_ever(runtime: Runtime, fleet: Fleet) -> None:
    """A person who approves all, and looks at the ledger before settling a doubt."""
    while True:
        with suppress(CheckpointError):
            for request in await runtime.requests():
                with suppress(DecisionRefused):  # locked as yet, or decided meanwhile
                    await _decide(runtime, fleet, request)
        await asyncio.sleep(LOOK_S)


async def _decide(runtime: Runtime, fleet: Fleet, request: Request) -> None:
    question = request.question
    decision_id = f"person-{request.run_id}-{request.ask_id}"
    if question.kind != "in_doubt":
        await runtime.decide(
            request.run_id,
            request.ask_id,
            "approve",
            by="person",
            digest=request.digest,
            decision_id=decision_id,
        )
        return
    sent = [(e.tool, e.run_id) for e in effects(fleet.ledger)]
    is_there = (question.tool, request.run_id) in sent
    await runtime.decide(
        request.run_id,
        request.ask_id,
        "happened" if is_there else "rerun",
        by="person",
        answer=f"{question.tool}: ok" if is_there else None,
        digest=request.digest,
        decision_id=f"{decision_id}-{is_there}",
    )


@asynccontextmanager
async def _aside(life: object) -> AsyncIterator[None]:
    """Let something go on for as long as the body runs."""
    task = asyncio.ensure_future(life)  # type: ignore[call-overload]
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()):
        raise error


class _NoModel:
    """Only the workers ask a model."""

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        raise NotImplementedError("chaos itself asks no model")

    async def aclose(self) -> None:
        pass
