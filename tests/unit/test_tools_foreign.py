"""Tools of other libraries, registered as they are."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fsm_agent.errors import BadAgent
from fsm_agent.tools import ToolContext, tool, tool_from
from fsm_agent.tools.arguments import Bound, Refused
from fsm_agent.tools.dispatch import Result, run_call
from fsm_agent.tools.registry import Registry

CONTEXT = ToolContext(run_id="r", call_id="c", idempotency_key="k")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"q": {"type": "string", "minLength": 1}, "n": {"type": "integer"}, "_id": {}},
    "required": ["q"],
    "additionalProperties": False,
}


async def call(made: Any, **arguments: Any) -> Result:
    bound = made.bind(json.dumps(arguments))
    assert isinstance(bound, Bound), bound
    return await run_call(made, bound, CONTEXT)


class Model:
    """What a pydantic class looks like from outside."""

    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return SCHEMA


class LangTool:
    name, description, args_schema = "search", "Search things.", Model

    def __init__(self) -> None:
        self.threads: list[int] = []

    def invoke(self, given: dict[str, Any]) -> Any:
        self.threads.append(threading.get_ident())
        return {"found": given}

    async def ainvoke(self, given: dict[str, Any]) -> Any:
        raise AssertionError("a sync tool runs in a thread of ours")


class AsyncLangTool(LangTool):
    async def coroutine(self) -> None: ...

    async def ainvoke(self, given: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return ["async", given]


async def test_a_langchain_tool_is_unsafe_by_default_and_runs_in_a_thread():
    foreign = LangTool()
    made = tool_from(foreign)

    result = await call(made, q="x", n=2)

    assert (made.name, made.description, made.effect_class) == (
        "search",
        "Search things.",
        "unsafe",
    )
    assert result.text == '{"found": {"n": 2, "q": "x"}}'
    assert foreign.threads != [threading.get_ident()]
    assert made.parameters == SCHEMA


async def test_an_async_langchain_tool_is_awaited():
    assert (await call(tool_from(AsyncLangTool(), effect="read"), q="x")).text.startswith(
        '["async"'
    )


async def test_args_alone_are_enough_of_a_schema():
    foreign = SimpleNamespace(
        name="s",
        description="",
        args={"q": {"type": "string"}, "n": {"type": "integer", "default": 3}},
        invoke=lambda given: given,
    )

    made = tool_from(foreign, effect="read")

    assert made.parameters["required"] == ["q"]
    assert (await call(made, q="x")).text == '{"q": "x"}'


async def test_a_pydantic_ai_tool_is_given_what_its_own_validator_makes():
    described = SimpleNamespace(
        json_schema=SCHEMA,
        takes_ctx=False,
        validator=SimpleNamespace(validate_python=lambda given: {"q": given["q"].upper()}),
        single_arg_name=None,
    )
    foreign = SimpleNamespace(
        name="up", description="Up.", function=lambda q: q, function_schema=described
    )

    assert (await call(tool_from(foreign), q="x")).text == "X"


async def test_a_pydantic_ai_tool_that_wants_its_context_is_refused():
    foreign = SimpleNamespace(name="up", function=print, function_schema=None, takes_ctx=True)

    with pytest.raises(BadAgent, match="RunContext"):
        tool_from(foreign)


@pytest.mark.parametrize("is_wrapped", [True, False])
async def test_an_openai_dict_comes_with_its_function(is_wrapped):
    inner = {"name": "find", "description": "Find.", "parameters": SCHEMA}
    given = {"type": "function", "function": inner} if is_wrapped else {"type": "function", **inner}

    made = tool_from(given, lambda **given: given, name="look", effect="idempotent")

    assert (made.name, made.effect_class) == ("look", "idempotent")
    assert (await call(made, q="x")).text == '{"q": "x"}'


def openai(schema: Any) -> Any:
    return tool_from({"name": "t", "parameters": schema}, lambda **given: given)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"q": ""}', "`q`: "),
        ('{"n": 1}', '"q" is a required property'),
        ('{"q": "x", "n": "1"}', "`n`: "),
        ('{"q": "x", "z": 1}', "'z' was unexpected"),
        ('{"q": "x", "q": "y"}', "twice"),
        ('{"q": NaN}', "not JSON"),
        ("[1]", "a JSON object is needed"),
        ("{", "not valid JSON"),
        ('{"q": ' + "[" * 3000 + "]" * 3000 + "}", "nested"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_words(text, words):
    bound = openai(SCHEMA).bind(text)

    assert isinstance(bound, Refused)
    assert words in bound.problem


def test_private_keys_are_stripped_unless_the_schema_knows_them():
    bound = openai(SCHEMA).bind('{"q": "x", "_id": 7, "_secret": 1}')

    assert isinstance(bound, Bound)
    assert (bound.arguments, bound.stripped) == ('{"_id":7,"q":"x"}', ("_secret",))
    again = openai(SCHEMA).bind(bound.arguments)
    assert isinstance(again, Bound)
    assert again.arguments == bound.arguments


def test_problems_are_few():
    bound = openai({"properties": {f"k{n}": False for n in range(100)}}).bind(
        json.dumps({f"k{n}": n for n in range(100)})
    )

    assert isinstance(bound, Refused)
    assert len(bound.problem) <= 1000


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object", "properties": {"a": {"type": "strin"}}},
        {"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}},
        {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"properties": []},
        7,
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_and_nothing_is_fetched(schema):
    with pytest.raises(BadAgent, match="schema"):
        openai(schema)


def test_a_pattern_that_takes_for_ever_does_not():
    made = openai({"properties": {"a": {"type": "string", "pattern": r"^(?:(a+)+)\1?$"}}})

    assert isinstance(made.bind(json.dumps({"a": "a" * 200 + "b"})), Refused)


@pytest.mark.parametrize(
    "foreign",
    [object(), {"parameters": {}}, SimpleNamespace(name="", invoke=print, args={}),
     SimpleNamespace(name="x", invoke=print), lambda: None],
)  # fmt: skip
def test_what_gives_no_name_schema_or_function_is_refused(foreign):
    with pytest.raises(BadAgent):
        tool_from(foreign)


def test_a_dict_without_its_function_is_refused():
    with pytest.raises(BadAgent, match="function"):
        tool_from({"name": "t", "parameters": {}})


def test_foreign_and_own_tools_stand_in_one_registry_with_a_fingerprint():
    @tool
    def own() -> None: ...

    odd = openai({"properties": {"a": True, "b": {"anyOf": [True, {"title": "x"}]}}})

    registry = Registry([own, odd])

    assert registry.fingerprint() != Registry([own]).fingerprint()
