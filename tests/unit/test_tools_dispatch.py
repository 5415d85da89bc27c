"""Calls run at once, within their limits; whatever a tool does becomes one honest result."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import Any

import msgspec
import pytest
import stamina
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.tools import ToolContext, done, keyed, probed, tool
from fsm_agent.tools.dispatch import Result, run_call
from fsm_agent.tools.results import MAX_FULL_BYTES, cause_of, show

CONTEXT = ToolContext(run_id="r", call_id="c", idempotency_key="k")


async def call(
    made: Any, arguments: str = "{}", context: ToolContext = CONTEXT, **more: Any
) -> Result:
    return await run_call(made, made.bind(arguments), context, **{"grace_s": 0.01, **more})


async def returned(value: Any, **settings: Any) -> Result:
    return await call(tool(lambda: value, name="t", **settings))


async def raised(error: BaseException, **settings: Any) -> Result:
    def fail() -> None:
        raise error

    return await call(tool(fail, name="t", **settings))


@pytest.fixture(autouse=True)
def _no_waiting_between_retries():
    with stamina.set_testing(True, attempts=100, cap=True):
        yield


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Model:
    def model_dump(self, mode: str) -> dict[str, int]:
        return {"a": 1}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text stays\n as it is", "text stays\n as it is"),
        ("", ""),
        (None, "(no result)"),
        (True, "true"),
        (3.5, "3.5"),
        ({"b": 1, "a": [None]}, '{"b": 1, "a": [null]}'),
        ([Point(1), Model()], '[{"x": 1, "y": 0}, {"a": 1}]'),
        ({1: "ü"}, '{"1": "ü"}'),
        ({"raw": b"hi"}, '{"raw": "aGk="}'),
        ((1, 2), "[1, 2]"),
        ("half \ud83d", "half \ufffd"),
    ],
)
async def test_a_result_is_text_or_json(value, text):
    result = await returned(value)

    assert (result.status, result.text, result.full) == ("success", text, None)


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: object(), "a object, is not JSON"),
        (lambda: (n for n in iter(int, 1)), "generator, is not JSON"),
        (lambda: map(str, [1]), "map, is not JSON"),
        (lambda: float("nan"), "NaN and infinity are not JSON"),
        (lambda: {"a": [float("inf")]}, "NaN and infinity are not JSON"),
        (lambda: b"bytes", "returned bytes"),
        (lambda: CIRCLE, "contains itself"),
        (lambda: asyncio.sleep(0), "Declare the tool with `async def`"),
        (lambda: {(1, 2): 3}, "is not JSON"),
        (lambda: 10**5000, "is not JSON"),
    ],
)
async def test_a_result_that_cannot_be_shown_is_an_error_that_says_the_tool_ran(make, words):
    result = await call(tool(make, name="t"))

    assert result.status == "error"
    assert words in result.text
    assert result.text.startswith("t ran to its end, but ")


async def test_a_long_result_is_cut_with_a_marker_and_kept_whole():
    result = await returned("a" * 500 + "z" * 500, max_output_chars=200)

    assert len(result.text) <= 200
    assert result.text.startswith("aaa")
    assert result.text.endswith("zzz")
    assert " of 1,000 characters cut …]" in result.text
    assert result.full == b"a" * 500 + b"z" * 500


@given(st.text(min_size=0, max_size=3000), st.integers(min_value=100, max_value=400))
def test_a_cut_says_truly_how_much_is_missing(text, limit):
    shown = show(text, limit)

    assert len(shown.text) <= max(limit, 0)
    if len(text) > limit:
        head, _, rest = shown.text.partition("\n[… ")
        count, _, rest = rest.partition(" of ")
        tail = rest.partition(" characters cut …]\n")[2]
        assert len(head) + int(count.replace(",", "")) + len(tail) == len(text)
        assert (text.startswith(head), text.endswith(tail)) == (True, True)


def test_fifty_megabytes_are_kept_and_more_is_cut_with_a_note():
    whole = show("x" * 50_000_000, 1000)
    more = show("é" * (MAX_FULL_BYTES // 2 + 10), 1000)

    assert len(whole.full) == 50_000_000
    assert MAX_FULL_BYTES < len(more.full) < MAX_FULL_BYTES + 200
    assert "are kept]" in more.full[-100:].decode()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TypeError("bad\nsecond line"), "TypeError: bad"),
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError(), "ValueError"),
        (ValueError("\x1b[31mred\x00"), "ValueError: [31mred"),
        (ExceptionGroup("outer", [OSError("inner")]), "OSError: inner"),
        (StopIteration(), "StopIteration"),
        (TimeoutError("socket"), "TimeoutError: socket"),
        (asyncio.CancelledError("mine"), "CancelledError: mine"),
        (Mute(), "Mute"),
    ],
)
async def test_a_failure_is_a_result_with_its_short_true_cause(error, text):
    result = await raised(error)

    assert (result.status, result.text, result.attempts) == ("error", text, 1)
    assert not result.is_effect_unknown


def test_a_cause_is_short():
    assert len(cause_of(ValueError("x" * 9999))) == 500


async def test_an_interrupt_comes_through():
    with pytest.raises(KeyboardInterrupt):
        await raised(KeyboardInterrupt())


async def test_a_tool_that_wants_to_end_the_process_only_ends_its_call():
    assert (await raised(SystemExit(3))).text == "SystemExit: 3"


async def test_an_async_tool_that_cancels_itself_is_an_error_and_not_a_cancellation():
    @tool
    async def f() -> None:
        raise asyncio.CancelledError

    assert (await call(f)).text == "CancelledError: the tool cancelled itself"


async def test_an_async_tool_is_awaited():
    @tool
    async def f(a: int) -> int:
        await asyncio.sleep(0)
        return a + 1

    assert (await call(f, '{"a":1}')).text == "2"


async def test_a_sync_tool_runs_in_a_thread_with_our_context_variables():
    variable = contextvars.ContextVar("variable", default="lost")
    variable.set("kept")
    here = threading.get_ident()

    result = await returned(None)
    ran = await call(tool(lambda: [variable.get(), threading.get_ident() != here], name="t"))

    assert result.status == "success"
    assert ran.text == '["kept", true]'


async def test_a_hanging_async_tool_is_cancelled():
    stopped = []

    @tool(effect="read")
    async def hang(ctx: ToolContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(ctx.is_cancelled)

    result = await call(hang, timeout_s=0.01)

    assert stopped == [True]
    assert (result.status, result.is_still_running, result.is_effect_unknown) == (
        "timeout",
        False,
        False,
    )
    assert result.text == "hang took over 0.01 s and was given up."


async def test_a_hanging_sync_tool_is_reported_as_still_running_with_unknown_effect():
    free = threading.Event()

    hang = tool(lambda: str(free.wait()), name="hang")
    left: list[Any] = []
    result = await call(hang, timeout_s=0.01, on_left_behind=left.append)

    assert (result.status, result.is_still_running, result.is_effect_unknown) == (
        "timeout",
        True,
        True,
    )
    assert "may still be running. Its effect may have happened." in result.text
    assert len(left) == 1
    free.set()
    assert (await left[0]).value == "True"


async def test_a_tool_that_ignores_its_cancellation_is_left_behind():
    free = asyncio.Event()

    @tool
    async def stubborn() -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    left: list[Any] = []
    result = await call(stubborn, timeout_s=0.01, on_left_behind=left.append)
    free.set()
    await left[0]

    assert (result.status, result.is_still_running) == ("timeout", True)


async def test_a_result_that_comes_within_the_grace_counts():
    @tool
    def slow(ctx: ToolContext) -> str:
        while not ctx.is_cancelled:
            time.sleep(0.001)
        return "stopped in time"

    assert (await call(slow, timeout_s=0.01, grace_s=5)).text == "stopped in time"


async def test_our_own_cancellation_reaches_the_tool_and_comes_through():
    started, seen = asyncio.Event(), []

    @tool
    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.create_task(call(hang))
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_the_context_tells_the_deadline_and_carries_progress():
    said: list[str] = []
    here = threading.get_ident()
    context = ToolContext(
        run_id="r",
        call_id="c",
        idempotency_key="k",
        on_progress=lambda text: said.append(f"{text} {threading.get_ident() == here}"),
    )

    def sync(ctx: ToolContext) -> float:
        ctx.progress("from a thread")
        return ctx.remaining_s()

    async def awaited(ctx: ToolContext) -> float:
        ctx.progress("from the loop")
        return ctx.remaining_s()

    left = [
        float((await call(tool(f), context=context, timeout_s=20)).text) for f in (sync, awaited)
    ]

    assert said == ["from a thread True", "from the loop True"]
    assert all(19 < seconds <= 20 for seconds in left)
    assert CONTEXT.remaining_s() == float("inf")


def failing(times: int, error: Exception, **settings: Any) -> tuple[Any, list[Any]]:
    seen: list[Any] = []

    @tool(**settings)
    def f(items: list[int], ctx: ToolContext) -> str:
        seen.append((ctx.attempt, ctx.idempotency_key, list(items)))
        items.append(99)
        if len(seen) <= times:
            raise error
        return "worked"

    return f, seen


@pytest.mark.parametrize("effect", ["read", "idempotent", keyed(ttl_s=60)])
async def test_a_passing_failure_is_retried_with_the_same_key_and_arguments(effect):
    f, seen = failing(2, ConnectionError("reset"), effect=effect, retries=2)

    result = await call(f, '{"items":[1]}')

    assert (result.status, result.text, result.attempts) == ("success", "worked", 3)
    assert seen == [(1, "k", [1]), (2, "k", [1]), (3, "k", [1])]


async def test_the_last_failure_is_the_result():
    f, _ = failing(9, ConnectionError("reset"), effect="read", retries=2)

    result = await call(f, '{"items":[]}')

    assert (result.status, result.text, result.attempts) == ("error", "ConnectionError: reset", 3)


@pytest.mark.parametrize(
    "error", [TypeError("x"), ValueError("x"), KeyError("x"), FileNotFoundError()]
)
async def test_a_mistake_is_not_retried(error):
    f, _ = failing(9, error, effect="read", retries=5)

    assert (await call(f, '{"items":[]}')).attempts == 1


async def test_a_timeout_is_retried_unless_the_tool_still_runs():
    free = threading.Event()

    @tool(effect="read", retries=2)
    async def hang() -> None:
        await asyncio.Event().wait()

    stuck = tool(lambda: free.wait() and None, name="stuck", effect="read", retries=2)

    assert (await call(hang, timeout_s=0.005)).attempts == 3
    assert (await call(stuck, timeout_s=0.005)).attempts == 1
    free.set()


def counting(**settings: Any) -> tuple[Any, list[int]]:
    running, most = 0, [0]

    @tool(**settings)
    async def work(n: int) -> int:
        nonlocal running
        running += 1
        most[0] = max(most[0], running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return n

    return work, most


async def test_a_probed_tool_given_up_midway_has_an_unknown_effect():
    @tool(effect=probed(check=lambda: done()), timeout_s=0.005)
    async def send() -> None:
        await asyncio.Event().wait()

    assert (await call(send)).is_effect_unknown
