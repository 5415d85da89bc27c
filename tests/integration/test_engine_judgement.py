"""The loop's judgement on a real store: windows, summaries, the critic, money, and steering."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from checkpoints.model import Commit
from fsm_agent import Agent, Limits, Result, Runtime, tool
from fsm_agent.context.policies import Context, Summary
from fsm_agent.context.tokens import tokens_of
from fsm_agent.context.window import Window
from fsm_agent.errors import BadAgent, ProviderError, UsageError
from fsm_agent.llm.client import OpenAIModel
from fsm_agent.llm.model import Reply, StepRequest, Use, name_of
from fsm_agent.reflection.critic import Critic
from fsm_agent.reflection.money import Price
from fsm_agent.reflection.scene import Progress
from fsm_agent.reflection.settings import Reflection
from fsm_agent.run.content import AssistantMessage, NoteMessage, ToolMessage, Usage, UserMessage
from fsm_agent.run.delta import (
    Assessed,
    Began,
    Charged,
    Criticised,
    Cut,
    Hinted,
    ModelFailed,
    Reserved,
    Summarised,
)
from fsm_agent.run.record import message_size
from tests.conftest import (
    USAGE,
    Bench,
    Ledger,
    ScriptedModel,
    ask,
    die,
    finish,
    results,
    take_over,
    think,
    turns,
    until,
)

QUICK = 0.3


@tool(effect="read")
async def page(number: int = 0) -> str:
    return f"page {number}: " + f"word{number} " * 150


async def facts(runtime: Runtime, run_id: str, *kinds: type) -> list[Any]:
    return [
        delta
        for event in await runtime.history(run_id)
        for delta in event.record.deltas
        if isinstance(delta, kinds)
    ]


def reader(pages: int, **beside: Any) -> ScriptedModel:
    """Reads so many pages, one a turn, then finishes; answers summaries and critics as told."""
    read = 0

    def answer(request: StepRequest) -> Any:
        nonlocal read
        for word, reply in beside.items():
            if word in request.instructions:
                return reply(request) if callable(reply) else reply
        if read >= pages:
            return finish("all read")
        read += 1
        return ask(("page", {"number": read}))

    return ScriptedModel(answer)


def own(model: ScriptedModel) -> list[StepRequest]:
    """The requests of the run's own turns."""
    return [request for request in model.requests if request.instructions.startswith("You read")]


def cost(request: StepRequest) -> int:
    return sum(tokens_of(message_size(message)) for message in request.messages)


def reading(**options: Any) -> Agent:
    fields = {"context_tokens": 2_000, "max_tokens": 100} | options
    return Agent("reader", "You read.", tools=[page], **fields)


LONG = Limits(turns=500, tool_calls=500, tokens=10**8)


# -- the window -----------------------------------------------------------------------------------


async def test_a_long_run_stays_in_its_window_and_keeps_its_history(bench: Bench) -> None:
    runtime = await bench.runtime(model := reader(60))
    agent = reading(context_tokens=4_000)

    result = await runtime.run(agent, "Read all.", limits=LONG)

    assert result.answer == "all read"
    assert max(map(cost, model.requests)) <= 4_000
    assert len((await bench.run_of(result.run_id)).messages) == 1 + 60 * 2 + 1
    assert len(await facts(runtime, result.run_id, Cut)) < 20
    for request in model.requests:
        assert request.messages[0] == UserMessage("Read all.")
        calls = [c.call_id for m in request.messages if isinstance(m, AssistantMessage)
                 for c in m.calls]  # fmt: skip
        assert calls == [m.call_id for m in request.messages if isinstance(m, ToolMessage)]


async def test_another_worker_shows_the_model_the_same_view(bench: Bench) -> None:
    runtime = await bench.runtime(model := reader(30))
    agent = reading()

    result = await runtime.run(agent, "Read all.", limits=LONG)

    run = await bench.run_of(result.run_id)
    before = run.messages[:-1]  # the last request was made before its reply
    fresh = Window(agent.context_tokens, agent.context, overhead_tokens=agent.overhead_tokens)
    seen = fresh.view(_with(run, messages=before))
    assert model.requests[-1].messages == seen


def _with(run: Any, **fields: Any) -> Any:
    from msgspec.structs import replace

    return replace(run, **fields)


