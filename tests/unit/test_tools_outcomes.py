"""What a tool may return besides a value, and what a retry after a timeout asks for."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from typing import Any

import pytest
import stamina
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.errors import BadAgent
from fsm_agent.run.content import Source
from fsm_agent.tools import ToolContext, keyed, partial, pause, terminate, tool, with_sources
from fsm_agent.tools.dispatch import MAX_ANSWER_CHARS, Result, run_call
from fsm_agent.tools.fallback import halved
from fsm_agent.tools.outcomes import MAX_SOURCES, opened

CONTEXT = ToolContext(run_id="r", call_id="c", idempotency_key="k")


async def call(made: Any, arguments: str = "{}", **more: Any) -> Result:
    return await run_call(made, made.bind(arguments), CONTEXT, **{"grace_s": 0.05, **more})


async def returned(value: Any, **settings: Any) -> Result:
    return await call(tool(lambda: value, name="t", **settings))


@pytest.fixture(autouse=True)
def _no_waiting_between_retries():
    with stamina.set_testing(True, attempts=100, cap=True):
        yield


async def test_a_terminating_result_is_the_answer_and_is_not_cut_like_others():
    result = await returned(terminate("x" * 50_000), max_output_chars=100)

    assert (result.status, result.ends, len(result.text)) == ("success", True, 50_000)


async def test_an_endless_answer_is_cut_and_kept():
    result = await returned(terminate("x" * (MAX_ANSWER_CHARS + 1)))

    assert len(result.text) <= MAX_ANSWER_CHARS
    assert len(result.full) == MAX_ANSWER_CHARS + 1


async def test_a_question_is_no_result():
    result = await returned(pause("Which one?", options=("a", "b")))

    assert result.question is not None
    assert (result.question.question, result.question.options) == ("Which one?", ("a", "b"))
    assert result.text == ""


async def test_a_partial_result_says_what_is_missing():
    result = await returned(partial({"rows": 3}, "the server stopped"))

    assert result.status == "partial"
    assert result.text == '{"rows": 3}\n[Not all of it: the server stopped]'


async def test_sources_go_along_whatever_they_were_written_as():
    found = with_sources(
        "text", Source("A", "http://a", "words"), {"title": "B", "url": "http://b"}, "http://c"
    )

    result = await returned(found)

    assert result.text == "text"
    assert result.sources == (
        Source("A", "http://a", "words"),
        Source("B", "http://b"),
        Source("http://c", "http://c"),
    )


def test_outcomes_may_stand_inside_of_each_other():
    found = opened(terminate(with_sources(partial(1, "half"), "http://a")))

    assert (found.value, found.ends, found.why_partial) == (1, True, "half")
    assert [s.url for s in found.sources] == ["http://a"]
    assert opened(with_sources(pause("Who?"), "http://a")).pause == pause("Who?")


def test_sources_are_bounded():
    found = opened(with_sources(1, *(f"http://{n}{'x' * 5000}" for n in range(200))))

    assert len(found.sources) == MAX_SOURCES
    assert len(found.sources[0].url) == 2000


# -- while it is being cancelled ------------------------------------------------------------------


async def cancelled_midway(body: Any) -> tuple[list[Result], Any]:
    late: list[Result] = []
    running = asyncio.create_task(call(tool(body, name="t"), on_late=late.append))
    await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    return late, running


async def test_a_result_that_comes_while_the_call_is_cancelled_is_handed_over():
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "paid after all"
        return "never"

    late, running = await cancelled_midway(stubborn)

    assert running.cancelled()
    assert [(r.status, r.text) for r in late] == [("success", "paid after all")]


async def test_a_call_that_gives_in_to_its_cancellation_has_no_late_result():
    async def obedient() -> None:
        await asyncio.sleep(60)

    late, running = await cancelled_midway(obedient)

    assert running.cancelled()
    assert late == []


# -- smaller arguments ----------------------------------------------------------------------------


def slow_below(limit_ok: int, seen: list[int], **settings: Any) -> Any:
    @tool(effect="read", timeout_s=0.02, name="find", **settings)
    async def find(limit: int = 40, q: str = "") -> str:
        seen.append(limit)
        if limit > limit_ok:
            await asyncio.sleep(60)
        return f"{limit} rows"

    return find


async def test_a_retry_after_a_timeout_halves_the_limits_and_says_so():
    seen: list[int] = []

    result = await call(slow_below(10, seen, retries=3, fallback="halve"), '{"q":"x"}')

    assert seen == [40, 20, 10]
    assert (result.status, result.arguments) == ("success", '{"limit":10,"q":"x"}')
    assert result.text.startswith("10 rows\n[After a timeout it ran with other arguments: ")


async def test_a_function_may_say_what_is_smaller():
    seen: list[int] = []
    made = slow_below(1, seen, retries=1, fallback=lambda given: {**given, "limit": 1})

    assert (await call(made)).status == "success"
    assert seen == [40, 1]


async def test_what_a_function_gives_may_be_of_the_types_of_the_tool():
    seen: list[date] = []

    @tool(
        effect="read",
        timeout_s=0.02,
        retries=1,
        fallback=lambda given: {"since": date.fromisoformat(given["since"]) + timedelta(days=9)},
    )
    async def find(since: date) -> str:
        seen.append(since)
        if len(seen) == 1:
            await asyncio.sleep(60)
        return "found"

    assert (await call(find, '{"since":"2020-01-01"}')).status == "success"
    assert seen == [date(2020, 1, 1), date(2020, 1, 10)]


@pytest.mark.parametrize("rule", [lambda given: 1 / 0, lambda given: {"limt": 1}, lambda given: 5])
async def test_a_rule_that_fails_changes_nothing(rule):
    seen: list[int] = []

    result = await call(slow_below(1, seen, retries=1, fallback=rule))

    assert (seen, result.status, result.arguments) == ([40, 40], "timeout", "")


async def test_an_error_that_is_no_timeout_is_retried_with_the_same_arguments():
    seen: list[int] = []

    @tool(effect="read", retries=1, fallback="halve")
    async def find(limit: int = 40) -> str:
        seen.append(limit)
        raise ConnectionError

    await call(find)

    assert seen == [40, 40]


@given(st.dictionaries(st.sampled_from(["limit", "count", "max_results", "n"]), st.integers()))
def test_halving_ends_and_touches_nothing_else(arguments):
    less = arguments
    for _ in range(300):
        less = halved(less)

    assert all(less[k] == v for k, v in arguments.items() if k == "n" or v <= 1)
    assert all(less[k] == 1 for k, v in arguments.items() if k != "n" and v > 1 and v < 2**250)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"effect": "read", "fallback": "halve"}, "retries"),
        ({"effect": "unsafe", "fallback": "halve"}, "'unsafe'"),
        ({"effect": "read", "retries": 1, "fallback": "halv"}, "Did you mean 'halve'"),
    ],
)
def test_a_fallback_that_cannot_work_is_refused(settings, words):
    with pytest.raises(BadAgent, match=words):
        tool(lambda: 1, name="t", **settings)


def test_a_keyed_tool_has_no_fallback_as_its_key_stands_for_its_arguments():
    def send(ctx: ToolContext) -> None: ...

    with pytest.raises(BadAgent, match="keyed"):
        tool(send, effect=keyed(), retries=1, fallback="halve")
