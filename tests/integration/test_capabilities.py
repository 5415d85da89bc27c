"""Solve, plan, research, chat and typed answers: settings of the one loop, on a real store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from checkpoints.errors import RunNotFound
from fsm_agent import Agent, Limits, Result, Runtime, terminate, tool, with_sources
from fsm_agent.capabilities.chat import chat
from fsm_agent.capabilities.phase import Capability, Phase
from fsm_agent.capabilities.plan import plan
from fsm_agent.capabilities.react import react
from fsm_agent.capabilities.research import research
from fsm_agent.capabilities.solve import solve
from fsm_agent.errors import UsageError
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.run.content import AssistantMessage, NoteMessage, UserMessage
from fsm_agent.run.delta import AnyDelta, Entered, Planned, Stepped
from fsm_agent.run.event import LiveEvent
from tests.conftest import USAGE, Bench, ScriptedModel, ask, broken, finish, results, think, turns


def say(label: str | None, text: str) -> Reply:
    return Reply(label=label, text=text, usage=USAGE)


def makes_plan(*steps: str) -> Reply:
    return say("PLAN", "\n".join(f"{n}. {step}" for n, step in enumerate(steps, 1)))


def allowed(request: StepRequest) -> tuple[str, ...]:
    assert request.protocol
    return request.protocol.allowed


def notes(request: StepRequest) -> list[str]:
    return [m.text for m in request.messages if isinstance(m, NoteMessage)]


async def facts(runtime: Runtime, result: Result, *kinds: type) -> list[AnyDelta]:
    history = await runtime.history(result.run_id)
    return [d for event in history for d in event.record.deltas if isinstance(d, kinds)]


async def phases(runtime: Runtime, result: Result) -> list[str]:
    return [fact.phase for fact in await facts(runtime, result, Entered)]  # type: ignore[union-attr]


# -- solve ----------------------------------------------------------------------------------------


@tool(effect="read")
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: a thing"


async def test_a_plan_is_made_its_steps_are_done_and_the_answer_ends_the_run(bench: Bench) -> None:
    model = turns(
        makes_plan("Look it up.", "Write it down."),
        ask(("look_up", {"word": "cat"})),
        say("FINISH", "a thing"),
        think("how to put it"),
        say("FINISH", "written"),
        finish("A cat is a thing."),
    )
    runtime = await bench.runtime(model)

    result = await runtime.run(solve("s", tools=[look_up]), "What is a cat?")

    assert (result.status, result.answer, result.is_completed) == (
        "done", "A cat is a thing.", True,
    )  # fmt: skip
    assert await phases(runtime, result) == ["plan", "step", "step", "answer"]
    run = await bench.run_of(result.run_id)
    assert [(step.text, step.status) for step in run.plan] == [
        ("Look it up.", "done"), ("Write it down.", "done"),
    ]  # fmt: skip
    assert [allowed(request) for request in model.requests] == [
        ("THINK", "PLAN"),
        *[("THINK", "TOOL", "FINISH", "REPLAN")] * 4,
        ("FINISH",),
    ]
    assert [bool(request.tools) for request in model.requests] == [False, *[True] * 4, False]
    assert "2. Write it down. [now]" in model.requests[3].instructions
    assert "1. Look it up. [done]" in model.requests[3].instructions


async def test_replan_goes_up_with_its_reason_and_keeps_what_is_done(bench: Bench) -> None:
    model = turns(
        makes_plan("Look it up.", "Sell it."),
        say("FINISH", "a thing"),
        say("REPLAN", "nobody buys it"),
        makes_plan("Give it away."),
        say("FINISH", "given away"),
        finish("It is gone."),
    )
    runtime = await bench.runtime(model)

    result = await runtime.run(solve("s", tools=[look_up]), "Get rid of it.")

    assert result.answer == "It is gone."
    run = await bench.run_of(result.run_id)
    assert [(step.text, step.status) for step in run.plan] == [
        ("Look it up.", "done"), ("Sell it.", "dropped"), ("Give it away.", "done"),
    ]  # fmt: skip
    assert "2. Sell it. [dropped]" in model.requests[3].instructions
    assert "nobody buys it" in [m.text for m in model.requests[3].messages]


async def test_a_model_that_always_replans_comes_to_an_end(bench: Bench) -> None:
    def answer(request: StepRequest) -> Reply:
        labels = allowed(request)
        if "PLAN" in labels:
            return makes_plan("Try.", "Try again.")
        return say("REPLAN", "no") if "REPLAN" in labels else say("FINISH", "done at last")

    runtime = await bench.runtime(model := ScriptedModel(answer))

    result = await runtime.run(solve("s", tools=[look_up], replans=2), "Try.")

    assert (result.status, result.answer) == ("done", "done at last")
    assert len(await facts(runtime, result, Planned)) == 3
    assert sum("REPLAN" in allowed(request) for request in model.requests) == 2


async def test_a_plan_that_is_none_is_corrected(bench: Bench) -> None:
    model = turns(makes_plan(*"abc"), makes_plan("Do it."), say("FINISH", "x"), finish("done"))
    runtime = await bench.runtime(model)

    result = await runtime.run(solve("s", max_steps=2), "Do it.")

    assert result.answer == "done"
    assert any("3 items, 2 are possible" in note for note in notes(model.requests[1]))


async def test_equal_results_of_different_steps_are_no_loop(bench: Bench) -> None:
    steps = [f"Part {n}." for n in range(6)]
    model = turns(makes_plan(*steps), *[say("FINISH", "done")] * 6, finish("all done"))
    runtime = await bench.runtime(model)

    result = await runtime.run(solve("s"), "Do it.")

    assert (result.answer, result.reason) == ("all done", "")


async def test_a_step_without_end_is_stopped_by_the_budget_with_an_answer(bench: Bench) -> None:
    def answer(request: StepRequest) -> Reply:
        labels = allowed(request)
        if "PLAN" in labels:
            return makes_plan("Think.")
        if labels == ("FINISH",):
            return finish("as far as I came")
        return think(f"thought {len(request.messages)}")

    runtime = await bench.runtime(ScriptedModel(answer))

    result = await runtime.run(solve("s", limits=Limits(turns=6)), "Think.")

    assert (result.status, result.answer, result.reason) == ("done", "as far as I came", "turns")


async def test_a_tool_of_another_phase_is_refused_even_though_it_exists(bench: Bench) -> None:
    model = turns(
        makes_plan("Look."),
        ask(("plan", {"steps": ["Take over."]})),
        say("FINISH", "x"),
        finish("done"),
    )
    runtime = await bench.runtime(model)

    result = await runtime.run(solve("s", tools=[look_up]), "Look.")

    (refused,) = results(model.requests[2])
    assert refused[:2] == ("plan", "error")
    assert "plan is not offered now. Offered: look_up" in refused[2]
    assert len(await facts(runtime, result, Planned)) == 1


# -- plan: shown to a person ----------------------------------------------------------------------

PLANS = (makes_plan("Buy it.", "Burn it."), say("FINISH", "ok"), finish("done"))


async def test_a_plan_waits_for_a_person_and_nothing_of_it_is_done_before(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(*PLANS))
    agent = plan("p", tools=[look_up])

    result = await runtime.run(agent, "Do it.")

    assert (result.status, len(model.requests)) == ("waiting", 1)
    (request,) = await runtime.requests(result.run_id)
    assert request.question.tool == "plan"
    assert json.loads(request.question.arguments) == {"steps": ["Buy it.", "Burn it."]}


async def test_a_person_may_change_the_plan(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(*PLANS))
    agent = plan("p", tools=[look_up])
    waiting = await runtime.run(agent, "Do it.")

    await runtime.decide(
        waiting.run_id, waiting.asks[0], "edit", by="mia",
        arguments='{"steps": ["Buy it.", "  "]}', agent=agent,
    )  # fmt: skip
    result = await runtime.work(waiting.run_id, agent)

    assert (result.status, result.answer) == ("done", "done")
    (planned,) = await facts(runtime, result, Planned)
    assert planned == Planned(("Buy it.",))
    assert "Burn it." not in model.requests[1].instructions
    assert any('{"steps":["Buy it.","  "]}' in note for note in notes(model.requests[1]))


async def test_a_plan_that_is_rejected_is_made_anew_with_the_reason(bench: Bench) -> None:
    model = turns(makes_plan("Burn it."), makes_plan("Keep it."), say("FINISH", "ok"), finish("ok"))
    runtime = await bench.runtime(model)
    agent = plan("p")
    first = await runtime.run(agent, "Do it.")

    await runtime.decide(first.run_id, first.asks[0], "reject", by="mia", reason="too hot")
    second = await runtime.work(first.run_id, agent)
    await runtime.decide(second.run_id, second.asks[0], "approve", by="mia")
    result = await runtime.work(first.run_id, agent)

    assert result.answer == "ok"
    assert any("too hot" in note for note in notes(model.requests[1]))
    assert [step.text for step in (await bench.run_of(result.run_id)).plan] == ["Keep it."]


async def test_words_in_place_of_a_decision_do_not_accept_the_plan(bench: Bench) -> None:
    model = turns(makes_plan("Burn it."), makes_plan("Keep it."), say("FINISH", "ok"), finish("ok"))
    runtime = await bench.runtime(model)
    agent = plan("p")
    first = await runtime.run(agent, "Do it.")

    await runtime.decide(first.run_id, first.asks[0], "answer", by="mia", answer="Rather keep it")
    second = await runtime.work(first.run_id, agent)

    assert second.status == "waiting"
    assert any("Rather keep it" in note for note in notes(model.requests[1]))
    assert await facts(runtime, second, Planned) == []


async def test_a_plan_that_a_person_emptied_is_not_taken(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(makes_plan("Burn it."), makes_plan("Keep it.")))
    agent = plan("p")
    first = await runtime.run(agent, "Do it.")

    await runtime.decide(
        first.run_id, first.asks[0], "edit", by="mia", arguments='{"steps": []}', agent=agent
    )
    second = await runtime.work(first.run_id, agent)

    assert second.status == "waiting"
    assert any("no items" in note for note in notes(model.requests[1]))


# -- research -------------------------------------------------------------------------------------


@tool(effect="read")
def search(about: str) -> Any:
    """Search."""
    from fsm_agent import Source

    return with_sources(f"facts about {about}", Source(f"On {about}", f"http://x/{about}"))


class Library:
    """A model that researches: the outline's questions, one search each, and a report."""

    def __init__(
        self,
        questions: Sequence[str],
        *,
        appends: Sequence[str] = (),
        report: str = "It is so [1].",
        clarifies: Sequence[Reply] = (Reply(label="BRIEF", text="All of it.", usage=USAGE),),
    ) -> None:
        self.questions, self.appends, self.report = questions, appends, report
        self.clarifies = clarifies

    def __call__(self, request: StepRequest) -> Reply:
        labels = allowed(request)
        spoken = [m for m in request.messages if isinstance(m, AssistantMessage)]
        if "BRIEF" in labels:
            return self.clarifies[min(len(spoken), len(self.clarifies) - 1)]
        if "OUTLINE" in labels:
            return say("OUTLINE", "\n".join(f"- {question}" for question in self.questions))
        if "APPEND" in labels:
            return self._researcher(request, spoken)
        return say("FINISH", self.report)

    def _researcher(self, request: StepRequest, spoken: Sequence[AssistantMessage]) -> Reply:
        task = request.messages[0].text
        if not spoken:
            return ask(("search", {"about": task}))
        if len(spoken) == 1 and self.appends and task in self.questions:
            return say("APPEND", "\n".join(self.appends))
        return finish(f"found: {task}")


