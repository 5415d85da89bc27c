"""Calls without a result: what a dead worker, a time limit, and changed code leave behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from checkpoints.errors import AskLocked, LeaseLost, RunClosed
from checkpoints.model import Commit, RunId
from fsm_agent import Agent, Limits, ToolContext, cannot_tell, done, keyed, not_done, probed, tool
from fsm_agent.errors import CodeChanged
from fsm_agent.run import codec
from fsm_agent.run.delta import Intended, Withheld
from fsm_agent.tools.effects import Effect
from tests.conftest import (
    Bench,
    Ledger,
    ManualClock,
    ScriptedModel,
    Watched,
    ask,
    die,
    finish,
    results,
    take_over,
    turns,
    until,
)

QUICK = 0.3  # a lease that dies within a test


class Gate:
    """A tool that has its effect at once, and whose first call then hangs."""

    def __init__(self, ledger: Ledger, effect: Effect | str, **settings: Any) -> None:
        self.ledger, self.keys = ledger, []
        settings = {"timeout_s": 5.0} | settings

        @tool(name="pay", effect=effect, **settings)  # type: ignore[call-overload,untyped-decorator]
        async def pay(ctx: ToolContext, amount: int = 1) -> str:
            self.keys.append(ctx.idempotency_key)
            if self.ledger.record("pay") == 1:
                await asyncio.sleep(60)
            return f"paid {amount}"

        self.tool = pay
        self.agent = Agent("desk", tools=[pay])

    keys: list[str]


def paying(**arguments: Any) -> ScriptedModel:
    return turns(ask(("pay", arguments)), finish("all done"))


async def cut_off(
    bench: Bench, agent: Agent, started: Callable[[], Any], model: ScriptedModel | None = None
) -> str:
    """A run whose worker dies once `started` holds."""
    store = await bench.store()
    runtime = await bench.runtime(model or paying(), store=store, lease_s=QUICK)
    run_id = await runtime.start(agent, "Pay.")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(started)
    await die(store, working)
    return run_id


async def starts(runtime: Any, run_id: str) -> int:
    return sum(
        isinstance(delta, Intended)
        for event in await runtime.history(run_id)
        for delta in event.record.deltas
    )


# -- a gap by class -------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_a_harmless_call_is_run_again(bench: Bench, ledger: Ledger, effect: str) -> None:
    gate = Gate(ledger, effect)
    run_id = await cut_off(bench, gate.agent, lambda: ledger["pay"])
    second = await bench.runtime(model := paying())

    result = await take_over(second, run_id, gate.agent)

    assert (result.status, result.answer) == ("done", "all done")
    assert ledger["pay"] == 2
    assert results(model.requests[-1]) == [("pay", "success", "paid 1")]
    assert await starts(second, run_id) == 2


async def test_a_keyed_call_is_sent_again_with_the_same_key(bench: Bench, ledger: Ledger) -> None:
    gate = Gate(ledger, keyed(ttl_s=60))
    run_id = await cut_off(bench, gate.agent, lambda: ledger["pay"])
    second = await bench.runtime(paying())

    result = await take_over(second, run_id, gate.agent)

    assert result.status == "done"
    assert len(gate.keys) == 2
    assert len(set(gate.keys)) == 1


async def test_a_keyed_call_is_not_sent_again_after_its_time(bench: Bench, ledger: Ledger) -> None:
    gate = Gate(ledger, keyed(ttl_s=0.05))
    run_id = await cut_off(bench, gate.agent, lambda: ledger["pay"])
    second = await bench.runtime(paying())

    result = await take_over(second, run_id, gate.agent)

    assert result.status == "waiting"
    (request,) = await second.requests(run_id)
    assert request.question.kind == "in_doubt"
    assert ledger["pay"] == 1


async def test_the_time_of_a_key_counts_from_the_first_start_not_from_the_last(
    bench: Bench,
) -> None:
    """Two workers die: the second restart is past the key's time although the first was not."""
    ledger = Ledger()

    @tool(effect=keyed(ttl_s=2 * QUICK), timeout_s=5.0)
    async def pay(ctx: ToolContext) -> str:
        ledger.record("pay")
        await asyncio.sleep(60)
        return "paid"

    agent = Agent("desk", tools=[pay])
    run_id = await cut_off(bench, agent, lambda: ledger["pay"])
    store = await bench.store()
    second = await bench.runtime(paying(), store=store, lease_s=QUICK)
    working = asyncio.create_task(take_over(second, run_id, agent))
    await until(lambda: ledger["pay"] == 2)
    await asyncio.sleep(0.15)
    await die(store, working)
    third = await bench.runtime(paying())

    result = await take_over(third, run_id, agent)

    assert result.status == "waiting"
    assert ledger["pay"] == 2


