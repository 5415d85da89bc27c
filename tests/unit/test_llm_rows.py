"""engine.md §1, §2 and the rows 1 to 31 of §8 that one reply shows, each by its number."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_agent.errors import BadProtocol
from fsm_agent.labels.parser import Parser, gather, parse
from fsm_agent.labels.protocol import LabelProtocol
from fsm_agent.llm.model import RequestedCall
from fsm_agent.run.content import Usage
from tests.unit.test_llm_kit import (
    DONE,
    PROTOCOL,
    Read,
    called,
    chunk,
    event,
    part_of_call,
    read,
    said,
)

ALLOWED = PROTOCOL.allowed


def reply_of(found: Read) -> tuple[str | None, str, str | None]:
    assert found.reply is not None, found.error
    return found.reply.label, found.reply.text, found.reply.violation


def calls_of(found: Read) -> tuple[RequestedCall, ...]:
    assert found.reply is not None, found.error
    return found.reply.calls


# --- §1: the protocol is data, and consistent


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed": ("A", "B"), "terminal": {"A"}},
        {"allowed": ("A",), "terminal": {"A"}, "intermediate": {"A"}},
        {"allowed": ("A",), "terminal": {"A"}, "tool_label": "TOOL"},
        {"allowed": ("A",), "terminal": {"A"}, "final": {"B"}},
    ],
    ids=["no class", "two classes", "tool not allowed", "final not allowed"],
)
def test_an_inconsistent_protocol_is_refused_when_it_is_built(fields: dict[str, object]) -> None:
    with pytest.raises(BadProtocol):
        LabelProtocol(**fields)  # type: ignore[arg-type]


def test_final_is_orthogonal_to_terminal() -> None:
    protocol = LabelProtocol(
        allowed=("REPLAN", "PAUSE"), terminal={"REPLAN"}, intermediate={"PAUSE"}, final={"PAUSE"}
    )

    replan = said("``REPLAN``\nup", protocol=protocol)
    pause = said("``PAUSE``\nfor you", protocol=protocol)

    assert (replan.shown("body"), pause.shown("body")) == ("", "for you")


def test_the_label_is_never_taken_from_reasoning_or_calls() -> None:
    only_reasoning = read([chunk(reasoning_content="``FINISH``\nok"), chunk("stop"), DONE])
    only_calls = read(
        [chunk(tool_calls=[part_of_call("look", "{}", index=0)]), chunk("tool_calls"), DONE]
    )

    assert reply_of(only_reasoning)[0] is None
    assert reply_of(only_calls) == (None, "", "missing_label")


def test_after_64_characters_of_something_else_there_is_no_label_and_the_draft_is_kept() -> None:
    text = "x" * 65 + "\n\n" + "y" * 200 + "\n``FINISH``\nlate"

    assert reply_of(said(text)) == (None, text, "missing_label")


def test_a_second_label_counts_only_in_the_vocabulary_different_ticked_and_unfenced() -> None:
    assert reply_of(said("``FINISH``\na\n``THINK``\nb"))[2] == "multiple_labels"
    for harmless in (
        "``FINISH``\na\n``OTHER``\nb",
        "``FINISH``\na\n``FINISH``\nb",
        "``FINISH``\na\nTHINK\nb",
        "``FINISH``\n```\n``THINK``\n```",
    ):
        assert reply_of(said(harmless))[2] is None


# --- §2: routing


def test_what_is_not_for_the_user_is_shown_as_thinking() -> None:
    found = read(
        [chunk(reasoning="r "), chunk(content="<think>t </think>``THINK``\nb"), chunk("stop"), DONE]
    )

    assert (found.shown("thinking"), found.shown("body")) == ("r t b", "")


@pytest.mark.parametrize("is_live", [False, True])
def test_the_live_text_of_an_accepted_reply_is_its_text(is_live: bool) -> None:
    found = said("``FINISH``\n- a", "\n- <b> c", "\nd <|im_", "end|>", is_live=is_live)

    assert found.shown("body") == found.reply.text == "- a\n- <b> c\nd "  # type: ignore[union-attr]
    assert len([p for p in found.pieces if p.channel == "body"]) == (3 if is_live else 1)


# --- §8

REPLY = (
    "<think>a ``THINK``\n</think>\n``FINISH``\n- one\n\n```\n``TOOL``\n```\n<think>x</think>\nend"
)


@settings(max_examples=150, deadline=None)
@given(cuts=st.lists(st.integers(0, len(REPLY)), max_size=20))
def test_row_01_any_split_of_a_reply_gives_the_same(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(REPLY)]

    found = said(*(REPLY[start:end] for start, end in pairwise(edges)))

    assert found.outcome == said(*REPLY).outcome == said(REPLY).outcome


@pytest.mark.parametrize("gap", ["\n", ": ", "：", " "])
def test_row_02_one_break_goes_and_the_first_dash_stays(gap: str) -> None:
    assert reply_of(said(f"``FINISH``{gap}- a\n- b"))[:2] == ("FINISH", "- a\n- b")
    assert parse("``FINISH``\n\n  - a", ALLOWED).text == "\n  - a"


@pytest.mark.parametrize("ticks", [1, 2, 3, 5])
def test_row_03_any_number_of_ticks_with_the_body_glued(ticks: int) -> None:
    wrapper = "`" * ticks

    assert reply_of(said(f"{wrapper}FINISH{wrapper}答案是四。"))[:2] == ("FINISH", "答案是四。")


def test_row_04_a_tick_that_comes_late_does_not_stay_in_the_body() -> None:
    assert reply_of(said("``FINISH`", "`", "`\nok"))[:2] == ("FINISH", "ok")


def test_row_05_an_unclosed_wrapper_is_a_label_at_the_end_only() -> None:
    parser = Parser(ALLOWED)

    assert parser.feed("``FINISH") == []
    assert not parser.is_locked
    assert gather(parser, parser.close()).label == "FINISH"


@pytest.mark.parametrize("text", ["FINISH. ok", "FINISH，ok", "FINISH.", "FINISH，"])
def test_row_06_a_bare_label_before_other_punctuation_is_none_streamed_or_not(text: str) -> None:
    assert reply_of(said(text))[0] is None
    assert reply_of(said(*text))[0] is None


@pytest.mark.parametrize("text", ["TOOL-based approach works.", "THINK about the weather."])
def test_row_07_prose_that_begins_with_a_label_word_is_no_label(text: str) -> None:
    assert reply_of(said(text)) == (None, text, "missing_label")


def test_row_08_the_longest_label_wins() -> None:
    for text in ("PLAN-B: x", "``PLAN-B``\nx"):
        assert parse(text, ("PLAN", "PLAN-B")).label == "PLAN-B"


def test_row_09_what_is_invisible_before_a_label_does_not_count() -> None:
    assert reply_of(said("\ufeff" + "\n" * 200 + "\u200b\u2060``FINISH``\nok"))[:2] == (
        "FINISH",
        "ok",
    )


def test_row_10_a_courtesy_before_the_label_is_let_pass_and_noted() -> None:
    found = said("Sure, here it is.\n``FINISH``\nok")

    assert reply_of(found) == ("FINISH", "ok", None)
    assert "Sure, here it is." in found.reply.detail  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "body", ["```\nTOOL = 1\n```", "TOOL use is fine.", "THINK\nis a word", "Use ``TOOL`` so."]
)
def test_row_11_and_12_label_words_in_a_body_are_no_violation(body: str) -> None:
    assert reply_of(said(f"``FINISH``\n{body}")) == ("FINISH", body, None)


def test_row_13_a_second_label_is_reported_with_its_line() -> None:
    found = said("``FINISH``\none\ntwo\n``THINK``\nthree")

    assert reply_of(found)[2] == "multiple_labels"
    assert "line 3" in found.reply.detail  # type: ignore[union-attr]


@pytest.mark.parametrize(("is_allowed", "label"), [(True, "TOOL"), (False, None)])
def test_row_14_calls_without_a_label_are_an_action_where_the_policy_says_so(
    is_allowed: bool, label: str | None
) -> None:
    protocol = LabelProtocol(
        allowed=("TOOL", "FINISH"),
        terminal={"FINISH"},
        final={"FINISH"},
        tool_label="TOOL",
        accept_bare_calls=is_allowed,
    )
    delta = part_of_call("look", "{}", index=0, id="a")
    found = read([chunk(tool_calls=[delta]), chunk("tool_calls"), DONE], protocol=protocol)

    assert reply_of(found)[0] == label
    assert [call.name for call in calls_of(found)] == ["look"]


@pytest.mark.parametrize("is_live", [False, True])
def test_row_15_and_16_an_answer_with_calls_is_not_shown_or_taken_back(is_live: bool) -> None:
    delta = part_of_call("look", "{}", index=0, id="a")
    body = [chunk(content="``FINISH``\nIt is "), chunk(content="done."), chunk(tool_calls=[delta])]

    found = read([*body, chunk("tool_calls"), DONE], is_live=is_live)

    assert reply_of(found)[2] == "label_with_tools"
    assert found.shown("body") == ""
    channels = [piece.channel for piece in found.pieces]
    assert channels == (["body", "body", "retracted"] if is_live else [])


def test_row_17_a_whole_answer_without_a_label_is_kept_as_the_draft() -> None:
    assert reply_of(said("The capital is Oslo.")) == (None, "The capital is Oslo.", "missing_label")


def test_row_18_thinking_that_is_only_closed_goes_before_the_label() -> None:
    found = said("I wonder, ", "and wonder", "</think>\n", "``FINISH``\nok")

    assert reply_of(found)[:2] == ("FINISH", "ok")
    assert found.reply.thinking == "I wonder, and wonder"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        "<think>a<think>b</think>c</think>``FINISH``\nok",
        "<think>a</thinking>``FINISH``\nok",
        "<thinking>a</think>``FINISH``\nok",
        "<think>a\n``FINISH``\nok",
    ],
    ids=["nested", "other closer", "other opener", "never closed"],
)
def test_row_19_thinking_tags_never_swallow_the_body(text: str) -> None:
    assert reply_of(said(text))[:2] == ("FINISH", "ok")
    assert reply_of(said(*text))[:2] == ("FINISH", "ok")


@pytest.mark.parametrize(
    "body", ["Write `<think>` first.", "```\n<think>x</think>\n```", "if a <think> then"]
)
def test_row_20_a_mention_of_a_thinking_tag_stays_shown_and_returned(body: str) -> None:
    found = said(*f"``FINISH``\n{body}", is_live=True)

    assert reply_of(found) == ("FINISH", body, None)
    assert found.shown("body") == body


def test_row_21_a_thinking_block_inside_a_live_body_is_not_shown() -> None:
    found = said(*"``FINISH``\none\n<think>hm\n</think>\ntwo", is_live=True)

    assert found.shown("body") == found.reply.text == "one\ntwo"  # type: ignore[union-attr]
    assert found.reply.thinking.strip() == "hm"  # type: ignore[union-attr]


def test_row_22_reasoning_after_the_label_is_traced_and_returned() -> None:
    found = read(
        [chunk(content="``FINISH``\no"), chunk(reasoning="later"), chunk("stop", content="k"), DONE]
    )

    assert reply_of(found)[:2] == ("FINISH", "ok")
    assert found.reply.thinking == found.shown("thinking") == "later"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "deltas",
    [
        [
            part_of_call("look", '{"q":', index=0, id="a"),
            part_of_call("look", "1}", index=0, id="a"),
            part_of_call("send", "{}", index=1, id="b"),
        ],
        [
            part_of_call("look", '{"q":1}', index=None, id="a"),
            part_of_call("send", "{}", index=None, id="b"),
        ],
        [
            part_of_call("look", '{"q":1}', index=0, id="a"),
            part_of_call("send", "{}", index=0, id="b"),
        ],
        [part_of_call("look", '{"q":1}', index=0), part_of_call("send", "{}", index=1)],
        [
            part_of_call("look", "", index=0, id="a"),
            part_of_call("send", "{}", index=0, id="b"),
            part_of_call(None, '{"q":1}', index=0, id="a"),
        ],
    ],
    ids=["repeated", "index None", "all index 0", "no ids", "interleaved by id"],
)
def test_row_24_odd_deltas_are_separate_whole_calls(deltas: list[dict[str, object]]) -> None:
    calls = calls_of(called(*deltas))

    assert [(call.name, call.arguments) for call in calls] == [("look", {"q": 1}), ("send", {})]


def test_row_25_arguments_cut_by_the_length_limit_are_no_call_to_run() -> None:
    found = called(part_of_call("look", '{"q": "unfin', index=0, id="a"), finish="length")

    assert reply_of(found)[2] == "truncated"
    assert calls_of(found)[0].arguments is None
    assert "length limit" in (calls_of(found)[0].problem or "")


def test_row_26_an_answer_cut_by_the_length_limit_is_no_success() -> None:
    assert reply_of(said("``FINISH``\nIt is", finish="length")) == ("FINISH", "It is", "truncated")


def test_row_27_an_empty_answer_is_a_violation() -> None:
    assert reply_of(said("``FINISH``\n \n"))[2] == "empty_completion"


def test_row_30_what_comes_after_the_finish_reason_is_read() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    found = read(
        [
            chunk("stop", content="``FINISH``\no"),
            chunk(content="k"),
            event({"choices": [], "usage": usage}),
            DONE,
        ]
    )

    assert reply_of(found) == ("FINISH", "ok", None)
    assert found.reply.usage == Usage(7, 3)  # type: ignore[union-attr]


ZERO, SOME = {"prompt_tokens": 0, "completion_tokens": 0}, {"input_tokens": 7, "output_tokens": 3}


@pytest.mark.parametrize(
    ("frames", "usage"),
    [
        ([SOME], Usage(7, 3)),
        ([SOME, SOME, SOME], Usage(7, 3)),
        ([SOME, ZERO], Usage(7, 3)),
        ([ZERO], Usage(0, 0)),
        ([None, {}], None),
        ([], None),
        ([{"prompt_tokens": None, **SOME}], Usage(7, 3)),
    ],
    ids=["one", "many", "zeros last", "only zeros", "null", "none", "both names"],
)
def test_row_31_usage_is_counted_once(frames: list[object], usage: Usage | None) -> None:
    body = [event({"choices": [], "usage": frame}) for frame in frames]
    found = read([chunk("stop", content="``FINISH``\nok"), *body, DONE])

    assert found.reply is not None
    assert found.reply.usage == usage


def test_a_stream_of_one_byte_reads_is_the_same_stream() -> None:
    body = b"".join(
        [
            chunk(content="``FINISH``\nπ \U0001f600 "),
            b": ping\r\n\r\n",
            event({"choices": [{"delta": {"content": json.dumps({"a": 1})}}]}),
            chunk("stop"),
            DONE,
        ]
    )

    assert read(body[at : at + 1] for at in range(len(body))).outcome == read([body]).outcome