async def test_questions_are_researched_by_child_runs_and_reported_with_sources(
    bench: Bench,
) -> None:
    questions = [f"q{n}" for n in range(5)]
    runtime = await bench.runtime(model := ScriptedModel(Library(questions)))

    result = await runtime.run(research("r", tools=[search]), "Find out.")

    assert (result.status, result.answer) == (
        "done", "It is so [1].\n\nSources\n[1] On q0 http://x/q0",
    )  # fmt: skip
    assert [s.url for s in result.sources] == [f"http://x/{q}" for q in questions]
    assert await phases(runtime, result) == ["clarify", "outline", "research", "report"]
    run = await bench.run_of(result.run_id)
    assert [step.status for step in run.plan] == ["done"] * 5
    told = notes(model.requests[-1])
    assert all(any(f"found: {question}" in note for note in told) for question in questions)
    assert any("[5] On q4 http://x/q4" in note for note in told)


async def test_questions_that_come_up_are_researched_too_boundedly(bench: Bench) -> None:
    library = Library(["q0", "q1"], appends=["new a", "Q1", "new b", "new c"])
    runtime = await bench.runtime(ScriptedModel(library))

    result = await runtime.run(research("r", tools=[search], appended=2, questions=2), "Find out.")

    run = await bench.run_of(result.run_id)
    assert [(step.text, step.status) for step in run.plan] == [
        ("q0", "done"), ("q1", "done"), ("new a", "done"), ("new b", "done"),
    ]  # fmt: skip
    assert [fact.is_more for fact in await facts(runtime, result, Planned)] == [False, True]  # type: ignore[union-attr]