def narrow(limit: int, model: ScriptedModel) -> ScriptedModel:
    """A model whose window is smaller than anybody said."""
    before = model.answer

    def answer(request: StepRequest) -> Any:
        if cost(request) > limit:
            said = "maximum context length exceeded"
            return ProviderError("context_length", said, is_retryable=False, status=400)
        return before(request)

    return ScriptedModel(answer)


async def test_a_request_that_is_too_long_is_made_again_with_less_in_it(bench: Bench) -> None:
    model = narrow(1_500, reader(12))
    runtime = await bench.runtime(model)

    result = await runtime.run(reading(context_tokens=8_000), "Read all.", limits=LONG)

    assert result.answer == "all read"
    failed = await facts(runtime, result.run_id, ModelFailed)
    assert {f.kind for f in failed} == {"context_length"}
    assert len(failed) <= 5
    run = await bench.run_of(result.run_id)
    assert run.spent_tokens == 13 * USAGE.total_tokens  # what was refused costs nothing


async def test_a_request_that_cannot_be_made_smaller_ends_the_run(bench: Bench) -> None:
    model = narrow(0, reader(1))
    runtime = await bench.runtime(model)

    result = await runtime.run(reading(), "Hi.")

    assert (result.status, result.reason) == ("error", "model")
    assert len(model.requests) == 1


async def test_a_task_that_is_too_long_for_the_model_is_cut_after_its_refusal(
    bench: Bench,
) -> None:
    model = narrow(1_200, reader(0))
    runtime = await bench.runtime(model)

    result = await runtime.run(reading(), "Read this. " + "x " * 20_000)

    assert result.answer == "all read"
    assert "characters are left out here" in model.requests[-1].messages[0].text


# -- summaries ------------------------------------------------------------------------------------

SUMMING = Context(summary=Summary(max_tokens=60, instructions="You sum up."))


def notes(request: StepRequest) -> Reply:
    (asked,) = request.messages
    count = asked.text.count("result of page")
    return Reply(label=None, text=f"notes on {count} pages", usage=Usage(40, 8))


async def test_what_is_left_out_is_summed_up_once_and_paid_for(bench: Bench) -> None:
    model = reader(20, sum=notes)
    runtime = await bench.runtime(model)

    result = await runtime.run(reading(context=SUMMING), "Read all.", limits=LONG)

    assert result.answer == "all read"
    summed = await facts(runtime, result.run_id, Summarised)
    asked = [r for r in model.requests if r.instructions == "You sum up."]
    assert len(summed) == len(asked) > 1
    assert [s.covers for s in summed] == sorted({s.covers for s in summed})
    assert "notes on" in asked[1].messages[0].text  # the notes so far are carried on
    told = own(model)[-1].messages[1]
    assert isinstance(told, NoteMessage)
    assert summed[-1].text in told.text
    run = await bench.run_of(result.run_id)
    assert run.spent_tokens == 21 * USAGE.total_tokens + 48 * len(summed)
    assert max(map(cost, own(model))) <= 2_000


async def test_a_summary_that_fails_costs_the_run_nothing_but_its_words(bench: Bench) -> None:
    error = ProviderError("bad_request", "no such model", is_retryable=False, status=400)
    model = reader(20, sum=error)
    runtime = await bench.runtime(model)

    result = await runtime.run(reading(context=SUMMING), "Read all.", limits=LONG)

    assert result.answer == "all read"
    summed = await facts(runtime, result.run_id, Summarised)
    assert {s.problem for s in summed} == {"no such model"}
    asked = [r for r in model.requests if r.instructions == "You sum up."]
    assert len(asked) == len(summed)  # not asked again at each turn
    assert (await bench.run_of(result.run_id)).spent_tokens == 21 * USAGE.total_tokens


async def test_a_worker_that_dies_in_a_summary_leaves_its_reserve_spent(bench: Bench) -> None:
    hang, asked = asyncio.Event(), 0

    async def slow(request: StepRequest) -> Reply:
        nonlocal asked
        asked += 1
        if asked == 1:
            hang.set()
            await asyncio.sleep(60)
        return notes(request)

    model = reader(12, sum=slow)
    agent = reading(context=SUMMING)
    store = await bench.store()
    first = await bench.runtime(model, store=store, lease_s=QUICK)
    second = await bench.runtime(model, lease_s=QUICK)
    run_id = await first.start(agent, "Read all.", limits=LONG)
    working = asyncio.create_task(first.work(run_id, agent))
    await until(hang.is_set)
    await die(store, working)

    result = await take_over(second, run_id, agent)

    assert result.answer == "all read"
    begun = [b for b in await facts(second, run_id, Reserved) if b.purpose == "summary"]
    summed = await facts(second, run_id, Summarised)
    assert len(begun) == len(summed) + 1
    run = await bench.run_of(run_id)
    paid = 13 * USAGE.total_tokens + 48 * len(summed)
    assert run.spent_tokens == paid + begun[0].reserve_tokens