async def test_an_unsafe_call_is_never_started_again_and_a_person_is_asked(
    bench: Bench, ledger: Ledger
) -> None:
    gate = Gate(ledger, "unsafe")
    run_id = await cut_off(bench, gate.agent, lambda: ledger["pay"])
    second = await bench.runtime(paying())

    for _ in range(3):  # looking again changes nothing
        result = await take_over(second, run_id, gate.agent)
        assert result.status == "waiting"

    (request,) = await second.requests(run_id)
    assert (request.question.kind, request.question.tool) == ("in_doubt", "pay")
    assert "may have taken effect" in request.question.reason
    assert ledger["pay"] == 1
    assert await starts(second, run_id) == 1


@pytest.mark.parametrize(
    ("says", "status", "count", "shown"),
    [
        (lambda: done("it was paid"), "done", 1, "it was paid"),
        (lambda: cannot_tell("the bank is closed"), "waiting", 1, "the bank is closed"),
        (lambda: 1 / 0, "waiting", 1, "ZeroDivisionError"),
        (lambda: "yes", "waiting", 1, "the check returned str"),
    ],
    ids=["done", "cannot_tell", "raises", "nonsense"],
)
async def test_a_probe_decides_what_becomes_of_a_gap(
    bench: Bench, ledger: Ledger, says: Callable[[], Any], status: str, count: int, shown: str
) -> None:
    asked: list[str] = []

    def check(key: str, amount: int) -> Any:
        asked.append(key)
        return says()

    gate = Gate(ledger, probed(check=check))
    run_id = await cut_off(bench, gate.agent, lambda: ledger["pay"])
    second = await bench.runtime(model := paying())

    result = await take_over(second, run_id, gate.agent)

    assert (result.status, ledger["pay"]) == (status, count)
    assert set(asked) == set(gate.keys)
    if status == "waiting":
        (request,) = await second.requests(run_id)
        assert shown in request.question.reason
    else:
        assert results(model.requests[-1])[0][2] == shown


