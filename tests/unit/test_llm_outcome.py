"""Which rule of the protocol a whole reply breaks: the first that holds."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent.labels.protocol import DEFAULT, LabelProtocol
from fsm_agent.llm.model import RequestedCall
from fsm_agent.llm.outcome import Draft, judge

CALL = RequestedCall("look", {}, "{}")
BAD_CALL = RequestedCall("look", None, "{", "It is cut off.")


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"label": "FINISH", "text": "42"}, None),
        ({"label": "THINK", "text": ""}, None),
        ({"label": "THINK", "text": "so", "finish_reason": "length"}, None),
        ({"label": "TOOL", "text": "", "calls": (CALL,)}, None),
        ({"label": "FINISH", "text": "no", "refusal": "no", "second_label": "TOOL"}, "refusal"),
        ({"label": "FINISH", "text": "x", "finish_reason": "content_filter"}, "content_filter"),
        ({"label": "FINISH", "text": "x", "second_label": "TOOL"}, "multiple_labels"),
        (
            {"label": "FINISH", "text": "", "second_label": "TOOL", "finish_reason": "length"},
            "multiple_labels",
        ),
        ({"label": "FINISH", "text": "x", "finish_reason": "length"}, "truncated"),
        ({"label": "TOOL", "text": "", "calls": (CALL,), "finish_reason": "length"}, "truncated"),
        ({"label": None, "text": "x", "finish_reason": "length"}, "truncated"),
        ({"label": None, "text": " \n"}, "empty_completion"),
        ({"label": None, "text": "x"}, "missing_label"),
        ({"label": None, "text": "", "calls": (CALL,)}, "missing_label"),
        ({"label": "TOOL", "text": "x"}, "tool_without_calls"),
        ({"label": "FINISH", "text": "x", "calls": (BAD_CALL,)}, "label_with_tools"),
        ({"label": "TOOL", "text": "", "calls": (CALL, BAD_CALL)}, "invalid_arguments"),
        ({"label": "FINISH", "text": " "}, "empty_completion"),
    ],
)
def test_the_first_violation_is_named(fields: dict[str, Any], violation: str | None) -> None:
    verdict = judge(Draft(**fields), DEFAULT)

    assert verdict.violation == violation
    assert bool(verdict.detail) == (violation is not None)


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"text": "42"}, None),
        ({"text": "", "calls": (CALL,)}, None),
        ({"text": "I look.", "calls": (CALL,)}, None),
        ({"text": ""}, "empty_completion"),
        ({"text": "4", "finish_reason": "length"}, "truncated"),
        ({"text": "", "calls": (BAD_CALL,)}, "invalid_arguments"),
    ],
)
def test_without_a_protocol_calls_act_and_text_answers(
    fields: dict[str, Any], violation: str | None
) -> None:
    assert judge(Draft(label=None, **fields), None).violation == violation


def test_the_detail_names_the_label_the_line_and_what_is_allowed() -> None:
    two = judge(Draft(label="FINISH", text="x", second_label="TOOL", second_line=3), DEFAULT)
    none = judge(Draft(label=None, text="x"), DEFAULT)

    assert "``FINISH``" in two.detail
    assert "line 3" in two.detail
    assert all(f"``{label}``" in none.detail for label in DEFAULT.allowed)


def test_a_terminal_label_that_is_not_final_may_be_empty_but_not_cut() -> None:
    protocol = LabelProtocol(allowed=("REPLAN",), terminal=frozenset({"REPLAN"}))

    assert judge(Draft(label="REPLAN", text=""), protocol).violation is None
    cut = Draft(label="REPLAN", text="x", finish_reason="length")
    assert judge(cut, protocol).violation == "truncated"