async def test_a_summary_is_not_asked_for_where_the_budget_has_no_room(bench: Bench) -> None:
    model = reader(20, sum=notes)
    runtime = await bench.runtime(model)
    agent = reading(context=Context(summary=Summary(max_tokens=1_200, instructions="You sum up.")))
    limits = Limits(turns=30, tokens=3_200)

    result = await runtime.run(agent, "Read all.", limits=limits)

    assert result.status in ("done", "error")
    assert result.spent_tokens <= limits.tokens


# -- the critic -----------------------------------------------------------------------------------


def critic(text: str) -> Reply:
    return Reply(label=None, text=text, usage=Usage(30, 6))


async def test_a_critic_looks_at_each_turn_and_the_model_hears_of_it(bench: Bench) -> None:
    model = reader(3, shoulder=critic("WRONG\nPage 1 is the title page."))
    runtime = await bench.runtime(model)

    result = await runtime.run(reading(critic=Critic()), "Read all.")

    said = await facts(runtime, result.run_id, Criticised)
    assert [s.verdict for s in said] == ["wrong"] * 3
    assert "Page 1 is the title page." in str(own(model)[-1].messages)
    assert result.spent_tokens == 4 * USAGE.total_tokens + 3 * 36
    shown = next(r for r in model.requests if "shoulder" in r.instructions).messages[0].text
    assert "Read all." in shown
    assert "page 1: word1" in shown


async def test_a_critic_looks_only_after_the_tools_that_it_is_for(bench: Bench) -> None:
    model = reader(2, shoulder=critic("RIGHT"))
    runtime = await bench.runtime(model)

    await runtime.run(reading(critic=Critic(tools=("pay",))), "Read all.")

    assert len(model.requests) == 3


async def test_a_critic_may_end_the_run_with_the_answer(bench: Bench) -> None:
    model = reader(9, shoulder=critic("DONE\nIt is on page 1."))
    runtime = await bench.runtime(model)

    result = await runtime.run(reading(critic=Critic(may_finish=True)), "Where is it?")

    assert (result.status, result.answer) == ("done", "It is on page 1.")
    assert (result.is_completed, result.reason, result.turns) == (True, "critic", 1)


async def test_a_critic_that_fails_leaves_the_run_as_if_nobody_had_looked(bench: Bench) -> None:
    error = ProviderError("connection_dropped", "cut", is_retryable=True)
    model = reader(2, shoulder=error)
    runtime = await bench.runtime(model)

    result = await runtime.run(reading(critic=Critic()), "Read all.")

    assert result.answer == "all read"
    said = await facts(runtime, result.run_id, Criticised)
    assert [(s.verdict, s.problem) for s in said] == [("unknown", "cut")] * 2
    # A stream that broke was perhaps billed: its reserve counts.
    begun = [b for b in await facts(runtime, result.run_id, Reserved) if b.purpose == "critic"]
    reserves = sum(b.reserve_tokens for b in begun)
    assert result.spent_tokens == 3 * USAGE.total_tokens + reserves


async def test_a_worker_that_dies_in_the_critics_call_leaves_its_reserve_spent(
    bench: Bench,
) -> None:
    hang, asked = asyncio.Event(), 0

    async def slow(request: StepRequest) -> Reply:
        nonlocal asked
        asked += 1
        if asked == 1:
            hang.set()
            await asyncio.sleep(60)
        return critic("RIGHT")

    model = reader(1, shoulder=slow)
    agent = reading(critic=Critic())
    store = await bench.store()
    first = await bench.runtime(model, store=store, lease_s=QUICK)
    second = await bench.runtime(model, lease_s=QUICK)
    run_id = await first.start(agent, "Read all.")
    working = asyncio.create_task(first.work(run_id, agent))
    await until(hang.is_set)
    await die(store, working)

    result = await take_over(second, run_id, agent)

    (dead, _) = [b for b in await facts(second, run_id, Reserved) if b.purpose == "critic"]
    assert result.answer == "all read"
    assert result.spent_tokens == 2 * USAGE.total_tokens + 36 + dead.reserve_tokens


