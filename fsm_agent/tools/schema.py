"""What a function's signature says about its arguments: types to decode with, a schema to offer."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from fsm_agent.errors import BadAgent

from .context import ToolContext
from .functions import innermost

Schema = dict[str, Any]

_SECTION = re.compile(
    r"^\s*(args|arguments|parameters|params|returns|raises|yields|examples?)\s*:?\s*$|[:@]param",
    re.IGNORECASE | re.MULTILINE,
)
_DATA_KEYS = frozenset({"default", "enum", "const", "examples"})  # their values are no schemas


@dataclass(frozen=True)
class Parameter:
    """One parameter that the model may fill."""

    name: str
    holder: type[msgspec.Struct]  # of one field, the parameter: gives error paths their name
    schema: Schema
    is_required: bool
    default: Any = None  # as JSON-able plain data
    is_lenient: bool = True  # whether "5" may stand for 5

    def decode(self, value: Any) -> Any:
        """The typed value. Raises msgspec.ValidationError, whose text holds the path."""
        try:
            return self._convert(value, strict=True)
        except msgspec.ValidationError:
            if not self.is_lenient:
                raise
            return self._convert(value, strict=False)

    def _convert(self, value: Any, *, strict: bool) -> Any:
        held = msgspec.convert({self.name: value}, self.holder, strict=strict, str_keys=True)
        return getattr(held, self.name)


@dataclass(frozen=True)
class Signature:
    """All that is known of a tool's parameters. `schema` is that of a JSON object."""

    parameters: tuple[Parameter, ...]
    context_names: tuple[str, ...]  # parameters that get the ToolContext
    takes_self: bool  # a function in a class body, to be bound to an instance first
    schema: Schema
    description: str
    # Of a foreign schema: why arguments do not fit it. There are no `parameters` then.
    problems_of: Callable[[dict[str, Any]], list[str]] | None = None


def read_signature(
    function: Callable[..., Any], tool_name: str, local_names: Mapping[str, Any]
) -> Signature:
    """Read the signature of a tool's function. Raises BadAgent, naming tool and parameter.

    `local_names` resolves annotations that the function's module does not know, such as types
    that were declared in the function around it.
    """
    hints = _hints(function, tool_name, local_names)
    description, documented = _docs(function)
    takes_self, offered, context_names = _sort(function, tool_name, hints)
    types_ = {p.name: _with_none(p, hints[p.name]) for p in offered}
    schemas, definitions = _schemas(tool_name, types_)
    parameters = tuple(
        _parameter(tool_name, p, types_[p.name], schemas[p.name], documented) for p in offered
    )
    root: Schema = {
        "type": "object",
        "properties": {p.name: p.schema for p in parameters},
        "required": [p.name for p in parameters if p.is_required],
        "additionalProperties": False,
    }
    if definitions:
        root["$defs"] = definitions
    return Signature(parameters, context_names, takes_self, root, description)


def _sort(
    function: Callable[..., Any], tool_name: str, hints: Mapping[str, Any]
) -> tuple[bool, list[inspect.Parameter], tuple[str, ...]]:
    """Which parameters are the model's, which are ours, and whether `self` comes first."""
    fixed = function.keywords if isinstance(function, functools.partial) else {}
    offered, context_names = [], []
    named = list(inspect.signature(function).parameters.values())
    takes_self = bool(named) and _is_self(named[0], function)
    for p in named[1:] if takes_self else named:
        _refuse_kind(p, tool_name)
        if p.name in fixed:
            continue  # what the host has fixed is not the model's to choose
        if p.name not in hints:
            raise BadAgent(
                f"tool {tool_name!r}: parameter {p.name!r} has no type annotation."
                f" Write for example `{p.name}: str`."
            )
        if _is_context(hints[p.name]):
            context_names.append(p.name)
        elif not p.name.startswith("_"):
            offered.append(p)
        elif p.default is inspect.Parameter.empty:
            raise BadAgent(
                f"tool {tool_name!r}: parameter {p.name!r} is private, so the model cannot fill it,"
                " and it has no default. Rename it or give it a default."
            )
    return takes_self, offered, tuple(context_names)


