"""Calls in processes of their own, in a run: what a death midway leaves behind."""

from __future__ import annotations

from fsm_agent import Agent
from tests.conftest import Bench, ask, finish, results, turns
from tests.unit import isolated


async def test_a_call_in_a_process_of_its_own_gives_its_result(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(ask(("add", {"a": 41})), finish("ok")))

    result = await runtime.run(Agent("a", tools=[isolated.add]), "Add.")

    assert result.answer == "ok"
    assert results(model.requests[-1]) == [("add", "success", '{"sum": 42}')]


async def test_a_death_of_an_unsafe_call_is_put_before_a_person_with_its_cause(
    bench: Bench,
) -> None:
    agent = Agent("a", tools=[isolated.die_unsafe])
    runtime = await bench.runtime(model := turns(ask(("die_unsafe", {})), finish("ok")))

    waiting = await runtime.run(agent, "Die.")

    assert waiting.status == "waiting"
    (request,) = await runtime.requests(waiting.run_id)
    assert request.question.kind == "in_doubt"
    assert "exit code 9" in request.question.reason
    await runtime.decide(waiting.run_id, request.ask_id, "happened", by="mia", answer="it did")
    result = await runtime.work(waiting.run_id, agent)
    assert (result.answer, results(model.requests[-1])[0][2]) == ("ok", "it did")


async def test_a_death_of_a_keyed_call_is_sent_once_more_and_then_asked_about(
    bench: Bench,
) -> None:
    agent = Agent("a", tools=[isolated.die_keyed])
    runtime = await bench.runtime(turns(ask(("die_keyed", {})), finish("ok")))

    waiting = await runtime.run(agent, "Die.")

    assert waiting.status == "waiting"
    (call,) = (await bench.run_of(waiting.run_id)).calls
    assert call.starts == 2


async def test_a_death_of_a_harmless_call_is_a_result_for_the_model(bench: Bench) -> None:
    agent = Agent("a", tools=[isolated.misbehave])
    runtime = await bench.runtime(
        model := turns(ask(("misbehave", {"how": "segfault"})), finish("ok"))
    )

    result = await runtime.run(agent, "Die.")

    assert result.answer == "ok"
    ((_, status, text),) = results(model.requests[-1])
    assert status == "error"
    assert "SIGSEGV" in text
