"""Two workers that stop and die at random, and a person who decides at random: one outcome."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import pytest

from checkpoints.errors import AlreadyDecided, AskNotFound, RunBusy, RunClosed, StoreUnavailable
from fsm_agent import Agent, Runtime, ToolContext, ask_user, keyed, tool
from fsm_agent.llm.model import Reply, StepRequest
from tests.conftest import Bench, Ledger, ScriptedModel, Watched, ask, finish, turns

SHORT_S = 0.2


def make_agent(rng: Random, ledger: Ledger) -> Agent:
    async def pause() -> None:
        await asyncio.sleep(rng.random() * 0.005)

    @tool(effect="read")
    async def look(q: str) -> str:
        await pause()
        return q

    @tool(effect=keyed())
    async def hold(ctx: ToolContext) -> str:
        await pause()
        ledger.record(f"key {ctx.idempotency_key}")
        await pause()
        return "held"

    @tool
    async def pay(n: int) -> str:
        await pause()
        ledger.record(f"pay {n}")
        await pause()
        return "paid"

    @tool(approval="always")
    def send(n: int) -> str:
        ledger.record(f"send {n}")
        return "sent"

    tools = [look, hold, pay, send, ask_user]
    return Agent("desk", tools=tools, parallel_calls=rng.choice([1, 2, 8]))


def make_model(rng: Random) -> ScriptedModel:
    calls = [
        *(("look", {"q": "a"}), ("hold", {}), ("pay", {"n": 1}), ("pay", {"n": 2})),
        *(("send", {"n": 1}), ("send", {"n": 2}), ("ask_user", {"question": "Which?"})),
    ]
    rng.shuffle(calls)
    script = turns(ask(*calls[:4]), ask(*calls[4:]), finish("end"))

    async def answer(request: StepRequest) -> Reply:
        await asyncio.sleep(rng.random() * 0.004)
        said = script.answer(request)
        assert isinstance(said, Reply)
        return said

    return ScriptedModel(answer)


async def work_and_stop(runtime: Runtime, run_id: str, agent: Agent, rng: Random) -> None:
    """Work on the run, and be stopped after a random time, until it is over."""
    while True:
        try:
            async with asyncio.timeout(rng.choice([0.002, 0.005, 0.01, 0.02, 0.05, 5])):
                await runtime.work(run_id, agent)
        except RunClosed:
            return
        except (TimeoutError, RunBusy, StoreUnavailable):
            pass
        await asyncio.sleep(0.002)


async def die_now_and_then(store: Watched, rng: Random) -> None:
    for _ in range(3):
        await asyncio.sleep(rng.random() * 0.05)
        store.is_dead = True
        await asyncio.sleep(0.03)
        store.is_dead = False


async def decide_for_ever(runtime: Runtime, run_id: str, rng: Random) -> None:
    while True:
        for request in await runtime.requests(run_id):
            await asyncio.sleep(rng.random() * 0.01)
            verb = {"in_doubt": "happened", "question": "answer"}.get(
                request.question.kind, rng.choice(["approve", "approve", "reject"])
            )
            with suppress(AlreadyDecided, AskNotFound, RunClosed):
                said = "x" if verb in ("answer", "happened") else None
                await runtime.decide(run_id, request.ask_id, verb, by="mia", answer=said)  # type: ignore[arg-type]
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("seed", range(12))
async def test_a_run_under_random_stops_deaths_and_decisions_ends_with_each_effect_once(
    bench: Bench, seed: int
) -> None:
    rng, ledger = Random(seed), Ledger()
    agent, model = make_agent(rng, ledger), make_model(rng)
    stores = [await bench.store(), await bench.store()]
    runtimes = [
        await bench.runtime(model, store=store, lease_s=lease_s)
        for store, lease_s in zip(stores, [15.0, SHORT_S], strict=True)
    ]
    run_id = await runtimes[0].start(agent, "Go.")

    async with asyncio.timeout(30), asyncio.TaskGroup() as around:
        person = around.create_task(decide_for_ever(runtimes[0], run_id, rng))
        around.create_task(die_now_and_then(stores[1], rng))
        async with asyncio.TaskGroup() as workers:
            for runtime in runtimes:
                workers.create_task(work_and_stop(runtime, run_id, agent, rng))
        person.cancel()

    run = await bench.run_of(run_id)
    assert run.answer
    assert run.answer.text == "end"
    assert not run.has_unsettled_calls
    assert all(ledger[name] <= 1 for name in ledger if name.startswith(("pay", "send")))
    assert sum(name.startswith("key") for name in ledger) <= 1
