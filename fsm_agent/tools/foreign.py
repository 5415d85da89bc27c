"""Tools of other libraries as they are: an object with name, schema and something to call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from fsm_agent.errors import BadAgent

from .effects import Effect, effect_named
from .functions import is_async, name_of
from .registry import DEFAULT_OUTPUT_CHARS, DEFAULT_TIMEOUT_S, Fallback, Tool
from .rule import Approval
from .schema import Schema, Signature

MAX_PROBLEMS = 10


def tool_from(
    foreign: Any,
    call: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect | Literal["read", "idempotent", "unsafe"] = "unsafe",
    approval: Approval = "never",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retries: int = 0,
    max_output_chars: int = DEFAULT_OUTPUT_CHARS,
    concurrency: int | None = None,
    name: str | None = None,
    description: str | None = None,
    version: str = "1",
    fallback: Fallback | None = None,
) -> Tool[..., Any]:
    """Make a tool of another library ours: it is `unsafe` unless `effect` says otherwise.

    `foreign` is a LangChain-style tool (`name`, `description`, `args_schema` or `args`, `invoke` or
    `ainvoke`), a Pydantic-AI-style one (`function`, `function_schema`), or an OpenAI function dict
    with the function to `call`. Other settings are those of `tool`. Arguments are held to the
    foreign schema, which needs jsonschema-rs: `pip install 'fsm-agent[foreign]'`.

    Raises BadAgent for an object that gives no name, schema or function, and for a bad schema.
    """
    found_name, about, schema, function = _parts(foreign, call)
    chosen = name if name is not None else found_name
    return Tool(
        function=function,
        name=chosen,
        effect=effect_named(effect),
        approval=approval,
        timeout_s=timeout_s,
        retries=retries,
        max_output_chars=max_output_chars,
        concurrency=concurrency,
        version=version,
        fallback=fallback,
        signature=foreign_signature(chosen, description or about, schema),
    )


def foreign_signature(tool_name: str, description: str, schema: Any) -> Signature:
    """The signature of a tool whose arguments are checked by a JSON schema. Raises BadAgent."""
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise BadAgent(f"tool {tool_name!r}: its schema is not that of a JSON object.")
    whole: Schema = {"type": "object", **schema}
    whole.setdefault("properties", {})
    return Signature(
        parameters=(),
        context_names=(),
        takes_self=False,
        schema=whole,
        description=description.strip(),
        problems_of=_checker(tool_name, whole),
    )


def _checker(tool_name: str, schema: Schema) -> Callable[[dict[str, Any]], list[str]]:
    try:
        import jsonschema_rs  # 66 ms, and only for foreign tools
    except ImportError as error:
        raise BadAgent(
            f"tool {tool_name!r}: foreign schemas need jsonschema-rs:"
            " pip install 'fsm-agent[foreign]'."
        ) from error
    try:
        # Offline: a schema from elsewhere must not make us fetch an address of its choice. And
        # bounded: nor may its patterns take for ever on what a model writes.
        patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)
        checks = jsonschema_rs.validator_for(schema, offline=True, pattern_options=patterns)
    except Exception as error:
        first = str(error).strip().split("\n", 1)[0]
        raise BadAgent(f"tool {tool_name!r}: its schema cannot be used: {first}") from error

    def problems(arguments: dict[str, Any]) -> list[str]:
        return list(_problems(checks, arguments))

    return problems


def _problems(checks: Any, arguments: dict[str, Any]) -> Iterator[str]:
    for number, error in enumerate(checks.iter_errors(arguments)):
        if number == MAX_PROBLEMS:
            return
        path = ".".join(map(str, error.instance_path))
        yield f"`{path}`: {error.message}." if path else f"{error.message}."


Parts = tuple[str, str, Any, Callable[..., Any]]


def _parts(foreign: Any, call: Callable[..., Any] | None) -> Parts:
    if isinstance(foreign, Mapping):
        return _of_openai(foreign, call)
    if call is not None:
        raise BadAgent("tool_from(object, function): only a dict needs a function beside it.")
    if hasattr(foreign, "function_schema") or hasattr(foreign, "tool_def"):
        return _of_pydantic_ai(foreign)
    if hasattr(foreign, "invoke") or hasattr(foreign, "ainvoke"):
        return _of_langchain(foreign)
    raise BadAgent(
        f"tool_from: {foreign!r:.80} gives no schema and nothing to call. Give a LangChain or"
        " Pydantic-AI tool, an OpenAI function dict with its function, or use @tool."
    )


def _of_openai(foreign: Mapping[str, Any], call: Callable[..., Any] | None) -> Parts:
    inner = foreign.get("function", foreign)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise BadAgent("tool_from: the dict has no function name.")
    if call is None:
        raise BadAgent(f"tool {inner['name']!r}: a dict cannot be called. Give its function too.")
    schema = inner.get("parameters") or {}
    return inner["name"], str(inner.get("description") or ""), schema, _by_name(call)


def _of_langchain(foreign: Any) -> Parts:
    name = _text(foreign, "name")
    # `tool_call_schema` leaves out what LangChain would inject: the model must not fill that.
    schema = _schema(getattr(foreign, "tool_call_schema", None))
    schema = schema or _schema(getattr(foreign, "args_schema", None))
    if schema is None and isinstance(args := getattr(foreign, "args", None), Mapping):
        required = [key for key, inner in args.items() if "default" not in inner]
        schema = {"type": "object", "properties": dict(args), "required": required}
    if schema is None:
        raise BadAgent(f"tool {name!r}: it gives neither `args_schema` nor `args`.")
    about = str(getattr(foreign, "description", "") or "")
    return name, about, schema, _invoker(foreign)


def _invoker(foreign: Any) -> Callable[..., Any]:
    """Its `invoke`, in a thread of ours; `ainvoke` only where there is truly something to await."""
    if not hasattr(foreign, "invoke") or is_async(getattr(foreign, "coroutine", None)):

        async def ainvoke(**arguments: Any) -> Any:
            return await foreign.ainvoke(arguments)

        return ainvoke

    def invoke(**arguments: Any) -> Any:
        return foreign.invoke(arguments)

    return invoke


def _of_pydantic_ai(foreign: Any) -> Parts:
    described = getattr(foreign, "function_schema", None)
    definition = getattr(foreign, "tool_def", None)
    name = _text(foreign, "name") if hasattr(foreign, "name") else _text(definition, "name")
    if getattr(foreign, "takes_ctx", False) or getattr(described, "takes_ctx", False):
        raise BadAgent(
            f"tool {name!r} takes Pydantic-AI's RunContext, which is not there. Wrap it with @tool."
        )
    schema = getattr(described, "json_schema", None)
    if schema is None:
        schema = getattr(definition, "parameters_json_schema", None)
    about = getattr(foreign, "description", None) or getattr(definition, "description", None)
    function = getattr(foreign, "function", None)
    if not callable(function):
        raise BadAgent(f"tool {name!r}: it has no `function` to call.")
    return name, str(about or ""), schema, _by_name(_validated(function, described))


def _validated(function: Callable[..., Any], described: Any) -> Callable[..., Any]:
    """The function, given what its own validator makes of plain JSON: models, dates, enums."""
    validator = getattr(described, "validator", None)
    single = getattr(described, "single_arg_name", None)

    def decoded(arguments: dict[str, Any]) -> dict[str, Any]:
        typed = validator.validate_python(arguments) if validator else arguments
        return typed if isinstance(typed, dict) or not single else {single: typed}

    if is_async(function):

        async def acall(**arguments: Any) -> Any:
            return await function(**decoded(arguments))

        return acall

    def call(**arguments: Any) -> Any:
        return function(**decoded(arguments))

    return call


def _by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function):
        raise BadAgent(f"tool_from: {function!r:.80} cannot be called.")
    return function


def _schema(given: Any) -> Schema | None:
    if isinstance(given, Mapping):
        return dict(given)
    maker = getattr(given, "model_json_schema", None)
    return dict(maker()) if callable(maker) else None


def _text(foreign: Any, attribute: str) -> str:
    value = getattr(foreign, attribute, None)
    if not isinstance(value, str) or not value:
        raise BadAgent(f"tool_from: {name_of(foreign)!r} has no {attribute}.")
    return value