async def test_a_cancel_ends_the_critics_call(bench: Bench) -> None:
    hang = asyncio.Event()

    async def slow(request: StepRequest) -> Reply:
        hang.set()
        await asyncio.sleep(60)
        return critic("RIGHT")

    runtime = await bench.runtime(reader(1, shoulder=slow))
    agent = reading(critic=Critic())
    run_id = await runtime.start(agent, "Read all.")
    working = asyncio.create_task(runtime.work(run_id, agent))
    await until(hang.is_set)

    await runtime.cancel(run_id, by="mia")

    assert (await working).reason == "cancelled"


# -- money ----------------------------------------------------------------------------------------

PRICES = {"*": Price(input=3.0, output=15.0)}
TURN = 10 * 3 + 5 * 15  # of USAGE, in millionths


async def test_money_is_counted_and_ends_a_run_like_any_budget(bench: Bench) -> None:
    runtime = await bench.runtime(model := reader(500))
    agent = reading(prices=PRICES, context_tokens=600)

    result = await runtime.run(
        agent, "Read all.", limits=Limits(turns=500, tool_calls=500, money=0.02)
    )

    assert (result.status, result.reason, result.is_completed) == ("done", "money", False)
    assert result.spent_money <= 0.02
    assert len(model.requests) > 20
    charged = await facts(runtime, result.run_id, Charged)
    assert {c.micros for c in charged} == {TURN}
    assert result.spent_money == pytest.approx(len(charged) * TURN / 1e6)


async def test_a_limit_on_money_needs_a_price(bench: Bench) -> None:
    runtime = await bench.runtime(reader(1))

    with pytest.raises(BadAgent, match="no price for its model"):
        await runtime.start(reading(), "Read.", limits=Limits(money=1.0))


class Called(ScriptedModel):
    """A model that knows its name."""

    def name_of(self, use: Use) -> str:
        return "mind-1" if use == "step" else ""


async def test_a_price_goes_by_the_name_that_the_client_uses(bench: Bench) -> None:
    runtime = await bench.runtime(Called(lambda request: finish()))
    prices = {"mind-1": PRICES["*"], "other": Price(input=900, output=900)}

    result = await runtime.run(reading(prices=prices), "Go.", limits=Limits(money=1.0))
    named = await runtime.run(reading(prices=prices, model="other"), "Go.")

    assert result.spent_money == pytest.approx(TURN / 1e6)
    assert named.spent_money == pytest.approx(USAGE.total_tokens * 900 / 1e6)
    with pytest.raises(BadAgent, match=r"its model\. Give .*'mind-1'"):
        await runtime.start(reading(), "Go.", limits=Limits(money=1.0))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"critic": Critic(model="small")}, "its critic"),
        ({"context": Context(summary=Summary(model="small"))}, "its summaries"),
    ],
)
async def test_a_limit_on_money_needs_the_prices_of_all_models(
    bench: Bench, settings: dict[str, Any], what: str
) -> None:
    runtime = await bench.runtime(reader(1))
    agent = reading(model="large", prices={"large": PRICES["*"]}, **settings)

    with pytest.raises(BadAgent, match=f"{what}.*'small'"):
        await runtime.start(agent, "Read.", limits=Limits(money=1.0))


def test_the_client_knows_which_model_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSM_AGENT_MODEL", "from-env")
    monkeypatch.setenv("FSM_AGENT_TRANSCRIBE_MODEL", "ears-1")

    assert name_of(OpenAIModel(), "step") == "from-env"
    assert name_of(OpenAIModel("given"), "step") == "given"
    assert name_of(OpenAIModel("given"), "transcript") == "ears-1"
    assert name_of(reader(1), "step") == ""


NO_LIMITS = [
    (name, value)
    for name in Limits.__struct_fields__
    for value in (-1, float("nan"), 10**30, True, "9", 2.5)
    if value != 2.5 or name not in ("money", "wall_s")
]


