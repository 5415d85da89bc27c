"""Outcomes of tools in a run: the end, a question, both, half a result, sources, many failures."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from fsm_agent import Agent, Source, partial, pause, terminate, tool, with_sources
from fsm_agent.run.content import NoteMessage
from fsm_agent.run.delta import Detailed
from fsm_agent.run.state import State
from tests.conftest import Bench, Ledger, ask, die, finish, results, take_over, turns, until

QUICK = 0.3


def notes(request: Any) -> list[str]:
    return [m.text for m in request.messages if isinstance(m, NoteMessage)]


@tool(effect="read")
def close() -> Any:
    """End the run."""
    return terminate({"total": 42})


@tool(effect="read")
def choose() -> Any:
    """Ask which one."""
    return pause("Which account?", options=("A", "B"))


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


async def test_a_tool_ends_the_run_with_its_content(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(ask(("close", {}), ("look", {})), finish("never")))

    result = await runtime.run(Agent("a", tools=[close, look]), "Go.")

    assert (result.status, result.answer, result.is_completed) == ("done", '{"total": 42}', True)
    assert result.closing is None
    assert len(model.requests) == 1
    run = await bench.run_of(result.run_id)
    assert run.state is State.DONE
    assert [m.text for m in run.messages[-2:]] == ['{"total": 42}', "seen"]


async def test_a_partial_end_is_not_completed(bench: Bench) -> None:
    @tool(effect="read")
    def close_early() -> Any:
        return terminate(partial("half", "time was short"))

    runtime = await bench.runtime(turns(ask(("close_early", {}))))

    result = await runtime.run(Agent("a", tools=[close_early]), "Go.")

    assert (result.answer, result.is_completed) == ("half", False)


async def test_a_tool_asks_the_user_and_the_answer_is_its_result(bench: Bench) -> None:
    agent = Agent("a", tools=[choose])
    runtime = await bench.runtime(model := turns(ask(("choose", {})), finish("ok")))
    result = await runtime.run(agent, "Go.")
    assert result.status == "waiting"
    (request,) = await runtime.requests(result.run_id)
    question = request.question
    assert (question.kind, question.reason, question.options, question.tool) == (
        "question",
        "Which account?",
        ("A", "B"),
        "choose",
    )

    await runtime.decide(result.run_id, request.ask_id, "answer", by="mia", answer="B")
    other = await bench.runtime(model)
    result = await other.work(result.run_id, agent)

    assert result.answer == "ok"
    assert results(model.requests[-1]) == [("choose", "success", "B")]


async def test_with_both_in_one_batch_the_pause_comes_first_and_both_are_visible(
    bench: Bench,
) -> None:
    agent = Agent("a", tools=[choose, close])
    runtime = await bench.runtime(turns(ask(("close", {}), ("choose", {}))))

    waiting = await runtime.run(agent, "Go.")

    assert (waiting.status, waiting.closing, len(waiting.asks)) == ("waiting", '{"total": 42}', 1)
    await runtime.decide(waiting.run_id, waiting.asks[0], "answer", by="mia", answer="B")
    result = await runtime.work(waiting.run_id, agent)
    assert (result.status, result.answer) == ("done", '{"total": 42}')
    run = await bench.run_of(result.run_id)
    assert [m.text for m in run.messages[-2:]] == ['{"total": 42}', "B"]


async def test_a_cancelled_pause_closes_as_cancelled(bench: Bench) -> None:
    agent = Agent("a", tools=[choose])
    runtime = await bench.runtime(turns(ask(("choose", {}))))
    result = await runtime.run(agent, "Go.")

    await runtime.cancel(result.run_id, by="mia")
    result = await runtime.work(result.run_id, agent)

    assert (result.status, result.reason) == ("error", "cancelled")
    assert await bench.settled(result.run_id) == [("c4-0", "cancelled")]
    assert await runtime.requests(result.run_id) == []


async def test_an_end_that_is_on_record_survives_the_worker(bench: Bench) -> None:
    ledger = Ledger()

    @tool(effect="read")
    async def slow() -> str:
        if ledger.record("slow") == 1:
            await asyncio.sleep(60)
        return "slow"

    agent = Agent("a", tools=[close, slow])
    store = await bench.store()
    first = await bench.runtime(turns(ask(("close", {}), ("slow", {}))), store=store, lease_s=QUICK)
    run_id = await first.start(agent, "Go.")
    working = asyncio.create_task(first.work(run_id, agent))
    await until(lambda: bench.has_settled(run_id, 1))
    await die(store, working)

    result = await take_over(await bench.runtime(turns(finish("never"))), run_id, agent)

    assert (result.status, result.answer, ledger["slow"]) == ("done", '{"total": 42}', 2)


# -- results that came while the call was cancelled -----------------------------------------------


def stubborn(ledger: Ledger) -> Any:
    @tool(name="pay", timeout_s=30)
    async def pay() -> str:
        ledger.record("pay")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "paid, ref 7"
        return "never"

    return pay


@pytest.mark.parametrize("siblings", [0, 1])
async def test_a_result_during_a_cancel_is_on_record(bench: Bench, siblings: int) -> None:
    ledger = Ledger()

    @tool(effect="read")
    async def wait() -> None:
        await asyncio.sleep(60)

    agent = Agent("a", tools=[stubborn(ledger), wait])
    runtime = await bench.runtime(turns(ask(("pay", {}), *[("wait", {})] * siblings)))
    run_id = await runtime.start(agent, "Go.")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: ledger["pay"])

    await runtime.cancel(run_id, by="mia")
    await working

    settled = dict(await bench.settled(run_id))
    assert settled["c4-0"] == "success"
    assert list(settled.values())[1:] == ["cancelled"] * siblings


@pytest.mark.parametrize("siblings", [0, 1])
async def test_a_result_while_the_process_stops_is_on_record_and_is_not_asked_about(
    bench: Bench, siblings: int
) -> None:
    ledger = Ledger()

    @tool(effect="read")
    async def wait() -> str:
        if ledger.record("wait") == 1:
            await asyncio.sleep(60)
        return "waited"

    agent = Agent("a", tools=[stubborn(ledger), wait])
    model = turns(ask(("pay", {}), *[("wait", {})] * siblings), finish("ok"))
    runtime = await bench.runtime(model)
    run_id = await runtime.start(agent, "Go.")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(lambda: ledger["pay"] and ledger["wait"] == siblings)

    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    result = await runtime.work(run_id, agent)

    assert (result.status, ledger["pay"]) == ("done", 1)
    assert results(model.requests[-1])[0] == ("pay", "success", "paid, ref 7")


async def test_a_result_after_the_run_was_lost_is_an_orphan_report(bench: Bench) -> None:
    ledger = Ledger()
    agent = Agent("a", tools=[stubborn(ledger)])
    store = await bench.store()
    first = await bench.runtime(turns(ask(("pay", {}))), store=store, lease_s=QUICK)
    run_id = await first.start(agent, "Go.")
    working = asyncio.create_task(first.work(run_id, agent))
    await until(lambda: ledger["pay"])
    store.is_dead = True  # its renewals and commits fail from now on
    second = await bench.runtime(turns(finish()))
    result = await take_over(second, run_id, agent)
    assert result.status == "waiting"

    store.is_dead = False
    with suppress(Exception):
        await working

    reports = await second.store.orphans(run_id)  # type: ignore[attr-defined]
    assert any(b"paid, ref 7" in bytes(report) for report in reports)


# -- fallback, sources, reports, limits -----------------------------------------------------------


async def test_smaller_arguments_are_in_the_journal(bench: Bench) -> None:
    @tool(effect="read", timeout_s=0.05, retries=1, fallback="halve")
    async def find(limit: int = 40) -> str:
        if limit > 20:
            await asyncio.sleep(60)
        return f"{limit} rows"

    runtime = await bench.runtime(turns(ask(("find", {})), finish()))

    result = await runtime.run(Agent("a", tools=[find]), "Go.")

    details = [
        delta
        for event in await runtime.history(result.run_id)
        for delta in event.record.deltas
        if isinstance(delta, Detailed)
    ]
    assert details == [Detailed("c4-0", arguments='{"limit":20}')]


async def test_sources_are_collected_once_in_order_and_shown_with_the_result(bench: Bench) -> None:
    @tool(effect="read")
    def read(page: int) -> Any:
        return with_sources(f"page {page}", Source("Book", "http://b"), f"http://p/{page}")

    batch = ask(("read", {"page": 1}), ("read", {"page": 2}))
    runtime = await bench.runtime(turns(batch, batch, finish()))

    result = await runtime.run(Agent("a", tools=[read]), "Go.")

    assert [s.url for s in result.sources] == ["http://b", "http://p/1", "http://p/2"]
    assert (await runtime.result(result.run_id)).sources == result.sources


async def test_several_failures_are_told_in_one_report_by_status(bench: Bench) -> None:
    @tool(effect="read")
    def fail(n: int) -> str:
        raise OSError(f"disk {n}")

    @tool(effect="read", timeout_s=0.02)
    async def hang() -> None:
        await asyncio.sleep(60)

    batch = ask(("fail", {"n": 1}), ("look", {}), ("hang", {}), ("fail", {"n": 2}))
    runtime = await bench.runtime(model := turns(batch, finish()))

    await runtime.run(Agent("a", tools=[fail, hang, look]), "Go.")

    assert notes(model.requests[-1]) == [
        "3 of the 4 calls have failed:\n"
        "error: fail (c4-0): OSError: disk 1; fail (c4-3): OSError: disk 2\n"
        "timeout: hang (c4-2): hang took over 0.02 s and was given up."
    ]


async def test_one_failure_needs_no_report(bench: Bench) -> None:
    @tool(effect="read")
    def fail() -> str:
        raise OSError("disk")

    runtime = await bench.runtime(model := turns(ask(("fail", {}), ("look", {})), finish()))

    await runtime.run(Agent("a", tools=[fail, look]), "Go.")

    assert notes(model.requests[-1]) == []


@pytest.mark.parametrize("count", [1, 2, 8])
async def test_a_whole_batch_has_a_limit_and_what_is_cut_is_kept(bench: Bench, count: int) -> None:
    @tool(effect="read")
    def dump(n: int) -> str:
        return str(n) * 9_000

    batch = ask(*(("dump", {"n": n}) for n in range(count)))
    runtime = await bench.runtime(model := turns(batch, finish()))

    result = await runtime.run(Agent("a", tools=[dump], batch_output_chars=10_000), "Go.")

    sizes = [len(text) for _, _, text in results(model.requests[-1])]
    assert sum(sizes) <= 10_000
    assert min(sizes) >= 10_000 // (2 * count) - 60
    run = await bench.run_of(result.run_id)
    shown = [m for m in run.messages if getattr(m, "call_id", "")]
    assert all("characters cut" in m.text for m in shown if len(m.text) < 9_000)


async def test_an_answer_of_a_tool_is_not_cut_by_the_limit_of_the_batch(bench: Bench) -> None:
    @tool(effect="read")
    def report() -> Any:
        return terminate("x" * 30_000)

    runtime = await bench.runtime(turns(ask(("report", {}))))

    result = await runtime.run(Agent("a", tools=[report], batch_output_chars=1000), "Go.")

    assert len(result.answer or "") == 30_000
