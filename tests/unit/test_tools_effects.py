"""What a gap allows, what a check may say, when a person is asked, and what is shown to them."""

from __future__ import annotations

import asyncio
import threading
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.run.content import canonical_json, clean_text
from fsm_agent.tools import ToolContext, cannot_tell, done, keyed, not_done, probed, tool
from fsm_agent.tools.approval import needs_approval
from fsm_agent.tools.effects import (
    CannotTell,
    Idempotent,
    Probed,
    Read,
    Unsafe,
    after_probe,
    class_of,
    on_gap,
)
from fsm_agent.tools.probe import run_probe
from fsm_agent.tools.render import render_arguments

CONTEXT = ToolContext(run_id="r", call_id="c", idempotency_key="k-1")


@pytest.mark.parametrize(
    ("effect", "now_ms", "expected"),
    [
        (Read(), 10**12, "run_again"),
        (Idempotent(), 10**12, "run_again"),
        (keyed(ttl_s=60), 1_000 + 59_999, "run_again"),
        (keyed(ttl_s=60), 1_000 + 60_000, "ask"),
        (keyed(ttl_s=60), 0, "run_again"),  # a clock that jumped back
        (Probed(check=done), 1_000, "probe"),
        (Unsafe(), 1_000, "ask"),
    ],
)
def test_a_gap_is_closed_by_class(effect, now_ms, expected):
    assert on_gap(effect, intent_at_ms=1_000, now_ms=now_ms) == expected


@given(st.integers(), st.integers())
def test_an_unsafe_call_is_never_run_again_on_its_own(intent_at_ms, now_ms):
    assert on_gap(Unsafe(), intent_at_ms=intent_at_ms, now_ms=now_ms) == "ask"


@pytest.mark.parametrize(
    ("result", "now_ms", "expected"),
    [
        (done(3), 0, "settle"),
        (not_done(), 99, "wait"),
        (not_done(), 100, "run_again"),
        (cannot_tell("?"), 0, "ask"),
        (cannot_tell("?"), 100, "ask"),
    ],
)
def test_not_done_counts_only_once_nobody_can_still_send_the_call(result, now_ms, expected):
    assert after_probe(result, now_ms=now_ms, unlock_ms=100) == expected


def test_classes_have_the_names_of_the_journal():
    effects = [Read(), Idempotent(), keyed(), probed(check=done), Unsafe()]

    assert [class_of(e) for e in effects] == ["read", "idempotent", "keyed", "probed", "unsafe"]


def probed_by(check: Any) -> Any:
    @tool(effect=probed(check=check))
    def send(to: str, text: str = "") -> None:
        """Send."""

    return send


async def test_a_check_gets_what_it_declares():
    def check(key: str, to: str, ctx: ToolContext, more: int = 3) -> Any:
        return done([key, to, ctx.run_id, more])

    result = await run_probe(probed_by(check), CONTEXT, {"to": "mia", "text": "x"})

    assert result == done(["k-1", "mia", "r", 3])


async def test_a_check_may_be_async_and_may_be_a_tool():
    @tool
    async def check(key: str) -> Any:
        await asyncio.sleep(0)
        return not_done()

    assert await run_probe(probed_by(check), CONTEXT, {"to": "mia"}) == not_done()


def raising(key: str) -> Any:
    raise ConnectionError("no route\nmore")


async def cancelling(key: str) -> Any:
    raise asyncio.CancelledError


async def hanging(key: str) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (raising, "the check failed: ConnectionError: no route"),
        (cancelling, "cancelled itself"),
        (hanging, "took over 0.01 s"),
        (lambda key: True, "returned bool"),
        (lambda key: None, "returned NoneType"),
        (lambda key: hanging(key), "returned coroutine"),
    ],
)
async def test_a_check_that_does_not_answer_cannot_tell(check, words):
    result = await run_probe(probed_by(check), CONTEXT, {"to": "mia"}, timeout_s=0.01)

    assert isinstance(result, CannotTell)
    assert words in result.reason


async def test_a_stuck_sync_check_does_not_hold_the_run():
    free = threading.Event()

    result = await run_probe(probed_by(lambda key: free.wait()), CONTEXT, {}, timeout_s=0.01)
    free.set()

    assert isinstance(result, CannotTell)


def approving(rule: Any) -> Any:
    @tool(approval=rule)
    def pay(amount: int, to: list[str] | None = None) -> None:
        """Pay."""

    return pay