async def test_a_person_is_asked_first_where_the_task_is_unclear(bench: Bench) -> None:
    clarifies = (ask(("ask_user", {"question": "Which cat?"})), say("BRIEF", "The big one."))
    runtime = await bench.runtime(ScriptedModel(Library(["q"], clarifies=clarifies)))
    agent = research("r", tools=[search])

    waiting = await runtime.run(agent, "Find out about the cat.")
    await runtime.decide(waiting.run_id, waiting.asks[0], "answer", by="mia", answer="the big one")
    result = await runtime.work(waiting.run_id, agent)

    assert waiting.status == "waiting"
    assert result.status == "done"


async def test_the_outline_may_be_shown_to_a_person(bench: Bench) -> None:
    runtime = await bench.runtime(ScriptedModel(Library(["q0", "q1"])))
    agent = research("r", tools=[search], clarify=False, review="always")
    waiting = await runtime.run(agent, "Find out.")

    await runtime.decide(
        waiting.run_id, waiting.asks[0], "edit", by="mia", arguments='{"steps": ["only this"]}'
    )
    result = await runtime.work(waiting.run_id, agent)

    assert [s.title for s in result.sources] == ["On only this"]


async def test_a_question_whose_run_fails_is_marked_and_the_report_is_written(bench: Bench) -> None:
    library = Library(["good", "bad"])

    def answer(request: StepRequest) -> Reply:
        if "APPEND" in allowed(request) and request.messages[0].text == "bad":
            return broken("truncated", f"cut {len(request.messages)}")
        return library(request)

    runtime = await bench.runtime(model := ScriptedModel(answer))

    result = await runtime.run(research("r", tools=[search]), "Find out.")

    assert result.status == "done"
    steps = [f for f in await facts(runtime, result, Stepped) if isinstance(f, Stepped)]
    assert [(step.step, step.status) for step in steps] == [(0, "done"), (1, "failed")]
    assert "2. bad [failed]" in model.requests[-1].instructions