@pytest.mark.parametrize(("name", "value"), NO_LIMITS)
async def test_a_limit_that_makes_no_sense_is_refused_before_it_is_stored(
    bench: Bench, name: str, value: Any
) -> None:
    runtime = await bench.runtime(reader(1))
    limits = Limits(**{name: value})

    with pytest.raises(UsageError, match=rf"Limits\({name}="):
        await runtime.start(reading(prices=PRICES), "Read.", limits=limits)
    with pytest.raises(UsageError, match=rf"Limits\({name}="):
        reading(prices=PRICES, limits=limits)
    assert not await runtime.runs()


async def test_cached_tokens_are_charged_at_their_price(bench: Bench) -> None:
    reply = Reply(label="FINISH", text="ok", usage=Usage(1_000, 10), cached_tokens=900)
    runtime = await bench.runtime(ScriptedModel(lambda request: reply))
    agent = reading(prices={"*": Price(input=2.0, output=10.0, cached=0.5)})

    result = await runtime.run(agent, "Go.")

    assert result.spent_money == pytest.approx((100 * 2 + 900 * 0.5 + 100) / 1e6)


async def test_the_money_of_a_dead_attempt_counts(bench: Bench) -> None:
    hang, asked = asyncio.Event(), 0

    async def slow(request: StepRequest) -> Reply:
        nonlocal asked
        asked += 1
        if asked == 1:
            hang.set()
            await asyncio.sleep(60)
        return finish()

    model = ScriptedModel(slow)
    agent = reading(prices=PRICES)
    store = await bench.store()
    first = await bench.runtime(model, store=store, lease_s=QUICK)
    second = await bench.runtime(model, lease_s=QUICK)
    run_id = await first.start(agent, "Go.")
    working = asyncio.create_task(first.work(run_id, agent))
    await until(hang.is_set)
    await die(store, working)

    result = await take_over(second, run_id, agent)

    (dead, _) = await facts(second, run_id, Reserved)
    assert dead.micros > 0
    assert result.spent_money == pytest.approx((dead.micros + TURN) / 1e6)


async def test_a_child_spends_its_parents_money_once(bench: Bench) -> None:
    helper = Agent("helper", "helper", prices=PRICES, max_tokens=50)
    boss = Agent("boss", "boss", tools=[helper.as_tool()], prices=PRICES, max_tokens=50)

    def answer(request: StepRequest) -> Reply:
        if request.instructions == "helper":
            return finish("helped")
        return finish("all done") if results(request) else ask(("helper", {"task": "Help."}))

    runtime = await bench.runtime(ScriptedModel(answer))

    result = await runtime.run(boss, "Go.", limits=Limits(money=0.5))

    assert result.answer == "all done"
    assert result.spent_money == pytest.approx(3 * TURN / 1e6)


async def test_a_child_may_spend_no_more_than_its_share(bench: Bench) -> None:
    helper = Agent("helper", "helper", prices=PRICES, max_tokens=50, tools=[page])
    boss = Agent("boss", "boss", tools=[helper.as_tool(share=0.5)], prices=PRICES, max_tokens=50)

    def answer(request: StepRequest) -> Reply:
        if request.instructions == "helper":
            number = len(request.messages)
            return ask(("page", {"number": number})) if request.tools else finish("so far")
        return finish("all done") if results(request) else ask(("helper", {"task": "Help."}))

    runtime = await bench.runtime(ScriptedModel(answer))

    result = await runtime.run(boss, "Go.", limits=Limits(money=0.03))

    assert result.answer == "all done"
    assert result.spent_money <= 0.015 + 2 * TURN / 1e6


# -- progress and steering ------------------------------------------------------------------------


async def test_every_turn_has_its_score_on_record(bench: Bench) -> None:
    runtime = await bench.runtime(reader(3))

    result = await runtime.run(reading(), "Read all.")

    assessed = await facts(runtime, result.run_id, Assessed)
    assert len(assessed) == 3
    assert all(len(a.parts) == 5 and a.score > 50 and not a.low for a in assessed)


async def looping(
    bench: Bench, ledger: Ledger, limits: Limits, **options: Any
) -> tuple[Runtime, Result]:
    @tool(effect="read")
    async def look() -> str:
        ledger.record("look")
        return "nothing here"

    def answer(request: StepRequest) -> Reply:
        return ask(("look", {})) if request.tools else finish("I gave up")

    runtime = await bench.runtime(ScriptedModel(answer))
    agent = Agent("looker", tools=[look], **options)
    return runtime, await runtime.run(agent, "Look.", limits=limits)


