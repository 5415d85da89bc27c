"""The push parser: the same parts in any split, and what each rule of the grammar does."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsm_agent.labels.parser import Parser, gather, parse

ALLOWED = ("THINK", "TOOL", "FINISH", "REPLAN")
FRAGMENTS = [
    "``FINISH``", "`TOOL`", "```THINK```", "FINISH", "FINISH:", "``finish`", "``FIN", "REPLAN",
    "\n", "\r\n", " ", "\t", "\u200b", "\ufeff", "：", " - ", "-", "—", "**", "# ", "> ",
    "“", "”",
    "【", "】", "<", ">", "<think>", "</think>", "<thinking>", "</THINK >", "<reasoning>",
    "<|im_end|>", "<|start|>assistant", "<|channel|>", "final", "analysis", "<|message|>",
    "<|end|>", "<｜begin▁of▁sentence｜>", "```", "```py\n", "~~~\n", "`", "text", "结论", "a < b",
    "word " * 20, "\n``TOOL``\n", "\n``REPLAN`` go", "<TOOL>", "😀", "\ud83d", "\x00",
]  # fmt: skip
replies = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


def parse_split(text: str, cuts: list[int]) -> object:
    parser = Parser(ALLOWED)
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    parts = []
    for start, end in pairwise(edges):
        parts += parser.feed(text[start:end])
    return gather(parser, [*parts, *parser.close()])


@settings(max_examples=1500, deadline=None)
@given(text=replies, cuts=st.lists(st.integers(min_value=0), max_size=8))
@example(text="``FINISH``\nfoo\n<think>x", cuts=[14, 15])
def test_any_split_of_a_reply_parses_alike(text: str, cuts: list[int]) -> None:
    assert parse_split(text, cuts) == parse(text, ALLOWED)


@settings(max_examples=1500, deadline=None)
@given(text=replies)
def test_a_reply_parses_alike_character_by_character(text: str) -> None:
    assert parse_split(text, list(range(len(text)))) == parse(text, ALLOWED)


@settings(max_examples=500, deadline=None)
@given(text=replies)
def test_nothing_visible_of_an_unlabelled_reply_without_tags_is_lost(text: str) -> None:
    parsed = parse(text, ALLOWED)

    if parsed.label is None and "<" not in text:
        assert text.endswith(parsed.text)
        assert not text.removesuffix(parsed.text).strip("\u200b\ufeff \t\r\n")


@pytest.mark.parametrize(
    ("text", "label", "body"),
    [
        ("``FINISH``\n- one\n- two", "FINISH", "- one\n- two"),
        ("``FINISH``\n    code", "FINISH", "    code"),
        ("``FINISH``\r\n\r\nx", "FINISH", "\r\nx"),
        ("`````FINISH`````结论", "FINISH", "结论"),
        ("``FINISH```\nx", "FINISH", "x"),
        ("``FINISH", "FINISH", ""),
        ("FINISH. The end", None, "FINISH. The end"),
        ("TOOL-based approach", None, "TOOL-based approach"),
        ("THINK about it", None, "THINK about it"),
        ("\n" * 200 + "\ufeff\u200b\u2060``TOOL``\n", "TOOL", ""),
    ],
)
def test_the_label_is_taken_off_and_the_body_stays_intact(
    text: str, label: str | None, body: str
) -> None:
    parsed = parse(text, ALLOWED)

    assert (parsed.label, parsed.text) == (label, body)


@pytest.mark.parametrize(
    ("text", "label", "body", "slip"),
    [
        ("Sure, here you go:\n``FINISH``\nBlue.", "FINISH", "Blue.", "Sure, here you go:\n"),
        ("Sure.\n\n``TOOL`` now", "TOOL", "now", "Sure.\n\n"),
        ("Let me look.\n``TOOL``", "TOOL", "", "Let me look.\n"),
        ("a\n</think>\n``FINISH``\nb", "FINISH", "b", ""),
    ],
)
def test_a_courtesy_before_the_label_is_let_pass(
    text: str, label: str, body: str, slip: str
) -> None:
    parsed = parse(text, ALLOWED)

    assert (parsed.label, parsed.text, parsed.slip) == (label, body, slip)


@pytest.mark.parametrize(
    "text",
    [
        "The ``TOOL`` label\nmeans a call.",
        "word " * 40 + "\n``FINISH``\nx",
        "One\n`FINISH` is a label.\nTwo",
        "One\nFINISH\nTwo",
    ],
)
def test_a_label_further_down_is_none(text: str) -> None:
    parsed = parse(text, ALLOWED)

    assert (parsed.label, parsed.text) == (None, text)


def test_the_longest_allowed_label_wins() -> None:
    assert parse("PLAN-B: x", ("PLAN", "PLAN-B")).label == "PLAN-B"


@pytest.mark.parametrize(
    ("body", "second", "line"),
    [
        ("yes\nno\n``REPLAN``\nwait", "REPLAN", 3),
        ("yes\n  `REPLAN`\nwait", "REPLAN", 2),
        ("yes\n`REPLAN` is a label", None, 0),
        ("TOOL use is allowed", None, 0),
        ("REPLAN\nwait", None, 0),
        ("```\n``TOOL``\n```\nx", None, 0),
        ("~~~\n```\n``TOOL``\n~~~\n``TOOL``", "TOOL", 5),
        ("a\n``FINISH``\nb", None, 0),
    ],
)
def test_a_second_label_counts_in_backticks_at_a_line_start_outside_code(
    body: str, second: str | None, line: int
) -> None:
    parsed = parse("``FINISH``\n" + body, ALLOWED)

    assert (parsed.second_label, parsed.second_line) == (second, line)


@pytest.mark.parametrize(
    ("text", "label", "body", "thinking"),
    [
        ("<think>a</think>``FINISH``\nb", "FINISH", "b", "a"),
        ("<thinking>a</think>\n``FINISH``\nb", "FINISH", "b", "a"),
        ("<think>a<think>b</think>c</think>``FINISH``\nd", "FINISH", "d", "a<think>b</think>c"),
        ("<think>I see <think>.</think>``FINISH``\nd", "FINISH", "d", "I see <think>.</think>"),
        ("<think>a\n``FINISH``\nb", "FINISH", "b", "a\n"),
        ("<think>a\n``TOOL``\nb</think>``FINISH``\nc", "FINISH", "c", "a\n``TOOL``\nb"),
        ("<think>never closed", None, "", "never closed"),
        ("all of it\n</think>\n``FINISH``\nb", "FINISH", "b", "all of it\n"),
        (
            "``FINISH``\nsay `<think>` or <think> here",
            "FINISH",
            "say `<think>` or <think> here",
            "",
        ),
        ("``FINISH``\na\n<think>b</think>\nc", "FINISH", "a\nc", "b"),
        ("``FINISH``\na\n<think>b", "FINISH", "a\n<think>b", ""),
        ("``FINISH``\n```\n<think>\n</think>\n```", "FINISH", "```\n<think>\n</think>\n```", ""),
    ],
)
def test_thinking_goes_its_own_way(text: str, label: str | None, body: str, thinking: str) -> None:
    assert parse(text, ALLOWED)[:3] == (label, body, thinking)


def test_the_body_is_passed_on_as_it_comes() -> None:
    parser = Parser(ALLOWED)

    shown = [[part.text for part in parser.feed(text)] for text in ("``FINISH``", "\nOne ", "two")]

    assert shown == [["FINISH"], ["One "], ["two"]]


def test_the_work_for_a_chunk_does_not_grow_with_the_reply() -> None:
    def cost_s(chunks: int, chunk: str) -> float:
        parser = Parser(ALLOWED)
        parser.feed("<think>" if "hmm" in chunk else "``FINISH``\n")
        started = time.process_time()
        for _ in range(chunks):
            parser.feed(chunk)
        return time.process_time() - started

    for chunk in ("word ", "hmm "):
        short = min(cost_s(4_000, chunk) for _ in range(3))
        long = min(cost_s(40_000, chunk) for _ in range(3))

        assert long < 30 * short
