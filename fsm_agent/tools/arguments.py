"""What a model's arguments mean for a function: typed values, or why they cannot be used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from fsm_agent.errors import UsageError, did_you_mean
from fsm_agent.run.content import canonical_json, clean_text

from .schema import Schema, Signature

MAX_PROBLEM_CHARS = 1000


class Bound(msgspec.Struct, frozen=True):
    """Arguments that fit. `kwargs` was decoded from `arguments`, the canonical JSON: what is
    shown to a person and hashed is what runs, defaults included."""

    kwargs: dict[str, Any]
    arguments: str
    stripped: tuple[str, ...] = ()  # private keys that the model had no business to fill


class Refused(msgspec.Struct, frozen=True):
    """Arguments that do not fit; `problem` tells the model where and why."""

    problem: str


class _Unreadable(ValueError):
    """JSON that has no reading, or two."""


def bind(signature: Signature, text: str) -> Bound | Refused:
    """Decode the JSON of a call's arguments.

    Strict where a value has two readings, lenient where it has one: "5" may stand for 5.
    For any result, `bind(signature, result.arguments)` gives the same result.
    """
    given = parsed(text)
    if isinstance(given, Refused):
        return given
    known = signature.schema["properties"] if signature.problems_of else ()
    stripped = tuple(sorted(key for key in given if key.startswith("_") and key not in known))
    public = {key: value for key, value in given.items() if key not in stripped}
    if signature.problems_of:
        return _held_to_schema(signature.problems_of, public, stripped)
    problems = list(_unknown(signature, public))
    kwargs: dict[str, Any] = {}
    try:
        problems += _fill(signature, public, kwargs)
        if problems:
            return Refused(_joined(problems))
        return _settled(signature, kwargs, stripped)
    except UsageError as error:  # NaN that came as a word, such as "nan" for a float
        return Refused(f"The arguments are not usable: {error}")
    except RecursionError:
        return Refused("The arguments are not usable: they are nested too deeply.")


def _held_to_schema(
    problems_of: Callable[[dict[str, Any]], list[str]],
    given: dict[str, Any],
    stripped: tuple[str, ...],
) -> Bound | Refused:
    """Arguments of a foreign tool: plain JSON, as its schema allows it."""
    try:
        arguments = canonical_json(given)
        shown = json.loads(arguments)
        problems = problems_of(shown)
    except UsageError as error:
        return Refused(f"The arguments are not usable: {error}")
    except (RecursionError, ValueError):
        return Refused("The arguments are not usable: they cannot be held to the schema.")
    return Refused(_joined(problems)) if problems else Bound(shown, arguments, stripped)


def _settled(signature: Signature, kwargs: dict[str, Any], stripped: tuple[str, ...]) -> Bound:
    plain = msgspec.to_builtins(kwargs, order="deterministic", str_keys=True)
    arguments = canonical_json(plain)
    shown = json.loads(arguments)
    typed = {p.name: p.decode(shown[p.name]) for p in signature.parameters}
    return Bound(typed, arguments, stripped)


def _fill(signature: Signature, given: dict[str, Any], kwargs: dict[str, Any]) -> list[str]:
    """Put a typed value for each parameter into `kwargs`; the problems on the way come back."""
    problems = []
    for p in signature.parameters:
        if p.name not in given and p.is_required:
            problems.append(f"`{p.name}` is missing.")
            continue
        try:
            kwargs[p.name] = p.decode(given.get(p.name, p.default))
        except msgspec.ValidationError as error:
            problems.append(_words(error, p.schema))
        except (ValueError, OverflowError) as error:
            problems.append(f"`{p.name}`: {error}.")
    return problems


def _words(error: msgspec.ValidationError, schema: Schema) -> str:
    what, _, path = str(error).rpartition(" - at ")
    place = path.strip("`").removeprefix("$.")
    allowed = schema.get("enum") if place.isidentifier() else None
    hint = f" Allowed: {', '.join(map(json.dumps, allowed))}." if allowed else ""
    return f"`{place}`: {what}.{hint}"


def _joined(problems: list[str]) -> str:
    text = "The arguments do not fit: " + " ".join(problems)
    return text if len(text) <= MAX_PROBLEM_CHARS else text[: MAX_PROBLEM_CHARS - 1] + "…"


def _unknown(signature: Signature, given: dict[str, Any]) -> Iterator[str]:
    """Each key that the schema does not know, at any depth, with what may have been meant."""
    yield from _unknown_in(given, signature.schema, signature.schema.get("$defs", {}), "")


def _unknown_in(
    value: Any, schema: Schema, definitions: dict[str, Schema], path: str
) -> Iterator[str]:
    shape = _shape(value, schema, definitions)
    if isinstance(value, list) and isinstance(items := shape.get("items"), dict):
        for index, item in enumerate(value):
            yield from _unknown_in(item, items, definitions, f"{path}[{index}]")
    if not isinstance(value, dict):
        return
    properties, others = shape.get("properties", {}), shape.get("additionalProperties")
    for key, item in value.items():
        place = f"{path}.{key}" if path else key
        if key in properties:
            yield from _unknown_in(item, properties[key], definitions, place)
        elif isinstance(others, dict):
            yield from _unknown_in(item, others, definitions, place)
        elif others is False:
            known = ", ".join(properties) or "none"
            yield f"`{place}` is not known.{did_you_mean(key, properties)} Known: {known}."


def _shape(value: Any, schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """The schema that speaks about `value`; an empty one where several could."""
    if "$ref" in schema:
        return definitions.get(schema["$ref"].removeprefix("#/$defs/"), {})
    if "anyOf" not in schema:
        return schema
    sides = [_shape(value, side, definitions) for side in schema["anyOf"]]
    wanted = "object" if isinstance(value, dict) else "array"
    fitting = [side for side in sides if side.get("type") == wanted]
    return fitting[0] if len(fitting) == 1 else {}


def parsed(text: str) -> dict[str, Any] | Refused:
    """The JSON object that `text` is, where it has one reading."""
    if not text.strip():
        return {}  # what models send for a tool without parameters
    try:
        value = _DECODER.decode(clean_text(text))
        if re.search(r"\\ud[89a-f]", text, re.IGNORECASE):  # maybe half of a pair
            value = _DECODER.decode(clean_text(json.dumps(value, ensure_ascii=False)))
    except _Unreadable as error:
        return _unusable(str(error))
    except RecursionError:
        return _unusable("they are nested too deeply.")
    except ValueError as error:
        return _unusable(f"they are not valid JSON ({error}).")
    if not isinstance(value, dict):
        return _unusable(f"a JSON object is needed, not {_kind(value)}.")
    return value


def _unusable(why: str) -> Refused:
    return Refused(f"The arguments are not usable: {why}")


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Unreadable(f"the key {key!r} stands twice in one object.")
        found[key] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise _Unreadable(f"{name} is not JSON. Use a finite number or null.")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant)