def _refuse_kind(p: inspect.Parameter, tool_name: str) -> None:
    match p.kind:
        case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.VAR_KEYWORD:
            stars = "*" if p.kind is inspect.Parameter.VAR_POSITIONAL else "**"
            raise BadAgent(
                f"tool {tool_name!r}: a model cannot fill `{stars}{p.name}`."
                " Name each parameter, or take one list or dict."
            )
        case inspect.Parameter.POSITIONAL_ONLY:
            raise BadAgent(
                f"tool {tool_name!r}: parameter {p.name!r} is positional-only, and a model gives"
                " arguments by name. Remove the `/`."
            )


def _is_self(p: inspect.Parameter, function: Callable[..., Any]) -> bool:
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    in_class = inspect.isfunction(function) and bool(owner) and not owner.endswith("<locals>")
    return in_class and p.name in ("self", "cls") and p.annotation is inspect.Parameter.empty


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or (_is_union(hint) and ToolContext in get_args(hint))


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _hints(
    function: Callable[..., Any], tool_name: str, local_names: Mapping[str, Any]
) -> dict[str, Any]:
    target = innermost(function)
    if not (inspect.isroutine(target) or isinstance(target, type)):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError:
        pass  # a name of the scope around the function, or one imported for type checkers only
    except TypeError as error:
        raise BadAgent(f"tool {tool_name!r}: its annotations cannot be read: {error}.") from error
    try:
        names = {"ToolContext": ToolContext, **local_names}
        return typing.get_type_hints(target, localns=names, include_extras=True)
    except NameError as error:
        raise BadAgent(
            f"tool {tool_name!r}: an annotation names {error.name!r}, which is not known where the"
            " function is declared. Import it outside `if TYPE_CHECKING`."
        ) from error


def _with_none(p: inspect.Parameter, hint: Any) -> Any:
    """`x: int = None` means that None is allowed."""
    return hint | None if p.default is None and hint is not Any else hint


def _parameter(
    tool_name: str, p: inspect.Parameter, hint: Any, schema: Schema, documented: Mapping[str, str]
) -> Parameter:
    description = schema.get("description") or _annotated(hint) or documented.get(p.name)
    if description:
        schema = {**schema, "description": description}
    holder = msgspec.defstruct(f"{tool_name} arguments", [(p.name, hint)], frozen=True)
    is_lenient = not _holds_time(hint)
    if p.default is inspect.Parameter.empty:
        return Parameter(p.name, holder, schema, is_required=True, is_lenient=is_lenient)
    try:
        default = msgspec.to_builtins(p.default, order="deterministic", str_keys=True)
        parameter = Parameter(
            p.name, holder, {**schema, "default": default}, False, default, is_lenient
        )
        parameter.decode(default)
    except (TypeError, ValueError) as error:
        raise BadAgent(
            f"tool {tool_name!r}: the default of {p.name!r}, {p.default!r}, is no value of its"
            f" annotation: {error}."
        ) from error
    return parameter


def _holds_time(hint: Any) -> bool:
    """Whether a moment or a span stands in the type: 1700000000 may be seconds or milliseconds."""
    from msgspec.inspect import DateTimeType, TimeDeltaType, type_info

    seen: set[int] = set()
    todo: list[Any] = [type_info(hint)]
    while todo:
        item = todo.pop()
        if isinstance(item, DateTimeType | TimeDeltaType):
            return True
        if isinstance(item, tuple):
            todo.extend(item)
        elif isinstance(item, msgspec.Struct) and id(item) not in seen:  # types may be recursive
            seen.add(id(item))
            todo.extend(getattr(item, name) for name in item.__struct_fields__)
    return False


