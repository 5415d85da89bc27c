"""A tool is declared from a plain function, and refused where that cannot work."""

from __future__ import annotations

import functools
import inspect
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from msgspec import Meta

from fsm_agent.errors import BadAgent, UnknownTool
from fsm_agent.tools import Tool, ToolContext, keyed, probed, tool
from fsm_agent.tools.registry import Registry


class Money(msgspec.Struct):
    amount: int
    currency: Literal["EUR", "USD"] = "EUR"


@dataclass
class Range:
    start: int
    end: int | None = None


class Filter(TypedDict, total=False):
    author: str
    year: int


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


@tool
def search(query: str, limit: Annotated[int, Meta(ge=1, le=50)] = 10) -> list[str]:
    """Search the library.

    Finds books and papers.

    Args:
        query: what to look for
        limit: how many to return
    """
    return [query] * limit


def test_a_tool_is_still_callable_like_its_function():
    assert search("a", limit=2) == ["a", "a"]
    assert search.__name__ == "search"
    assert list(inspect.signature(search).parameters) == ["query", "limit"]


def test_the_schema_holds_types_bounds_defaults_and_docstring_words():
    assert search.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for"},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": 50,
                "default": 10,
                "description": "how many to return",
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert search.description == "Search the library.\n\nFinds books and papers."


def test_defaults_of_the_settings_are_those_that_are_safe():
    assert (search.effect_class, search.approval, search.retries) == ("unsafe", "never", 0)
    assert (search.timeout_s, search.version) == (60.0, "1")


def test_annotated_words_win_over_the_docstring():
    @tool
    def f(
        a: Annotated[str, "from the annotation"],
        b: Annotated[str, "inside a union"] | None = None,
        c: Annotated[int, Meta(ge=1), "beside a Meta"] = 1,
    ) -> None:
        """Do it.

        :param a: from the docstring
        """

    properties = f.parameters["properties"]

    assert [properties[n]["description"] for n in "abc"] == [
        "from the annotation",
        "inside a union",
        "beside a Meta",
    ]
    assert properties["c"]["minimum"] == 1


def test_nested_types_are_inlined_and_closed():
    @tool
    def pay(
        money: Money, span: Range, by: Filter, tags: list[str], extra: dict[str, int], x: Any
    ) -> None:
        """Pay."""

    properties = pay.parameters["properties"]

    assert "$ref" not in json.dumps(pay.parameters)
    assert "$defs" not in pay.parameters
    assert all(properties[n]["additionalProperties"] is False for n in ("money", "span", "by"))
    assert properties["extra"]["additionalProperties"] == {"type": "integer"}
    assert properties["tags"] == {"type": "array", "items": {"type": "string"}}


def test_a_recursive_type_keeps_its_definition():
    @tool
    def plant(tree: Tree) -> str:
        """Plant."""
        return tree.children[0].name

    bound = plant.bind('{"tree":{"name":"a","children":[{"name":"b"}]}}')

    assert set(plant.parameters["$defs"]) == {"Tree"}
    assert plant.call(bound.kwargs, None) == "b"
    assert (
        "`tree.children[0].nam`"
        in plant.bind('{"tree":{"name":"a","children":[{"nam":"b"}]}}').problem
    )


def test_a_property_may_be_called_like_a_word_of_the_schema_language():
    @tool
    def f(default: Money, properties: list[Money], description: str, enum: str = "x") -> None:
        """F."""

    assert list(f.parameters["properties"]) == ["default", "properties", "description", "enum"]
    assert "$ref" not in json.dumps(f.parameters)


def test_the_context_is_handed_in_and_hidden_from_the_model():
    @tool
    def whoami(ctx: ToolContext, name: str) -> str:
        return f"{name} in {ctx.run_id}"

    context = ToolContext(run_id="r", call_id="c", idempotency_key="k")

    assert list(whoami.parameters["properties"]) == ["name"]
    assert whoami.call({"name": "mia"}, context) == "mia in r"


def test_types_declared_beside_the_tool_are_found():
    class Local(msgspec.Struct):
        x: int

    @tool(effect="read")
    def f(a: Local, b: int | None = None) -> int:
        return a.x

    assert f.bind('{"a":{"x":3}}').kwargs == {"a": Local(3), "b": None}


def test_none_as_a_default_allows_none():
    @tool
    def f(a: int = None) -> None: ...  # noqa: RUF013

    assert f.bind("{}").arguments == '{"a":null}'
    assert f.bind('{"a":null}').kwargs == {"a": None}


def test_private_parameters_and_fixed_ones_are_not_the_models():
    def find(query: str, tenant: str, _limit: int = 3) -> str:
        return f"{query} {tenant} {_limit}"

    fixed = tool(functools.partial(find, tenant="a"))

    assert fixed.name == "find"
    assert list(fixed.parameters["properties"]) == ["query"]
    assert "`tenant` is not known" in fixed.bind('{"query":"x","tenant":"b"}').problem
    assert fixed.call(fixed.bind('{"query":"x","_limit":9}').kwargs, None) == "x a 3"


