"""Arguments are decoded as they are, repaired where there is one reading, else refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_agent.llm.arguments import parse_arguments

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=6), values, max_size=4)


@settings(max_examples=300, deadline=None)
@given(value=objects, is_ascii=st.booleans())
def test_valid_json_is_never_touched(value: dict[str, Any], is_ascii: bool) -> None:
    assert parse_arguments(json.dumps(value, ensure_ascii=is_ascii)) == (value, None)


@settings(max_examples=500, deadline=None)
@given(value=objects.filter(bool), cut=st.integers(min_value=1))
def test_arguments_that_were_cut_are_never_completed(value: dict[str, Any], cut: int) -> None:
    text = json.dumps(value)
    part = text[: 1 + cut % (len(text) - 1)]

    arguments, problem = parse_arguments(part)

    assert arguments is None
    assert problem


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ("", {}),
        (" \n", {}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ("{'a': 'it\\'s', 'b': True, 'c': None}", {"a": "it's", "b": True, "c": None}),
        ("{'a': true, 'b': null,}", {"a": True, "b": None}),
        ('{"a": "x\r\ny\t"}', {"a": "x\r\ny\t"}),
        ('{"a": [1, 2,],}', {"a": [1, 2]}),
        ('{"a": "1,}"}<|im_end|>', {"a": "1,}"}),
        ('{"a": 1}}', {"a": 1}),
        ('{}{"a": 1}', {"a": 1}),
        ('{"a": 1}{"a": 1}', {"a": 1}),
    ],
)
def test_what_has_one_reading_is_repaired(raw: str, arguments: dict[str, Any]) -> None:
    assert parse_arguments(raw) == (arguments, None)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("[1]", "one JSON object"),
        ('"Lagos"', "one JSON object"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "too large"),
        ('{"a": 1, "a": 2}', "'a' twice"),
        ("{'a': 1, 'a': 2}", "'a' twice"),
        ('{"a": {"b": 1, "b": 2}}', "'b' twice"),
        ('{"a": 1}{"a": 2}', "two different objects"),
        ('{"a": 1}, "b": 2}', "not valid JSON"),
        ('{"a": "say "" done"}', "not valid JSON"),
        ('{"a": "print("x", "y")"}', "not valid JSON"),
        ("{'a': (1,)}", "not valid JSON"),
        ("{'a': open('x')}", "not valid JSON"),
        ("city is Tunis", "not valid JSON"),
        ('{"a": ' + "[" * 5000, "deeply"),
        ('{"a": ' + "1" * 5000 + "}", "400 digits"),
    ],
)
def test_all_else_is_refused_in_words_for_the_model(raw: str, said: str) -> None:
    arguments, problem = parse_arguments(raw)

    assert arguments is None
    assert problem is not None
    assert said in problem
