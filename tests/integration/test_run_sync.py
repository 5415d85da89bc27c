"""`run_sync`: a run from code that cannot await, in a script and in a notebook."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from checkpoints.model import Head, RunId
from fsm_agent import Agent, Limits, Result, Runtime, run_sync, tool
from tests.conftest import Ledger, ScriptedModel, ask, finish, turns

T = TypeVar("T")
WHO = contextvars.ContextVar("WHO", default="nobody")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"embedded:{tmp_path}"


def in_a_cell(call: Callable[[], T]) -> T:
    """What a notebook does: plain code inside a loop that runs, with Python's own interrupts."""

    async def cell() -> T:
        return call()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(cell())
    finally:
        loop.close()
        signal.signal(signal.SIGINT, before)


def looked(store: str, look: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
    async def main() -> T:
        async with Runtime.open(store, model=turns(finish()), is_live=False) as runtime:
            return await look(runtime)

    return asyncio.run(main())


def in_a_script(call: Callable[[], T]) -> T:
    return call()


@pytest.mark.parametrize("place", [in_a_script, in_a_cell])
def test_it_takes_the_options_of_start_and_open(
    store: str, place: Callable[[Callable[[], Result]], Result]
) -> None:
    result = place(
        lambda: run_sync(Agent("desk"), "Go.", store=store, model=turns(finish("Gone.")),
                         limits=Limits(turns=3), requester="kim", run_id="sync-1")
    )  # fmt: skip

    assert (result.run_id, result.answer) == ("sync-1", "Gone.")


def test_tools_in_a_notebook_see_the_context_of_the_cell(store: str) -> None:
    seen = []

    @tool(effect="read")
    async def look() -> str:
        seen.append((WHO.get(), threading.current_thread() is threading.main_thread()))
        return "found"

    def cell() -> Result:
        WHO.set("kim")
        agent = Agent("desk", tools=[look])
        return run_sync(agent, "Go.", store=store, model=turns(ask(("look", {})), finish()))

    assert in_a_cell(cell).status == "done"
    assert seen == [("kim", False)]


def test_an_error_in_a_notebook_comes_out_as_itself(store: str) -> None:
    model = ScriptedModel(lambda request: ValueError("no such model"))

    with pytest.raises(ValueError, match="no such model"):
        in_a_cell(lambda: run_sync(Agent("desk"), "Go.", store=store, model=model))


def test_an_interrupt_in_a_notebook_gives_the_run_back(store: str) -> None:
    ledger = Ledger()

    @tool(effect="idempotent")
    async def hang() -> str:
        ledger.record("begun")
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
        return "never"

    def cell() -> Result:
        agent, model = Agent("desk", tools=[hang]), turns(ask(("hang", {})), finish())
        return run_sync(agent, "Go.", store=store, model=model, run_id="sync-1")

    with pytest.raises(KeyboardInterrupt):
        in_a_cell(cell)

    async def head(runtime: Runtime) -> Head:
        return await runtime.store.head(RunId("sync-1"))

    found = looked(store, head)
    assert (found.lease_until_ms, found.due_ms is not None) == (0, True)
    assert ledger["begun"] == 1


@pytest.mark.parametrize(
    ("option", "near"),
    [("requestor", "requester"), ("limts", "limits"), ("setings", "settings"), ("modl", "model")],
)
def test_a_misspelt_option_is_refused_with_the_nearest_one(
    store: str, option: str, near: str
) -> None:
    options: dict[str, Any] = {option: "x"}

    with pytest.raises(TypeError, match=f"'{option}'. Did you mean '{near}'?"):
        run_sync(Agent("desk"), "Go.", store=store, **options)


def test_run_refuses_a_misspelt_option_too(store: str) -> None:
    async def misspelt(runtime: Runtime) -> Result:
        return await runtime.run(Agent("desk"), "Go.", requestor="kim")

    with pytest.raises(TypeError, match=r"Did you mean 'requester'\?"):
        looked(store, misspelt)
