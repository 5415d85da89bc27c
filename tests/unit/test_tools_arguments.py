"""Arguments are typed, canonical, and refused in words that a model can use."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from fsm_agent.run.content import canonical_json
from fsm_agent.tools import tool
from fsm_agent.tools.arguments import Bound, Refused
from fsm_agent.tools.effects import arguments_digest, idempotency_key


class Item(msgspec.Struct):
    sku: str
    count: int = 1


@tool
def order(
    query: str,
    limit: Annotated[int, Meta(ge=1)] = 10,
    mode: Literal["fast", "deep"] = "fast",
    items: list[Item] = [],  # noqa: B006 - part of the test
    tags: set[str] = set(),  # noqa: B006
    extra: dict[str, Any] | None = None,
    ratio: float = 0.5,
) -> None:
    """Order."""


def test_defaults_are_part_of_what_is_shown_and_hashed():
    bound = order.bind('{"query":"a"}')

    assert bound.kwargs["items"] == []
    assert json.loads(bound.arguments) == {
        "query": "a",
        "limit": 10,
        "mode": "fast",
        "items": [],
        "tags": [],
        "extra": None,
        "ratio": 0.5,
    }


def test_a_mutable_default_is_not_shared():
    first = order.bind('{"query":"a"}')
    first.kwargs["items"].append(1)

    assert order.bind('{"query":"a"}').kwargs["items"] == []


def test_one_reading_is_accepted():
    bound = order.bind('{"query":"a","limit":"5","items":[{"sku":"x","count":"2"}],"ratio":1}')

    assert (bound.kwargs["limit"], bound.kwargs["ratio"]) == (5, 1.0)
    assert bound.kwargs["items"] == [Item("x", 2)]
    assert '"limit":5' in bound.arguments


def test_two_readings_are_not_guessed():
    @tool
    def f(a: int | str, b: datetime.datetime | None = None, c: str | None = None) -> None: ...

    assert f.bind('{"a":"5"}').kwargs["a"] == "5"
    assert f.bind('{"a":1,"c":"null"}').kwargs["c"] == "null"
    assert isinstance(f.bind('{"a":1,"b":1700000000}'), Refused)  # seconds, or milliseconds?


def test_private_keys_are_stripped_and_named():
    bound = order.bind('{"query":"a","_user":"root","_x":1}')

    assert bound.stripped == ("_user", "_x")
    assert "root" not in bound.arguments


@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_no_arguments_are_an_empty_object(text):
    @tool
    def ping() -> None: ...

    assert ping.bind(text) == Bound({}, "{}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ('{"query":"rm -rf build/x', "not valid JSON"),
        ("[1]", "a JSON object is needed, not an array"),
        ("null", "not null"),
        ('"x"', "not a string"),
        ("true", "not a boolean"),
        ("3", "not a number"),
        ('{"query":"a","query":"b"}', "'query' stands twice"),
        ('{"query":"a","extra":{"k":1,"k":2}}', "'k' stands twice"),
        ('{"query":"a","ratio":NaN}', "NaN is not JSON"),
        ('{"query":"a","ratio":-Infinity}', "-Infinity is not JSON"),
        ('{"query":"a","ratio":"nan"}', "nan is not a JSON number"),
        ('{"query":"a","ratio":1e999}', "inf is not a JSON number"),
        ('{"query":"a","extra":{"x":1e999}}', "inf is not a JSON number"),
        ("{}", "`query` is missing"),
        ('{"query":1}', "`query`: Expected `str`, got `int`"),
        ('{"query":null}', "got `null`"),
        ('{"query":"a","limit":0}', "`limit`: Expected `int` >= 1"),
        ('{"query":"a","limit":true}', "got `bool`"),
        ('{"query":"a","limit":2.5}', "`limit`"),
        ('{"query":"a","mode":"slow"}', 'Allowed: "deep", "fast"'),
        ('{"query":"a","items":[{"sku":"x"},{"sku":3}]}', "`items[1].sku`: Expected `str`"),
        ('{"query":"a","items":[{"sku":"x","cuont":3}]}', "`items[0].cuont` is not known."),
        ('{"query":"a","items":[{"sku":"x","cuont":3}]}', "Did you mean 'count'?"),
        ('{"query":"a","lmit":3}', "`lmit` is not known. Did you mean 'limit'?"),
        ('{"query":"a","extra":' + "[" * 5000 + "]" * 5000 + "}", ""),
        ('{"query":"a","extra":' + "[" * 200_000, ""),
        ('{"query":"a","limit":' + "9" * 5000 + "}", ""),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_words_for_the_model(text, words):
    refused = order.bind(text)

    assert isinstance(refused, Refused)
    assert words in refused.problem
    assert len(refused.problem) <= 1000


def test_all_problems_are_told_at_once():
    problem = order.bind('{"limit":"x","mode":"slow","nonsense":1}').problem

    assert all(name in problem for name in ("`query`", "`limit`", "`mode`", "`nonsense`"))


@pytest.mark.parametrize("escape", ["\\ud83d", "\ud83d"])
def test_half_a_surrogate_pair_is_replaced(escape):
    bound = order.bind('{"query":"a' + escape + '"}')

    assert bound.kwargs["query"] == "a\ufffd"
    bound.arguments.encode()


def test_a_whole_pair_nul_and_bidi_marks_stay():
    assert order.bind('{"query":"\\ud83d\\ude00\\u0000\u202e"}').kwargs["query"] == "😀\0\u202e"


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 2**70),
        (bytes, "aGk="),
        (datetime.date, "2026-02-03"),
        (datetime.timedelta, "PT5S"),
        (Decimal, "1.50"),
        (set[str], ["b", "a"]),
        (tuple[int, str], [1, "a"]),
        (dict[int, str], {"2": "b", "1": "a"}),
        (float, 3),
        (Any, {"b": [1, None, True], "a": "x"}),
        (Item | None, {"sku": "x"}),
        (list[Item | int], [1, {"sku": "x", "count": "4"}]),
    ],
)
def test_what_is_shown_binds_to_what_runs(hint, value):
    def f(x: Any) -> None: ...

    f.__annotations__["x"] = hint
    made = tool(f)

    bound = made.bind(json.dumps({"x": value}))

    assert isinstance(bound, Bound), bound
    assert made.bind(bound.arguments) == bound


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ARGUMENTS = st.fixed_dictionaries(
    {"query": st.text()},
    optional={
        "limit": st.integers(min_value=1) | st.integers(min_value=1, max_value=2**31).map(str),
        "mode": st.sampled_from(["fast", "deep"]),
        "items": st.lists(
            st.fixed_dictionaries({"sku": st.text()}, optional={"count": st.integers()})
        ),
        "tags": st.lists(st.text()),
        "extra": st.none() | st.dictionaries(st.text(), JSON),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "_private": JSON,
    },
)


@given(ARGUMENTS)
def test_binding_is_a_projection(arguments):
    bound = order.bind(json.dumps(arguments))

    assert isinstance(bound, Bound), bound
    again = order.bind(bound.arguments)
    assert (again.kwargs, again.arguments) == (bound.kwargs, bound.arguments)
    assert canonical_json(json.loads(bound.arguments)) == bound.arguments


def shuffled(value: Any, order_of: st.DataObject) -> Any:
    if isinstance(value, dict):
        keys = order_of.draw(st.permutations(list(value)))
        return {key: shuffled(value[key], order_of) for key in keys}
    return [shuffled(v, order_of) for v in value] if isinstance(value, list) else value


@given(ARGUMENTS, st.data())
def test_equal_arguments_in_any_order_have_one_digest(arguments, data):
    one = order.bind(json.dumps(arguments))
    two = order.bind(json.dumps(shuffled(arguments, data), indent=2, ensure_ascii=False))

    digests = {arguments_digest("order", "1", bound.arguments) for bound in (one, two)}
    assert len(digests) == 1


@given(JSON | st.text().map(lambda t: "{" + t))
def test_any_text_is_bound_or_refused_and_never_raises(value):
    text = value if isinstance(value, str) else json.dumps(value)

    assert isinstance(order.bind(text), Bound | Refused)


PLACES = st.fixed_dictionaries(
    {
        "scope": st.text(),
        "run_id": st.text(),
        "think_seq": st.integers(min_value=0),
        "index": st.integers(min_value=0),
        "name": st.text(),
        "version": st.text(),
        "arguments": st.text(),
    }
)


@given(PLACES, PLACES)
def test_a_redo_has_the_same_key_and_another_place_has_another(one, two):
    assert idempotency_key(**one) == idempotency_key(**dict(reversed(one.items())))
    assert (idempotency_key(**one) == idempotency_key(**two)) == (one == two)
    assert len(idempotency_key(**one)) == 64


@given(
    PLACES,
    st.sampled_from(["scope", "run_id", "name", "version", "arguments"]),
    st.text(min_size=1),
)
def test_moving_text_from_one_field_to_the_next_changes_the_key(place, field, more):
    assert idempotency_key(**place) != idempotency_key(**{**place, field: place[field] + more})


def test_the_key_of_a_call_is_what_it_always_was():
    place = {"scope": "", "run_id": "r", "think_seq": 3, "index": 0, "name": "pay", "version": "1"}

    key = idempotency_key(**place, arguments='{"amount":5}')

    # Stored runs rely on it: a change here sends new keys for calls that may have happened.
    assert key == "c244c176f1362210b1519bc9b35b6530a499d431af5b4210cc98ad6ea890a088"
    assert (
        arguments_digest("pay", "1", '{"amount":5}')
        == "7e9e2ee816eda74162a9c9ec7e255f8a0e43e17adfe203f3d38a9c00c594fa89"
    )
