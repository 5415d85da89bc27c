"""What an adversary tried: odd tools, endless words, blocked loops, and stops at bad moments."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import pytest

from checkpoints.errors import LeaseLost
from checkpoints.model import Renewal, RunId
from fsm_agent import Agent, Limits, tool
from fsm_agent.errors import BadAgent, UsageError
from fsm_agent.llm.model import Reply, RequestedCall, StepRequest
from fsm_agent.run.content import UserMessage
from fsm_agent.worker.local import work_due_once
from tests.conftest import USAGE, Bench, ScriptedModel, ask, finish, results, turns


class Raises(str):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Dumps:
    def model_dump(self, **_: Any) -> Any:
        raise RuntimeError("no dump")


@tool
def leave() -> None:
    """Try to end the process."""
    sys.exit(3)


@tool
async def leave_async() -> None:
    """Try to end the process."""
    sys.exit(3)


@tool
async def close() -> None:
    """Raise what closes a coroutine."""
    raise GeneratorExit


@tool
def wordless() -> str:
    """Return a text that cannot be read."""
    return Raises("fine")


@tool
def undumpable() -> Any:
    """Return what cannot be dumped."""
    return Dumps()


@pytest.mark.parametrize("odd", [leave, leave_async, close, wordless, undumpable])
async def test_a_tool_that_fails_in_an_odd_way_is_a_result(bench: Bench, odd: Any) -> None:
    runtime = await bench.runtime(turns(ask((odd.name, {})), finish()))

    result = await runtime.run(Agent("odd", tools=[odd]), "Go.")

    assert result.status == "done"


@pytest.mark.parametrize("kind", ["text", "calls", "arguments", "name"])
async def test_words_without_end_are_an_error_for_the_model(bench: Bench, kind: str) -> None:
    long = "x" * 1_200_000
    calls = {
        "calls": tuple(RequestedCall("look", {"q": str(n)}, "{}") for n in range(5_000)),
        "arguments": (RequestedCall("look", {"q": long}, f'{{"q": "{long}"}}'),),
        "name": (RequestedCall(long, {}, "{}"),),
    }.get(kind, ())
    text = long if kind == "text" else "I call."
    endless = Reply(label="TOOL" if calls else "FINISH", text=text, calls=calls, usage=USAGE)
    runtime = await bench.runtime(turns(endless, finish("short")))

    @tool(effect="read")
    async def look(q: str) -> str:
        """Look something up."""
        return q

    result = await runtime.run(Agent("a", tools=[look]), "Go.")

    assert (result.status, result.answer) == ("done", "short")


async def test_a_decision_that_could_never_be_recorded_is_refused(bench: Bench) -> None:
    @tool(approval="always")
    def send() -> str:
        """Send it."""
        return "sent"

    runtime = await bench.runtime(turns(ask(("send", {})), finish()))
    result = await runtime.run(agent := Agent("a", tools=[send]), "Go.")

    for words in ({"answer": "x" * 600_000}, {"answer": "x", "reason": "x" * 600_000}):
        with pytest.raises(UsageError, match="150,000 are possible"):
            await runtime.decide(result.run_id, result.asks[0], "answer", by="mia", **words)

    await runtime.decide(result.run_id, result.asks[0], "approve", by="mia")
    assert (await runtime.work(result.run_id, agent)).status == "done"


def test_an_output_limit_that_no_entry_could_hold_is_refused() -> None:
    with pytest.raises(BadAgent, match="max_output_chars"):
        tool(name="wide", max_output_chars=400_000)(lambda: "x")


async def test_runs_of_agents_that_are_not_here_do_not_hide_the_others(bench: Bench) -> None:
    runtime = await bench.runtime(turns(finish()))
    for number in range(40):
        await runtime.start(Agent("elsewhere"), "Go.", run_id=f"b{number}")
    await runtime.start(known := Agent("known"), "Go.", run_id="a1")

    assert await work_due_once(runtime, {"known": known}) == 1
    assert (await runtime.result("a1")).status == "done"


async def test_a_stop_during_the_claim_leaves_no_lease_behind(bench: Bench) -> None:
    runtime = await bench.runtime(turns(finish()))
    agent = Agent("a")
    for steps in range(1, 12):
        run_id = await runtime.start(agent, "Go.", run_id=f"s{steps}")
        task = asyncio.ensure_future(runtime.work(run_id, agent))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        assert (await runtime.store.head(RunId(run_id))).lease_until_ms == 0


async def test_words_that_come_with_the_last_reply_are_answered(bench: Bench) -> None:
    def answer(request: StepRequest) -> Any:
        said = [m.text for m in request.messages if isinstance(m, UserMessage)]
        return finish("both") if len(said) > 1 else speak()

    async def speak() -> Reply:
        await runtime.say(run_id, "And in short.")
        session_hears = asyncio.timeout(5)
        async with session_hears:
            await heard.wait()
        return finish("one")

    heard = asyncio.Event()
    runtime = await bench.runtime(ScriptedModel(answer))
    run_id = await runtime.start(agent := Agent("a"), "Go.")
    mailbox = runtime.store.mailbox

    async def hears(run: RunId) -> Any:
        found = await mailbox(run)
        heard.set()
        return found

    runtime.store.mailbox = hears  # type: ignore[method-assign]

    assert (await runtime.work(run_id, agent)).answer == "both"


async def test_a_blocked_loop_keeps_leases_that_nobody_took(bench: Bench) -> None:
    @tool(effect="unsafe")
    async def block() -> str:
        """Block the event loop for longer than the lease."""
        time.sleep(1.0)  # noqa: ASYNC251
        return "done"

    @tool(effect="unsafe")
    async def send() -> str:
        """Send something."""
        await asyncio.sleep(0.5)
        return "sent"

    runtime = await bench.runtime(
        ScriptedModel(
            lambda r: finish() if results(r) else ask((r.tools[0].name, {})),
        ),
        lease_s=0.6,
    )

    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(runtime.run(Agent("a", tools=[one]), "Go."))
            for one in [send] * 5 + [block]
        ]

    assert {task.result().status for task in running} == {"done"}


async def test_nothing_starts_on_a_lease_that_ran_out_while_the_intent_was_written(
    bench: Bench,
) -> None:
    started = threading.Event()

    @tool(effect="unsafe")
    def send() -> str:
        """Send something."""
        started.set()
        return "sent"

    store = await bench.store()
    runtime = await bench.runtime(turns(ask(("send", {})), finish()), store=store)
    heartbeat = runtime._deps.heartbeat
    heartbeat.may_start = lambda lease: False  # type: ignore[method-assign]

    async def lost(leases: Any) -> Any:
        return {lease.run_id: Renewal(is_held=False, mail=0) for lease in leases}

    store.renew = lost  # type: ignore[attr-defined]

    with pytest.raises(LeaseLost):
        await runtime.run(Agent("a", tools=[send]), "Go.", limits=Limits())

    assert not started.is_set()