async def test_not_done_before_the_unlock_time_sleeps_and_runs_after_it(
    bench: Bench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsm_agent.engine.calls.longest_s", lambda tool: 0.6)
    probes: list[int] = []

    def check(key: str) -> Any:
        probes.append(ledger["pay"])
        return not_done()

    gate = Gate(ledger, probed(check=check))
    run_id = await cut_off(bench, gate.agent, lambda: ledger["pay"])
    second = await bench.runtime(paying())

    first = await take_over(second, run_id, gate.agent)
    assert first.status == "sleeping"
    assert ledger["pay"] == 1

    async def is_due() -> bool:
        return run_id in await second.store.due()

    await until(is_due)
    result = await second.work(run_id, gate.agent)

    assert (result.status, ledger["pay"]) == ("done", 2)
    assert len(probes) == 2  # asked again, not believed from before


async def test_a_second_start_that_times_out_is_probed_anew_and_not_run_on_the_old_word(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsm_agent.engine.calls.longest_s", lambda tool: 0.0)
    ledger = Ledger()

    def check(key: str) -> Any:
        ledger.record("probe")
        return not_done() if ledger["probe"] == 1 else done("paid after all")

    @tool(effect=probed(check=check), timeout_s=0.05)
    async def pay() -> str:
        ledger.record("pay")
        await asyncio.sleep(60)
        return "paid"

    agent = Agent("desk", tools=[pay])
    run_id = await cut_off(bench, agent, lambda: ledger["pay"])
    second = await bench.runtime(model := paying())

    await take_over(second, run_id, agent)

    assert ledger == {"pay": 2, "probe": 2}
    assert results(model.requests[-1]) == [("pay", "success", "paid after all")]


# -- a gap in a batch -----------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_only_the_calls_without_a_result_are_handled_and_order_stays(
    bench: Bench, position: int
) -> None:
    ledger = Ledger()

    @tool(effect="idempotent", timeout_s=5.0)
    async def put(n: int) -> str:
        if ledger.record(f"put{n}") == 1 and n == position:
            await asyncio.sleep(60)
        return f"put {n}"

    agent = Agent("desk", tools=[put])

    def model() -> ScriptedModel:
        return turns(ask(*(("put", {"n": n}) for n in range(3))), finish())

    store = await bench.store()
    first = await bench.runtime(model(), store=store, lease_s=QUICK)
    run_id = await first.start(agent, "Put.")
    working = asyncio.create_task(first.work(run_id, agent))
    await until(lambda: bench.has_settled(run_id, 2))
    await die(store, working)
    second = await bench.runtime(shown := model())

    result = await take_over(second, run_id, agent)

    assert result.status == "done"
    assert ledger == {f"put{n}": 2 if n == position else 1 for n in range(3)}
    assert [text for _, _, text in results(shown.requests[-1])] == ["put 0", "put 1", "put 2"]


# -- settling by a person -------------------------------------------------------------------------


async def in_doubt(bench: Bench, ledger: Ledger) -> tuple[Gate, str, Any, Any, ScriptedModel]:
    gate = Gate(ledger, "unsafe")
    run_id = await cut_off(bench, gate.agent, lambda: ledger["pay"])
    second = await bench.runtime(model := paying())
    await take_over(second, run_id, gate.agent)
    (request,) = await second.requests(run_id)
    return gate, run_id, second, request, model


async def test_it_happened_becomes_the_result(bench: Bench, ledger: Ledger) -> None:
    gate, run_id, second, request, model = await in_doubt(bench, ledger)

    await second.decide(run_id, request.ask_id, "happened", by="mia", answer="paid, ref 7")
    result = await second.work(run_id, gate.agent)

    assert (result.status, ledger["pay"]) == ("done", 1)
    assert results(model.requests[-1]) == [("pay", "success", "paid, ref 7")]


async def test_nobody_knows_becomes_an_honest_result(bench: Bench, ledger: Ledger) -> None:
    gate, run_id, second, request, model = await in_doubt(bench, ledger)

    await second.decide(run_id, request.ask_id, "fail", by="mia", reason="the bank is closed")
    result = await second.work(run_id, gate.agent)

    assert (result.status, ledger["pay"]) == ("done", 1)
    ((_, status, text),) = results(model.requests[-1])
    assert status == "in_doubt"
    assert "the bank is closed" in text


async def test_run_it_again_is_locked_while_the_old_worker_may_be_at_it(
    bench: Bench, ledger: Ledger
) -> None:
    _, run_id, second, request, _ = await in_doubt(bench, ledger)

    with pytest.raises(AskLocked):
        await second.decide(run_id, request.ask_id, "rerun", by="mia")

    assert request.unlock_ms > await second.store.now_ms() + 2000
    assert ledger["pay"] == 1


async def test_run_it_again_starts_it_once_more_with_the_same_key(
    bench: Bench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsm_agent.engine.calls.longest_s", lambda tool: 0.0)
    gate, run_id, second, request, model = await in_doubt(bench, ledger)

    await second.decide(run_id, request.ask_id, "rerun", by="mia")
    result = await second.work(run_id, gate.agent)

    assert (result.status, ledger["pay"]) == ("done", 2)
    assert len(set(gate.keys)) == 1
    assert results(model.requests[-1]) == [("pay", "success", "paid 1")]


# -- time limits ----------------------------------------------------------------------------------


def hanging(ledger: Ledger, effect: Effect | str, *, until_call: int = 99, **more: Any) -> Agent:
    @tool(name="pay", effect=effect, timeout_s=0.03, **more)  # type: ignore[call-overload,untyped-decorator]
    async def pay(ctx: ToolContext) -> str:
        ledger.record(ctx.idempotency_key)
        if ledger.record("pay") < until_call:
            await asyncio.sleep(60)
        return "paid"

    return Agent("desk", tools=[pay])


async def test_a_harmless_call_that_hangs_is_a_timeout_for_the_model(
    bench: Bench, ledger: Ledger
) -> None:
    runtime = await bench.runtime(model := paying())

    result = await runtime.run(hanging(ledger, "read"), "Pay.")

    assert result.status == "done"
    assert results(model.requests[-1])[0][1] == "timeout"


async def test_a_keyed_call_that_hangs_is_sent_once_more_with_its_key(
    bench: Bench, ledger: Ledger
) -> None:
    runtime = await bench.runtime(model := paying())

    result = await runtime.run(hanging(ledger, keyed(), until_call=2), "Pay.")

    assert result.status == "done"
    assert sorted(ledger.values()) == [2, 2]
    assert results(model.requests[-1]) == [("pay", "success", "paid")]


async def test_a_keyed_call_that_hangs_twice_is_in_doubt(bench: Bench, ledger: Ledger) -> None:
    runtime = await bench.runtime(paying())

    result = await runtime.run(hanging(ledger, keyed()), "Pay.")

    assert (result.status, ledger["pay"]) == ("waiting", 2)
    (request,) = await runtime.requests(result.run_id)
    assert "time limit" in request.question.reason


async def test_an_unsafe_call_that_hangs_is_in_doubt_at_once(bench: Bench, ledger: Ledger) -> None:
    runtime = await bench.runtime(paying())

    result = await runtime.run(hanging(ledger, "unsafe"), "Pay.")

    assert (result.status, ledger["pay"]) == ("waiting", 1)
    (request,) = await runtime.requests(result.run_id)
    assert "time limit" in request.question.reason


async def test_a_probed_call_that_hangs_is_probed(bench: Bench, ledger: Ledger) -> None:
    runtime = await bench.runtime(model := paying())

    result = await runtime.run(
        hanging(ledger, probed(check=lambda key: done("the bank has it"))), "Pay."
    )

    assert (result.status, ledger["pay"]) == ("done", 1)
    assert results(model.requests[-1]) == [("pay", "success", "the bank has it")]


async def test_a_thread_that_cannot_be_stopped_is_not_run_again_on_a_probes_word(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsm_agent.engine.calls.longest_s", lambda tool: 0.0)
    ledger, release = Ledger(), threading.Event()

    @tool(effect=probed(check=lambda key: not_done()), timeout_s=0.03)
    def pay() -> str:
        ledger.record("pay")
        release.wait(10)
        return "paid"

    runtime = await bench.runtime(paying())
    try:
        result = await runtime.run(Agent("desk", tools=[pay]), "Pay.")
    finally:
        release.set()

    assert (result.status, ledger["pay"]) == ("waiting", 1)
    (request,) = await runtime.requests(result.run_id)
    assert "may still be running" in request.question.reason


# -- changed code ---------------------------------------------------------------------------------


def desk(version: str = "1", effect: Any = "unsafe", *, extra: bool = False) -> Agent:
    if extra:

        @tool(name="pay", effect=effect, version=version)
        async def changed(ctx: ToolContext, amount: int, currency: str) -> str:
            return "paid"

        return Agent("desk", tools=[changed])

    @tool(name="pay", effect=effect, version=version)
    async def pay(ctx: ToolContext, amount: int = 1) -> str:
        return "paid"

    return Agent("desk", tools=[pay])


async def test_a_keyed_call_is_not_sent_again_under_another_key(
    bench: Bench, ledger: Ledger
) -> None:
    gate = Gate(ledger, keyed())
    run_id = await cut_off(bench, gate.agent, lambda: ledger["pay"])
    second = await bench.runtime(paying())

    result = await take_over(second, run_id, desk("2", keyed()))

    assert result.status == "waiting"
    (request,) = await second.requests(run_id)
    assert "another key" in request.question.reason


async def test_a_class_that_was_loosened_does_not_speak_for_what_was_started_before(
    bench: Bench, ledger: Ledger
) -> None:
    gate = Gate(ledger, "unsafe")
    run_id = await cut_off(bench, gate.agent, lambda: ledger["pay"])
    second = await bench.runtime(paying())

    result = await take_over(second, run_id, desk("1", "idempotent"))

    assert result.status == "waiting"
    (request,) = await second.requests(run_id)
    assert "started as unsafe" in request.question.reason


async def test_a_started_call_that_no_longer_fits_is_in_doubt_and_not_called_unmade(
    bench: Bench, ledger: Ledger
) -> None:
    gate = Gate(ledger, "unsafe")
    run_id = await cut_off(bench, gate.agent, lambda: ledger["pay"], paying(amount=3))
    second = await bench.runtime(model := paying(amount=3))

    result = await take_over(second, run_id, desk(extra=True))

    assert result.status == "waiting"
    (request,) = await second.requests(run_id)
    assert "takes other arguments now" in request.question.reason
    await second.decide(run_id, request.ask_id, "happened", by="mia", answer="paid")
    assert (await second.work(run_id, desk(extra=True))).status == "done"
    assert results(model.requests[-1]) == [("pay", "success", "paid")]


async def test_a_started_call_whose_tool_is_gone_parks_the_run_and_names_it(
    bench: Bench, ledger: Ledger
) -> None:
    gate = Gate(ledger, "unsafe")
    run_id = await cut_off(bench, gate.agent, lambda: ledger["pay"])
    second = await bench.runtime(paying())

    with pytest.raises(CodeChanged, match="'pay'"):
        await take_over(second, run_id, Agent("desk"))

    head = await second.store.head(RunId(run_id))
    assert (head.lease_until_ms, head.due_ms) == (0, None)
    result = await second.work(run_id, gate.agent)  # the old code still can
    assert result.status == "waiting"


async def test_an_approved_call_of_changed_code_is_asked_again_each_time_under_a_new_id(
    bench: Bench,
) -> None:
    def version(number: str, effects: list[str]) -> Agent:
        @tool(name="pay", approval="always", version=number)
        async def pay() -> str:
            effects.append(number)
            return "paid"

        return Agent("desk", tools=[pay])

    effects: list[str] = []
    runtime = await bench.runtime(paying())
    result = await runtime.run(version("1", effects), "Pay.")
    run_id, seen = result.run_id, []
    for number in ("2", "3", "4"):
        (request,) = await runtime.requests(run_id)
        seen.append(request.ask_id)
        await runtime.decide(run_id, request.ask_id, "approve", by="mia")
        result = await runtime.work(run_id, version(number, effects))
        assert (result.status, effects) == ("waiting", [])
    (request,) = await runtime.requests(run_id)
    await runtime.decide(run_id, request.ask_id, "approve", by="mia")

    result = await runtime.work(run_id, version("4", effects))

    assert (result.status, effects) == ("done", ["4"])
    assert len({*seen, request.ask_id}) == 4


async def test_an_approved_call_that_no_longer_fits_parks_the_run_and_names_the_tool(
    bench: Bench,
) -> None:
    @tool(name="pay", approval="always")
    async def pay(amount: int) -> str:
        return "paid"

    runtime = await bench.runtime(paying(amount=3))
    result = await runtime.run(Agent("desk", tools=[pay]), "Pay.")
    (request,) = await runtime.requests(result.run_id)
    await runtime.decide(result.run_id, request.ask_id, "approve", by="mia")

    with pytest.raises(CodeChanged, match="of pay, which was approved: pay takes other arguments"):
        await runtime.work(result.run_id, desk(extra=True))

    assert (await runtime.work(result.run_id, Agent("desk", tools=[pay]))).status == "done"


async def test_a_tool_that_is_gone_does_not_cut_off_its_neighbours(
    bench: Bench, ledger: Ledger
) -> None:
    """One call is approved for a tool that this code lacks; the other runs to its end first."""

    def agent(*, with_pay: bool) -> Agent:
        @tool(approval="always")
        async def pay() -> str:
            ledger.record("pay")
            return "paid"

        @tool(approval="always")
        async def send() -> str:
            await asyncio.sleep(0.05)
            ledger.record("send")
            return "sent"

        return Agent("desk", tools=[pay, send] if with_pay else [send])

    model = turns(ask(("pay", {}), ("send", {})), finish())
    runtime = await bench.runtime(model)
    result = await runtime.run(agent(with_pay=True), "Go.")
    for request in await runtime.requests(result.run_id):
        await runtime.decide(result.run_id, request.ask_id, "approve", by="mia")

    with pytest.raises(CodeChanged, match="'pay'"):
        await runtime.work(result.run_id, agent(with_pay=False))

    assert ledger == {"send": 1}
    assert [status for _, status in await bench.settled(result.run_id)] == ["success"]
    assert (await runtime.work(result.run_id, agent(with_pay=True))).status == "done"
    assert ledger == {"send": 1, "pay": 1}


# -- losing the run -------------------------------------------------------------------------------


async def test_a_worker_that_loses_its_run_stops_the_tool_and_files_what_it_saw(
    bench: Bench, ledger: Ledger
) -> None:
    stopped: list[bool] = []

    @tool(timeout_s=5.0)
    async def pay() -> str:
        ledger.record("pay")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(True)
            raise
        return "paid"

    agent = Agent("desk", tools=[pay])
    store = await bench.store()
    first = await bench.runtime(paying(), store=store, lease_s=QUICK, owner="sleeper")
    run_id = RunId(await first.start(agent, "Pay."))
    working = asyncio.create_task(first.work(run_id, agent))
    await until(lambda: ledger["pay"])
    await steal(await bench.store(), run_id)
    before = len(store.commits)

    with pytest.raises(LeaseLost):
        await working

    assert stopped == [True]
    assert len(store.commits) == before
    (report,) = await first.orphans(run_id)
    assert (report.owner, report.status) == ("sleeper", "")
    assert "cut off" in str(report)


async def test_a_start_whose_record_took_too_long_is_taken_back_and_made_anew(
    bench: Bench, ledger: Ledger
) -> None:
    """'Run it again' unlocks by the record: a call that begins long after it could outlive it."""
    clock = ManualClock()

    @tool(timeout_s=1.0)
    async def pay() -> str:
        ledger.record("pay")
        return "paid"

    @tool(effect="read")
    async def look() -> str:
        ledger.record("look")
        return "seen"

    agent = Agent("desk", tools=[pay, look])
    store = await bench.store()
    slow = [3.0]

    async def acknowledge(commit: Commit) -> None:
        facts = [fact for body in commit.bodies for fact in codec.decode(body).deltas]
        if slow and any(isinstance(fact, Intended) for fact in facts):
            clock.advance(slow.pop())

    store.after_commit = acknowledge
    model = turns(ask(("pay", {}), ("look", {})), finish())
    runtime = await bench.runtime(model, store=store, clock=clock)
    result = await runtime.run(agent, "Pay.")

    assert (result.status, dict(ledger)) == ("done", {"pay": 1, "look": 1})
    facts = [d for e in await runtime.history(result.run_id) for d in e.record.deltas]
    (withheld,) = [fact for fact in facts if isinstance(fact, Withheld)]
    assert "took 3.0 s" in withheld.reason
    starts = [f for f in facts if isinstance(f, Intended) and f.call_id == withheld.call_id]
    assert len(starts) == 2
    assert starts[0].key == starts[1].key


async def steal(store: Watched, run_id: RunId) -> None:
    """What a takeover leaves in the head, while the old worker believes in its lease."""
    head = store._of(run_id).head
    await store._line.call("HINCRBY", head, "t", 1)
    await store._line.call("HSET", head, "k", "thief", "w", "thief")


@pytest.mark.parametrize("others", [0, 2])
async def test_a_result_that_came_too_late_is_evidence_and_no_state(
    bench: Bench, ledger: Ledger, others: int
) -> None:
    store = await bench.store()
    model = turns(ask(("pay", {}), *[("hang", {})] * others), finish())
    first = await bench.runtime(model, store=store, owner="sleeper")

    @tool(timeout_s=5.0)
    async def pay() -> str:
        ledger.record("pay")
        await steal(await bench.store(), run_id)
        return "paid, ref 7"

    @tool
    async def hang() -> str:
        await asyncio.sleep(60)
        return "never"

    agent = Agent("desk", tools=[pay, hang])
    run_id = RunId(await first.start(agent, "Pay."))

    with pytest.raises(LeaseLost):
        await first.work(run_id, agent)

    reports = await first.orphans(run_id)
    assert [(r.status, r.text) for r in reports if r.call_id == "c4-0"] == [
        ("success", "paid, ref 7")
    ]
    assert await bench.settled(run_id) == []


@pytest.mark.parametrize("point", range(7))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_run_stolen_at_any_commit_is_finished_by_the_thief_with_each_effect_once(
    bench: Bench, point: int, when: str
) -> None:
    effects = Ledger()

    @tool(effect=keyed())
    async def hold(ctx: ToolContext) -> str:
        effects.record(ctx.idempotency_key)
        return "held"

    @tool(effect="unsafe")
    async def pay() -> str:
        effects.record("pay")
        return "paid"

    agent = Agent("desk", tools=[hold, pay])
    store, other = await bench.store(), await bench.store()
    model = turns(ask(("hold", {}), ("pay", {})), ask(("hold", {})), finish("end"))
    first = await bench.runtime(model, store=store)
    second = await bench.runtime(model, store=other)
    run_id = RunId(await first.start(agent, "Pay."))

    async def strike(commit: Any) -> None:
        if len(store.commits) == point + (when == "after"):
            # As if the lease had run out while the worker slept.
            await other._line.call("HSET", other._of(run_id).head, "l", "1")
            await settle(second, run_id, agent)

    setattr(store, f"{when}_commit", strike)
    with suppress(LeaseLost, RunClosed):
        await first.work(run_id, agent)
    store.before_commit = store.after_commit = None
    await settle(second, run_id, agent)

    run = await bench.run_of(run_id)
    assert run.answer
    assert run.answer.text == "end"
    assert effects["pay"] <= 1
    assert len(effects) <= 3  # two keys, and the one payment


async def settle(runtime: Any, run_id: RunId, agent: Agent) -> None:
    """Work to the end; a person says of what is in doubt that it happened."""
    while (await runtime.store.head(run_id)).status not in ("done", "error"):
        await runtime.work(run_id, agent)
        for request in await runtime.requests(run_id):
            await runtime.decide(run_id, request.ask_id, "happened", by="mia", answer="paid")


async def test_a_lease_lost_before_the_start_starts_nothing(bench: Bench, ledger: Ledger) -> None:
    @tool
    async def pay() -> str:
        ledger.record("pay")
        return "paid"

    agent = Agent("desk", tools=[pay])
    store = await bench.store()
    runtime = await bench.runtime(paying(), store=store)
    run_id = RunId(await runtime.start(agent, "Pay."))
    thief = await bench.store()

    async def before(commit: Any) -> None:
        if len(store.commits) == 1:
            await steal(thief, run_id)

    store.before_commit = before
    with pytest.raises(LeaseLost):
        await runtime.work(run_id, agent)

    assert ledger["pay"] == 0


# -- poison ---------------------------------------------------------------------------------------


async def test_a_step_that_kills_its_workers_is_given_up_with_every_call_answered(
    bench: Bench, ledger: Ledger
) -> None:
    @tool(effect="read", timeout_s=5.0)
    async def pay() -> str:
        ledger.record("pay")
        await asyncio.sleep(60)
        return "never"

    agent = Agent("desk", tools=[pay])
    run_id = await cut_off(bench, agent, lambda: ledger["pay"])
    for number in (2, 3):
        store = await bench.store()
        runtime = await bench.runtime(paying(), store=store, lease_s=0.2)
        working = asyncio.create_task(take_over(runtime, run_id, agent))
        await until(lambda number=number: ledger["pay"] == number)
        await die(store, working)
    last = await bench.runtime(paying(), max_recoveries=2)

    result = await take_over(last, run_id, agent)

    assert (result.status, result.reason) == ("error", "poison")
    assert "ACT" in result.message
    assert ledger["pay"] == 3
    run = await bench.run_of(run_id)
    assert not run.has_unsettled_calls
    assert run.takeovers == 3


async def test_a_crash_loop_in_think_never_spends_more_than_its_cap(bench: Bench) -> None:
    """Each dead attempt may have been billed, so its reserve counts, the last one's too."""
    agent = Agent("desk", max_tokens=1000)
    limits = Limits(tokens=3500)
    asked = 0
    run_id = ""
    for _ in range(5):
        store = await bench.store()

        async def hang(request: Any) -> Any:
            nonlocal asked
            asked += 1
            await asyncio.sleep(60)

        runtime = await bench.runtime(ScriptedModel(hang), store=store, lease_s=0.2)
        run_id = run_id or await runtime.start(agent, "Go.", limits=limits)
        before = asked
        working = asyncio.create_task(take_over(runtime, run_id, agent))
        await until(lambda: asked > before or working.done())  # noqa: B023
        if working.done():
            break
        await die(store, working)

    result = await working

    assert (result.status, result.reason) == ("error", "tokens")
    assert asked == 3
    assert result.spent_tokens <= limits.tokens