def _annotated(hint: Any) -> str | None:
    """The 'description' of `Annotated[str, 'description']`, also as one side of a union."""
    if get_origin(hint) is Annotated:
        for extra in reversed(hint.__metadata__):
            if isinstance(extra, str):
                return extra
            if isinstance(extra, msgspec.Meta) and extra.description:
                return extra.description
        return _annotated(hint.__origin__)
    if _is_union(hint):
        return next(filter(None, map(_annotated, get_args(hint))), None)
    return None


def _docs(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description in a docstring, and those of its parameters, in any of the usual styles."""
    target = innermost(function)
    text = inspect.getdoc(target) or ""
    if not _SECTION.search(text):
        return text.strip(), {}
    from docstring_parser import parse  # 10 to 100 ms: only where there is something to parse

    parsed = parse(text)
    about = {p.arg_name: p.description for p in parsed.params if p.description}
    return (parsed.description or "").strip(), about


def _schemas(
    tool_name: str, hints: Mapping[str, Any]
) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """A schema for each type, and the definitions that they cannot do without: recursive ones."""
    try:
        schemas, definitions = msgspec.json.schema_components(
            list(hints.values()), ref_template="#/$defs/{name}"
        )
    except (TypeError, ValueError):
        for name, hint in hints.items():
            _try_schema(tool_name, name, hint)
        raise
    kept = {name for name in definitions if name in _reachable(definitions[name], definitions)}
    inlined = {
        name: _inline(schema, definitions, kept)
        for name, schema in zip(hints, schemas, strict=True)
    }
    used = {ref for schema in inlined.values() for ref in _reachable(schema, definitions)}
    return inlined, {name: _inline(definitions[name], definitions, kept) for name in kept & used}


def _try_schema(tool_name: str, name: str, hint: Any) -> None:
    try:
        msgspec.json.schema_components([hint])
    except (TypeError, ValueError) as error:
        why = str(error).rpartition("\n")[2]
        raise BadAgent(
            f"tool {tool_name!r}: parameter {name!r}: {why}. Use plain types, lists, dicts,"
            " Literal, a dataclass, a TypedDict or a msgspec.Struct."
        ) from error


def _inline(schema: Schema, definitions: Mapping[str, Schema], kept: set[str]) -> Schema:
    """`schema` with its references replaced by what they mean, and its objects closed.

    Some providers follow no references; an open object would let a misspelt key pass in silence.
    """
    name = _referred(schema)
    if name is not None and name not in kept:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**_inline(definitions[name], definitions, kept), **rest}
    closed: Schema = {}
    for key, value in schema.items():
        if key == "properties":
            closed[key] = {n: _inline(s, definitions, kept) for n, s in value.items()}
        elif key == "discriminator":
            continue  # its mapping points at definitions that are inlined
        elif key not in _DATA_KEYS and isinstance(value, dict):
            closed[key] = _inline(value, definitions, kept)
        elif key in ("anyOf", "prefixItems"):
            closed[key] = [_inline(s, definitions, kept) for s in value]
        else:
            closed[key] = value
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _referred(schema: Schema) -> str | None:
    ref = schema.get("$ref")
    return ref.removeprefix("#/$defs/") if isinstance(ref, str) else None


def _reachable(schema: Schema, definitions: Mapping[str, Schema]) -> set[str]:
    """The names of all definitions that `schema` leads to."""
    found: set[str] = set()
    todo = [schema]
    while todo:
        names = {name for s in _subschemas(todo.pop()) if (name := _referred(s)) is not None}
        todo.extend(definitions[name] for name in names - found)
        found |= names
    return found


def _subschemas(schema: Schema) -> Iterator[Schema]:
    yield schema
    for key, value in schema.items():
        if key == "properties":
            inner = list(value.values())
        elif key in ("anyOf", "prefixItems"):
            inner = value
        elif key not in _DATA_KEYS and isinstance(value, dict):
            inner = [value]
        else:
            continue
        for s in inner:
            yield from _subschemas(s)
