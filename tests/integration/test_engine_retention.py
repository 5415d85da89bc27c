"""What the engine says of how long runs are kept, and who tidies up."""

from __future__ import annotations

import pytest

from checkpoints import StoreSettings, open_store
from checkpoints.model import RunId
from fsm_agent import Agent, Runtime, tool
from fsm_agent.archive import family, prunable
from fsm_agent.engine.deps import EngineSettings
from fsm_agent.errors import BadAgent
from tests.conftest import Bench, ask, finish, turns, until


async def test_the_last_commit_says_how_long_a_run_is_kept_and_no_other_does(bench: Bench) -> None:
    @tool(effect="read")
    def look() -> str:
        return "seen"

    store = await bench.store()
    runtime = await bench.runtime(turns(ask(("look", {})), finish()), store=store, keep_s=60.0)

    await runtime.run(Agent("desk", tools=[look]), "go")
    await runtime.run(Agent("brief", tools=[look], keep_s=2.5), "go")

    kept = [(commit.status, commit.keep_ms) for commit in store.commits if commit.keep_ms]
    assert kept == [("done", 60_000), ("done", 2_500)]
    with pytest.raises(BadAgent, match="keep_s"):
        Agent("desk", keep_s=0)


async def test_a_child_is_kept_for_its_parent_and_pruned_with_it(bench: Bench) -> None:
    child = Agent("helper")
    parent = Agent("desk", tools=[child.as_tool(description="Help.")])
    model = turns(ask(("helper", {"task": "help"})), finish())

    def answer(request):  # type: ignore[no-untyped-def]
        is_child = not request.tools
        return finish("helped") if is_child else model.answer(request)

    store = await bench.store()
    runtime = await bench.runtime(type(model)(answer), store=store, keep_s=60.0)
    result = await runtime.run(parent, "go")

    ids = await family(store, result.run_id)  # type: ignore[arg-type]
    assert (ids[0], len(ids)) == (result.run_id, 2)
    assert [commit.keep_ms for commit in store.commits if commit.status == "done"] == [None, 60_000]
    heads = await prunable(store, before_ms=1 << 50)  # type: ignore[arg-type]
    assert {head.run_id for head in heads} == set(ids)


async def test_whoever_works_folds_what_is_finished(bench: Bench) -> None:
    store = await open_store(
        bench._url, namespace=bench._namespace, settings=StoreSettings(fold_after_s=0.0)
    )
    settings = EngineSettings(tidy_s=0.02)
    async with Runtime.open(store, model=turns(finish("42")), settings=settings) as runtime:
        result = await runtime.run(Agent("desk"), "go")

        async def is_folded() -> bool:
            key = store._of(RunId(result.run_id)).folded
            return bool(await store._line.call("EXISTS", key))

        await until(is_folded)
        assert (await runtime.result(result.run_id)).answer == "42"
        assert [event async for event in runtime.watch(result.run_id)]
    await store.aclose()