class Database:
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def count(self, table: str) -> str:
        return f"{table} {self.rows}"

    @tool(effect="read")
    def find(self, table: str) -> str:
        """Find rows."""
        return f"found in {table} {self.rows}"


def test_bound_methods_and_methods_declared_as_tools_work():
    one, two = Database(1), Database(2)
    count, find = tool(one.count, effect="read"), two.find

    assert count.call(count.bind('{"table":"t"}').kwargs, None) == "t 1"
    assert find.call(find.bind('{"table":"t"}').kwargs, None) == "found in t 2"
    assert find("u") == "found in u 2"
    assert find.effect_class == "read"
    assert Registry([count, find]).names == ("count", "find")


def test_a_method_without_its_instance_is_refused():
    with pytest.raises(BadAgent, match=r"'find' is a method without its instance"):
        Registry([Database.find])


def unannotated(a, b: int) -> None: ...
def starred(*rest: str) -> None: ...
def double_starred(**rest: str) -> None: ...
def positional(a: str, /) -> None: ...
def private(_a: str) -> None: ...
def odd(a: complex) -> None: ...
def wrong_default(a: int = "x") -> None: ...  # type: ignore[assignment]
def unknown_type(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def generator(a: int):
    yield a


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unannotated, ["'unannotated'", "'a'", "no type annotation"]),
        (starred, ["'starred'", "`*rest`"]),
        (double_starred, ["`**rest`"]),
        (positional, ["'a'", "positional-only"]),
        (private, ["'_a'", "private"]),
        (odd, ["'odd'", "'a'", "complex"]),
        (wrong_default, ["default of 'a'"]),
        (unknown_type, ["'Nowhere'"]),
        (generator, ["generator"]),
        (lambda: None, ["1 to 64 letters"]),
        (42, ["not a function"]),
        (search, ["tool already"]),
        (functools.partial(search, limit=1), ["tool already"]),
        (classmethod(unannotated), ["nearest to `def`"]),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_in_clear_words(function, words):
    with pytest.raises(BadAgent) as caught:
        tool(function)

    assert all(word in str(caught.value) for word in words), str(caught.value)


async def async_rule(args: dict[str, Any]) -> bool:
    return False


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"effect": "raed"}, "Did you mean 'read'"),
        ({"effect": "keyed"}, r"keyed\(ttl_s=86400\)"),
        ({"effect": 3}, "no effect"),
        ({"effect": keyed(ttl_s=5)}, "must pass its key on"),
        ({"effect": probed(check=lambda wrong: None)}, "'wrong'"),
        ({"approval": "allways"}, "Did you mean 'always'"),
        ({"approval": async_rule}, "async function"),
        ({"timeout_s": 0}, "positive"),
        ({"timeout_s": float("inf")}, "positive"),
        ({"timeout_s": float("nan")}, "positive"),
        ({"retries": -1}, "0 or more"),
        ({"retries": 1}, "may have happened"),
        ({"retries": 1, "effect": probed(check=lambda key: None)}, "may have happened"),
        ({"max_output_chars": 5}, "Use 100 to 200000"),
        ({"concurrency": 0}, "no call"),
        ({"name": "with blank"}, "1 to 64"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(BadAgent, match=words):
        tool(lambda: None, **{"name": "t", **settings})


def test_ttl_must_be_positive():
    with pytest.raises(BadAgent, match="more than 0"):
        keyed(ttl_s=0)


def test_the_registry_finds_by_name_and_says_what_may_have_been_meant():
    registry = Registry([search, tool(Database(1).count)])

    assert registry.get("search") is search
    assert "search" in registry
    assert len(registry) == 2
    assert [t.name for t in registry] == ["search", "count"]
    assert registry.specs()[0] == ("search", search.description, search.parameters)
    with pytest.raises(UnknownTool, match="Did you mean 'search'"):
        registry.get("serach")


def test_the_registry_refuses_doubles_and_what_is_no_tool():
    with pytest.raises(BadAgent, match="two tools are named 'search'"):
        Registry([search, search])
    with pytest.raises(BadAgent, match="Put @tool above"):
        Registry([unannotated])


def named(**settings: Any) -> Tool[..., Any]:
    def f(a: int, description: str = "x") -> None: ...

    return tool(f, **settings)


def test_the_fingerprint_changes_with_meaning_and_not_with_prose_or_order():
    def f(a: Annotated[int, "words"], description: str = "x") -> None:
        """Prose."""

    def g(a: int) -> None: ...

    base = named()

    assert tool(f).fingerprint == base.fingerprint
    changed = [named(version="2"), named(effect="read"), named(name="h"), tool(g, name="f")]
    assert len({t.fingerprint for t in [base, *changed]}) == 5
    one, two = Registry([base, search]), Registry([search, base])
    assert one.fingerprint() == two.fingerprint() != Registry([base]).fingerprint()
