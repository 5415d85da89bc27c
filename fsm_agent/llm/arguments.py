"""What the arguments of a tool call are, and when there are none that may be used."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from typing import Any

MAX_REPAIR_CHARS = 100_000  # longer arguments are taken as they are, or not at all
_FENCE = re.compile(r"\s*```[\w-]*\s*(.*?)\s*```\s*\Z", re.DOTALL)
_STRING = r'"(?:[^"\\]|\\.)*"'
_TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)
_PYTHON_STRING = rf"{_STRING}|'(?:[^'\\]|\\.)*'"
_STRINGS = re.compile(_PYTHON_STRING, re.DOTALL)
_JSON_WORD = re.compile(rf"({_PYTHON_STRING})|\b(true|false|null)\b", re.DOTALL)
_PYTHON_WORDS = {"true": "True", "false": "False", "null": "None"}

Outcome = tuple[dict[str, Any] | None, str | None]


class _Refused(Exception):
    """The text has a reading, and it must not be used. The message is for the model."""


def parse_arguments(raw: str) -> Outcome:
    """The decoded object and None, or None and why there is none, in words for the model.

    Valid JSON is never touched. Otherwise what has only one reading is repaired: a code fence,
    encoding twice, `{}` before the object, noise or the same object after it, raw control
    characters, a trailing comma, Python literals. Brackets of a text that was cut are never closed.
    """
    raw = raw.lstrip("\ufeff")
    if raw.strip() in ("", "null"):
        return {}, None
    try:
        return _read(raw), None
    except _Refused as refusal:
        return None, str(refusal)
    except RecursionError:
        return None, "The arguments are nested too deeply."


def is_complete(raw: str) -> bool:
    """Whether this is a whole JSON object as it stands."""
    if not raw.rstrip().endswith("}"):
        return False
    try:
        return isinstance(json.loads(raw, strict=False), dict)
    except (ValueError, RecursionError):
        return False


def _read(raw: str) -> dict[str, Any]:
    try:
        return _object(_loads(raw))
    except json.JSONDecodeError as error:
        if len(raw) <= MAX_REPAIR_CHARS:
            repaired = _repair(raw)
            if repaired is not None:
                return repaired
        raise _Refused(f"The arguments are not valid JSON: {error}.") from error


def _object(value: Any, *, may_unwrap: bool = True) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, str) and may_unwrap and value.strip().startswith("{"):
        try:
            return _object(_loads(value), may_unwrap=False)
        except json.JSONDecodeError as error:
            raise _Refused(f"The arguments are a string that is no JSON: {error}.") from error
    raise _Refused("The arguments must be one JSON object.")


def _loads(text: str, *, strict: bool = True) -> Any:
    return json.loads(
        text,
        strict=strict,
        object_pairs_hook=_unique,
        parse_constant=_no_constant,
        parse_float=_finite,
        parse_int=_integer,
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next((name for name, given in pairs if value[name] != given), None)
        if twice is not None:
            raise _Refused(f"The arguments have the key {twice!r} twice.")
    return value


def _no_constant(name: str) -> Any:
    raise _Refused(f"The arguments hold {name}, which is no JSON number.")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused(f"The arguments hold {text}, which is too large for a number.")
    return number


def _integer(text: str) -> int:
    if len(text) > 400:
        raise _Refused("The arguments hold a number of more than 400 digits.")
    return int(text)


def _repair(raw: str) -> dict[str, Any] | None:
    """The one reading of a text that is no JSON, None if there is none or more than one."""
    if fenced := _FENCE.match(raw):
        return _read(fenced[1])
    for read in (_concatenated, _lenient, _python):
        value = read(raw.strip())
        if value is not None:
            return value
    return None


def _concatenated(text: str) -> dict[str, Any] | None:
    """An object with something after it: its like, noise, or after `{}` the real one."""
    decoder = json.JSONDecoder(
        strict=False, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
    )
    objects: list[dict[str, Any]] = []
    at = 0
    while text.startswith("{", at):
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            break
        objects.append(value)
        at += len(text[at:]) - len(text[at:].lstrip())
    if not objects or not _is_noise(text[at:]):
        return None
    if objects[0] == {} and len(objects) > 1:
        objects = objects[1:]
    if any(other != objects[0] for other in objects[1:]):
        raise _Refused("The arguments are two different objects. Make one call for each.")
    return objects[0]


def _is_noise(tail: str) -> bool:
    """Whether a tail can be dropped: nothing in it looks like more arguments."""
    return not tail.startswith((",", ":")) and not any(char in tail for char in '{["')


def _lenient(text: str) -> dict[str, Any] | None:
    """With raw control characters in strings, and without commas before closing brackets."""
    text = _TRAILING_COMMA.sub(lambda found: found[1] or "", text)
    try:
        value = _loads(text, strict=False)
    except json.JSONDecodeError:
        return None
    return _object(value)


def _python(text: str) -> dict[str, Any] | None:
    """As a Python literal: single quotes, True, False, None."""
    if not text.startswith("{"):
        return None
    if _has_adjacent_strings(text):
        return None
    text = _JSON_WORD.sub(lambda found: found[1] or _PYTHON_WORDS[found[2]], text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)  # an escape that Python does not know
            value = _literal(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError, MemoryError):
        return None
    return value if isinstance(value, dict) else None


def _has_adjacent_strings(text: str) -> bool:
    """Python would join them, but here they are one string whose quotes are not escaped."""
    end = -1
    for found in _STRINGS.finditer(text):
        if end >= 0 and not text[end : found.start()].strip():
            return True
        end = found.end()
    return False


def _literal(node: ast.expr) -> Any:
    """The JSON value of a literal. Raises ValueError for what JSON does not have."""
    match node:
        case ast.Dict(keys=keys, values=values):
            names = [_literal(key) if key else None for key in keys]
            if not all(isinstance(name, str) for name in names):
                raise ValueError("a key that is no string")
            return _unique([(str(n), _literal(v)) for n, v in zip(names, values, strict=True)])
        case ast.List(elts=items):
            return [_literal(item) for item in items]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Constant(value=str() | bool() | int() | None as value):
            return value
        case ast.Constant(value=float() as number) if math.isfinite(number):
            return number
        case _:
            raise ValueError("not a literal of JSON")