@pytest.mark.parametrize(
    ("report", "asked", "listed"),
    [
        ("No brackets.", "cites none of its 2 sources", "[1] On q0 http://x/q0\n[2] On q1"),
        ("See [7].", "cites [7], and the sources are [1] to [2]", "[7] is not among the sources"),
        ("See [2] and [2024].", "", "Sources\n[2] On q1 http://x/q1"),
    ],
)
async def test_citations_are_checked_once_and_never_cost_the_report(
    bench: Bench, report: str, asked: str, listed: str
) -> None:
    runtime = await bench.runtime(model := ScriptedModel(Library(["q0", "q1"], report=report)))

    result = await runtime.run(research("r", tools=[search]), "Find out.")

    assert result.is_completed
    assert listed in (result.answer or "")
    corrected = [note for note in notes(model.requests[-1]) if "cannot be used" in note]
    assert [asked in note for note in corrected] == ([True] if asked else [])


# -- chat -----------------------------------------------------------------------------------------


async def test_a_run_goes_on_with_the_conversation_of_the_one_before(bench: Bench) -> None:
    model = turns(say("PAUSE", "One moment."), ask(("look_up", {"word": "x"})), finish("It is 5."))
    runtime = await bench.runtime(model)
    agent = chat("c", tools=[look_up])
    first = await runtime.run(agent, "How much is it?")

    model.answer = lambda request: finish("It was 4.")
    second = await runtime.run(agent, "And last year?", continues=first.run_id)
    third = await runtime.run(agent, "Thanks.", continues=second.run_id)

    assert third.status == "done"
    assert model.requests[-1].messages == (
        UserMessage("How much is it?"),
        AssistantMessage("PAUSE", "One moment."),
        AssistantMessage("FINISH", "It is 5."),
        UserMessage("And last year?"),
        AssistantMessage("FINISH", "It was 4."),
        UserMessage("Thanks."),
    )