async def forgot_to_await(amount: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("rule", "asks", "words"),
    [
        ("never", False, ""),
        ("always", True, "pay always needs approval"),
        (lambda args: args["amount"] > 100, True, "for these arguments"),
        (lambda args: args["amount"] > 1000, False, ""),
        (lambda args: "over the limit", True, "over the limit"),
        (lambda args: args["amuont"], True, "the approval rule failed: KeyError: 'amuont'"),
        (lambda args: None, True, "returned None"),
        (lambda args: "", True, "returned ''"),
        (lambda args: 0, True, "returned 0"),
        (lambda args: forgot_to_await(1), True, "returned <coroutine"),
    ],
)
def test_a_rule_decides_and_all_but_a_plain_no_asks(rule, asks, words):
    verdict = needs_approval(approving(rule), {"amount": 500})

    assert verdict.asks is asks
    assert words in verdict.reason


def test_a_rule_cannot_change_what_runs():
    def rule(args: dict[str, Any]) -> bool:
        args["to"].append("mallory")
        return False

    kwargs = {"amount": 1, "to": ["mia"]}

    needs_approval(approving(rule), kwargs)

    assert kwargs == {"amount": 1, "to": ["mia"]}


def test_arguments_are_shown_one_a_line_with_their_types():
    lines = render_arguments(
        '{"amount":5,"items":[{"sku":"a"},"5"],"none":[],"ok":true,"to":"mia@example.org"}'
    )

    assert lines == [
        "amount: 5",
        'items[0].sku: "a"',
        'items[1]: "5"',
        "none: []",
        "ok: true",
        'to: "mia@example.org"',
    ]
    assert render_arguments("{}") == ["(no arguments)"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("\\u202egpj", "⟦U+202E⟧gpj"),
        ("a\\u200bb", "a⟦U+200B⟧b"),
        ("\\u0000\\u001b[2J", "⟦U+0000⟧⟦U+001B⟧[2J"),
        ("a\\u00a0b", "a⟦U+00A0⟧b"),
        ("\\udb40\\udc41", "⟦U+E0041⟧"),
        ("x\\ufe0f\\u3164", "x⟦U+FE0F⟧⟦U+3164⟧"),
        ("⟦U+202E⟧", "⟦U+27E6⟧U+202E⟦U+27E7⟧"),
        ("a" + " " * 40 + "b", "a⟦40 spaces⟧b"),
        ("pаypal.com", "pаypal⟦mixed scripts: Latin, Cyrillic⟧.com"),
        ("Привет, world, 你好 café", "Привет, world, 你好 café"),
        ('a\\",\\"b', 'a\\",\\"b'),
    ],
)
def test_what_a_person_cannot_see_is_marked(value, shown):
    assert render_arguments('{"x":"' + value + '"}') == [f'x: "{shown}"']


def test_a_value_cannot_pass_for_another_argument():
    lines = render_arguments('{"note":"hi\\namount: 5","x\\ny: 1":"z"}')

    assert lines == ['note: "hi⏎', '  │ amount: 5"', '"x⏎⟦U+000A⟧y: 1": "z"']


def test_long_values_say_how_much_is_hidden():
    (line,) = render_arguments(
        '{"x":"' + "a" * 75 + "b" * 900 + "c" * 25 + '"}', max_value_chars=100
    )

    assert line == f'x: "{"a" * 75}" ⟦900 of 1,000 characters hidden⟧ "{"c" * 25}"'


def test_many_lines_say_how_many_are_hidden():
    many = render_arguments('{"x":[' + ",".join("1" * 1 for _ in range(500)) + "]}", max_lines=10)
    tall = render_arguments('{"x":"' + "\\n" * 1500 + '"}', max_lines=10)

    assert (len(many), many[-1]) == (11, "⟦490 more lines hidden⟧")
    assert (len(tall), tall[-1]) == (11, "⟦1,491 more lines hidden⟧")


def test_what_is_no_json_is_shown_as_it_is():
    assert render_arguments('{"a\u202e') == ['"{\\"a⟦U+202E⟧"']


@given(st.text())
def test_nothing_invisible_is_left(text):
    lines = render_arguments(canonical_json({"x": clean_text(text)}))

    shown = "".join(lines).replace(" ", "")
    assert not [c for c in shown if unicodedata.category(c)[0] in "CZ"]