async def test_a_loop_is_warned_of_then_the_call_is_barred_then_it_ends(
    bench: Bench, ledger: Ledger
) -> None:
    runtime, result = await looping(bench, ledger, Limits(repeats=5))

    assert (result.answer, result.reason) == ("I gave up", "loop")
    assert ledger["look"] == 4  # the fifth was not made
    hints = [h.text for h in await facts(runtime, result.run_id, Hinted) if h.kind == "warning"]
    assert len(hints) == 2
    assert "not made again" in hints[-1]
    messages = (await bench.run_of(result.run_id)).messages
    assert [m.status for m in messages if isinstance(m, ToolMessage)][-1] == "duplicate"


async def test_low_progress_climbs_its_ladder(bench: Bench, ledger: Ledger) -> None:
    reflection = Reflection(progress=Progress(window=1, warn=1, steer=2, stop=3))

    _, result = await looping(bench, ledger, Limits(repeats=50), reflection=reflection)

    assert (result.answer, result.reason) == ("I gave up", "progress")
    assert ledger["look"] == 3


async def test_a_tool_that_may_repeat_is_bounded_by_the_other_budgets_only(
    bench: Bench, ledger: Ledger
) -> None:
    reflection = Reflection(may_repeat=("look",))

    _, result = await looping(bench, ledger, Limits(turns=12), reflection=reflection)

    assert result.reason == "turns"
    assert ledger["look"] == 12


async def test_a_policy_of_the_host_is_held(bench: Bench) -> None:
    from fsm_agent.reflection.verdict import Continue, Stop

    def two_turns(run: Any, scene: Any) -> Any:
        return Stop("host", "two are enough") if run.turns >= 2 else Continue()

    runtime = await bench.runtime(reader(9))
    agent = reading(reflection=Reflection(policies=(two_turns,)))

    result = await runtime.run(agent, "Read all.")

    assert (result.status, result.reason, result.message) == ("error", "host", "two are enough")


async def test_a_plain_turn_still_costs_two_commits(bench: Bench) -> None:
    """Scores, cuts and charges go with what is committed anyway."""
    store = await bench.store()
    commits: list[Commit] = []

    async def count(commit: Commit) -> None:
        commits.append(commit)

    store.after_commit = count
    runtime = await bench.runtime(reader(10), store=store)

    await runtime.run(reading(prices=PRICES, context_tokens=1_000), "Read all.", limits=LONG)

    assert len(commits) == 2 * 10 + 2


async def test_thoughts_without_calls_are_judged_too(bench: Bench) -> None:
    model = ScriptedModel(lambda request: think("I will look into it now."))
    runtime = await bench.runtime(model)

    result = await runtime.run(reading(), "Go.", limits=Limits(on_exhausted="error"))

    assert (result.status, result.reason, result.turns) == ("error", "loop", 3)


async def test_began_is_what_it_was_for_whoever_looks_for_it(bench: Bench) -> None:
    runtime = await bench.runtime(turns(finish()))

    result = await runtime.run(reading(), "Go.")

    (began,) = await facts(runtime, result.run_id, Began)
    assert (began.attempt, began.purpose) == (1, "turn")
    assert began.reserve_tokens > began.prompt_tokens > 0


async def test_what_is_estimated_is_what_is_asked_also_after_a_cut(bench: Bench) -> None:
    """A provider that counts exactly as we do must teach nothing, whatever is cut or summed up."""
    agent = reading(context=SUMMING)

    def exactly(request: StepRequest) -> Reply:
        reply = model_of.answer(request)
        assert isinstance(reply, Reply)
        asked = agent.overhead_tokens + cost(request)
        return _counted(reply, asked if request.instructions.startswith("You read") else 1)

    model_of = reader(30, sum=notes)
    runtime = await bench.runtime(ScriptedModel(exactly))

    result = await runtime.run(agent, "Read all.", limits=LONG)

    run = await bench.run_of(result.run_id)
    assert run.cut.start > 1
    assert run.token_scale == pytest.approx(1.0, abs=0.05)


def _counted(reply: Reply, prompt_tokens: int) -> Reply:
    return _with(reply, usage=Usage(prompt_tokens, 5))