async def test_the_conversation_is_on_record_and_needs_the_run_before_no_more(bench: Bench) -> None:
    runtime = await bench.runtime(turns(finish("It is 5.")))
    agent = chat("c")
    first = await runtime.run(agent, "How much?")
    run_id = await runtime.start(agent, "And now?", continues=first.run_id, run_id="second")
    again = await runtime.start(agent, "And now?", continues=first.run_id, run_id="second")

    run = await bench.run_of(run_id)

    assert again == run_id
    assert run.history == (UserMessage("How much?"), AssistantMessage("FINISH", "It is 5."))
    assert run.messages == (UserMessage("And now?"),)


async def test_a_long_conversation_is_carried_on_as_far_as_there_is_room(bench: Bench) -> None:
    runtime = await bench.runtime(model := ScriptedModel(lambda r: finish("word " * 200)))
    agent = chat("c", context_tokens=3_000)
    before = await runtime.run(agent, "message 0")
    for number in range(1, 12):
        before = await runtime.run(agent, f"message {number}", continues=before.run_id)

    run = await bench.run_of(before.run_id)
    assert run.carried
    assert isinstance(run.carried.messages[0], UserMessage)
    assert run.carried.left_out + len(run.carried.messages) == 22
    assert run.carried.messages[-2] == UserMessage("message 10")
    assert model.requests[-1].messages[0] == NoteMessage(
        f"[{run.carried.left_out} earlier messages are left out here.]"
    )
    assert model.requests[-1].messages[-1] == UserMessage("message 11")


async def test_one_endless_message_does_not_push_out_the_others(bench: Bench) -> None:
    runtime = await bench.runtime(model := ScriptedModel(lambda r: finish("word " * 20_000)))
    agent = chat("c", context_tokens=3_000)
    first = await runtime.run(agent, "Talk.")

    run = await bench.run_of(await runtime.start(agent, "More.", continues=first.run_id))

    assert [type(m) for m in run.history] == [UserMessage, AssistantMessage]
    assert "characters cut" in run.history[1].text
    assert len(model.requests) == 1


async def test_a_run_without_an_answer_says_so_in_the_conversation(bench: Bench) -> None:
    runtime = await bench.runtime(
        ScriptedModel(lambda r: broken("truncated", f"{len(r.messages)}"))
    )
    agent = chat("c")
    first = await runtime.run(agent, "How much?")

    run = await bench.run_of(await runtime.start(agent, "Well?", continues=first.run_id))

    assert first.status == "error"
    assert run.history[0] == UserMessage("How much?")
    assert "ended without an answer: repairs." in run.history[1].text


