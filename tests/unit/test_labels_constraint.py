"""A reply of the constrained form never breaks the label rules."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm_agent.labels.constraint import grammar_of, regex_of
from fsm_agent.labels.parser import parse
from fsm_agent.labels.protocol import DEFAULT, LabelProtocol

SPOKEN = DEFAULT.without_tools()
CHINESE = LabelProtocol(allowed=("完成", "思考"), terminal={"完成"}, intermediate={"思考"})


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reply=st.from_regex(regex_of(SPOKEN), fullmatch=True))
def test_whatever_fits_the_form_has_one_label_and_a_body(reply: str) -> None:
    parsed = parse(reply, SPOKEN.allowed)

    assert parsed.label in SPOKEN.allowed
    assert parsed.second_label is None
    assert parsed.text.strip()


@pytest.mark.parametrize(
    ("reply", "fits"),
    [
        ("``FINISH``\nOslo", True),
        ("``FINISH``\n- a\n- b\n\n  c", True),
        ("``FINISH``\nSo:\n```python\nx = `1`\n```\nDone.", True),
        ("``THINK``\nuse ``FINISH`` later", True),
        ("``TOOL``", True),
        ("``TOOL``\n<tool_call>{}</tool_call>", True),
        ("``FINISH``", False),
        ("``FINISH``\n", False),
        ("``FINISH``\n \n", False),
        ("Oslo", False),
        ("``ANSWER``\nOslo", False),
        ("``FINISH``\nOslo\n``THINK``\nmore", False),
        ("``FINISH``\n``THINK``\nmore", False),
        ("``FINISH``\n<think>all of it</think>", False),
    ],
)
def test_the_form_lets_pass_what_the_protocol_does(reply: str, fits: bool) -> None:
    assert bool(re.fullmatch(regex_of(DEFAULT), reply)) is fits


def test_the_grammar_names_the_labels_as_they_are() -> None:
    assert '"``" ("完成" | "思考") "``\\n"' in grammar_of(CHINESE)
    assert '"``" "TOOL" "``"' in grammar_of(DEFAULT)
    assert "TOOL" not in grammar_of(SPOKEN)