async def test_only_a_run_that_is_over_can_be_continued(bench: Bench) -> None:
    runtime = await bench.runtime(turns(finish("5")))
    agent = chat("c")
    waiting = await runtime.start(agent, "How much?")

    with pytest.raises(UsageError, match=r"is not over.*`say`"):
        await runtime.start(agent, "And?", continues=waiting)
    with pytest.raises(RunNotFound):
        await runtime.start(agent, "And?", continues="r-nowhere")


# -- react, and typed answers ---------------------------------------------------------------------


async def test_react_runs_on_native_calls_alone(bench: Bench) -> None:
    model = turns(
        msgspec.structs.replace(ask(("look_up", {"word": "cat"})), label=None),
        say(None, "A cat is a thing."),
    )
    runtime = await bench.runtime(model)

    result = await runtime.run(react("n", tools=[look_up]), "What is a cat?")

    assert (result.answer, result.turns) == ("A cat is a thing.", 2)
    assert model.requests[0].protocol is None


class Place(msgspec.Struct):
    city: str
    people: int


BERN = '{"city": "Bern", "people": 134000}'


async def test_a_typed_answer_is_checked_corrected_and_handed_over_as_a_value(bench: Bench) -> None:
    model = turns(finish("It is Bern."), finish('{"city": "Bern"}'), finish(f"```\n{BERN}\n```"))
    runtime = await bench.runtime(model)
    agent = Agent("a", output=Place)

    result = await runtime.run(agent, "Which city?")

    assert result.value == Place("Bern", 134000)
    assert (result.answer, result.turns, result.is_completed) == (BERN, 3, True)
    assert "missing required field `people`" in notes(model.requests[2])[-1]
    assert (await runtime.result(result.run_id, agent)).value == result.value
    assert (await runtime.result(result.run_id)).value is None


async def test_an_answer_that_never_fits_ends_the_run_and_is_not_rescued(bench: Bench) -> None:
    runtime = await bench.runtime(ScriptedModel(lambda r: finish(f"Bern {len(r.messages)}")))

    result = await runtime.run(Agent("a", output=Place), "Which city?")

    assert (result.status, result.reason, result.value) == ("error", "repairs", None)
    assert result.turns == Limits().repairs + 1


async def test_an_unlabelled_answer_is_rescued_where_it_fits(bench: Bench) -> None:
    runtime = await bench.runtime(ScriptedModel(lambda r: broken(text=BERN)))
    limits = Limits(repeats=10)  # saying the same is a loop, which would end it first

    result = await runtime.run(Agent("a", output=Place, limits=limits), "Which city?")

    assert (result.status, result.answer, result.is_completed) == ("done", BERN, False)


async def test_a_forced_finish_without_a_fit_is_not_passed_off_as_a_value(bench: Bench) -> None:
    model = ScriptedModel(
        lambda r: finish("Bern") if allowed(r) == ("FINISH",) else think("m" * len(r.messages))
    )
    runtime = await bench.runtime(model)

    result = await runtime.run(Agent("a", output=Place, limits=Limits(turns=2)), "Which?")

    assert (result.status, result.is_completed, result.value) == ("done", False, None)


async def test_a_tool_that_ends_the_run_may_give_the_value(bench: Bench) -> None:
    @tool(effect="read")
    def settle(text: str) -> Any:
        return terminate(text)

    agent = Agent("a", output=Place, tools=[settle])
    good = await bench.runtime(turns(ask(("settle", {"text": BERN}))))
    odd = await bench.runtime(turns(ask(("settle", {"text": "Bern"}))))

    assert (await good.run(agent, "Which?")).value == Place("Bern", 134000)
    assert (await odd.run(agent, "Which?")).value is None


async def test_a_native_answer_may_be_typed_too(bench: Bench) -> None:
    runtime = await bench.runtime(turns(say(None, "Bern"), say(None, BERN)))

    result = await runtime.run(react("n", output=Place), "Which city?")

    assert (result.value, result.turns) == (Place("Bern", 134000), 2)


async def test_a_run_whose_phase_is_gone_is_given_back_as_it_was(bench: Bench) -> None:
    runtime = await bench.runtime(turns(makes_plan("a"), say("FINISH", "x"), finish("done")))
    waiting = await runtime.run(plan("p"), "Do it.")
    await runtime.decide(waiting.run_id, waiting.asks[0], "approve", by="mia")

    with pytest.raises(UsageError, match="the phase 'plan'"):
        await runtime.work(waiting.run_id, Agent("p", tools=[*plan("p").registry]))
    result = await runtime.work(waiting.run_id, plan("p"))

    assert (result.status, result.answer) == ("done", "done")


async def test_a_phase_that_leads_nowhere_leaves_the_run_as_it_was(bench: Bench) -> None:
    odd = Phase(name="a", protocol=None, advance=lambda run: (Entered("b"),))
    agent = Agent("odd", capability=Capability(odd, Phase(name="last", protocol=None)))
    runtime = await bench.runtime(turns(say(None, "words")))
    run_id = await runtime.start(agent, "Go.")

    with pytest.raises(UsageError, match="leads to 'b', and this agent has: a, last"):
        await runtime.work(run_id, agent)

    assert (await bench.run_of(run_id)).phase in ("", "a")
    assert (await runtime.result(run_id)).status == "ready"


async def test_live_text_is_taken_back_or_completed_as_the_answer_is(bench: Bench) -> None:
    heard: list[LiveEvent] = []
    model = turns(finish("It is Bern."), finish(BERN))
    runtime = await bench.runtime(
        model, on_event=lambda event: heard.append(event) if isinstance(event, LiveEvent) else None
    )

    await runtime.run(Agent("a", output=Place), "Which city?")

    assert [(event.channel, event.text) for event in heard] == [
        ("body", "It is Bern."), ("retracted", "It is Bern."), ("body", BERN),
    ]  # fmt: skip
    heard.clear()
    model.answer = Library(["q"])
    result = await runtime.run(research("r", tools=[search]), "Find out.")
    own = [e.text for e in heard if e.run_id == result.run_id and e.channel == "body"]
    assert (result.answer or "").endswith(own[-2] + own[-1])


async def test_a_tool_that_ends_the_run_does_so_in_any_step(bench: Bench) -> None:
    @tool(effect="read")
    def stop() -> Any:
        return terminate("that is all")

    runtime = await bench.runtime(turns(makes_plan("a", "b"), ask(("stop", {}))))

    result = await runtime.run(solve("s", tools=[stop]), "Do it.")

    assert (result.status, result.answer) == ("done", "that is all")


async def test_a_cancel_ends_a_run_with_its_child_runs_in_any_phase(bench: Bench) -> None:
    library = Library(["q0", "q1"])
    runtime = await bench.runtime(model := ScriptedModel(library))
    agent = research("r", tools=[search])

    async def answer(request: StepRequest) -> Reply:
        if "APPEND" in allowed(request):
            await runtime.cancel("parent", by="mia")
            await asyncio.Event().wait()  # until the cancel reaches it
        return library(request)

    model.answer = answer

    result = await runtime.run(agent, "Find out.", run_id="parent")

    assert (result.status, result.reason) == ("error", "cancelled")
    assert {head.status for head in await runtime.runs()} == {"error"}


async def test_a_solved_task_may_have_a_typed_answer(bench: Bench) -> None:
    model = turns(makes_plan("Look."), say("FINISH", "not JSON, and need not be"), finish(BERN))
    runtime = await bench.runtime(model)

    result = await runtime.run(solve("s", output=Place), "Which city?")

    assert result.value == Place("Bern", 134000)
