"""What a chunk of the stream says, however the server spells it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from fsm_agent.run.content import Usage


class FunctionDelta(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallDelta(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None
    name: str | None = None  # where some relays put what belongs into `function`
    arguments: str | dict[str, Any] | None = None
    extra_content: dict[str, Any] | None = None


class Delta(msgspec.Struct, gc=False):
    """What one chunk adds. `message` of a whole completion has the same form."""

    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    reasoning_text: str | None = None
    thought: str | None = None
    reasoning_details: list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None


class Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None  # of the older completions form
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None


class Chunk(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | str | None = None
    x_groq: dict[str, Any] | None = None


MAX_LINES = 512  # of an event that are looked at one by one
EMPTY = Chunk()
_DECODER = msgspec.json.Decoder(Chunk)


def decode(data: bytes) -> Chunk | None:
    """The chunk in `data`, None if this is no JSON object. Wrong types count as absent."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return _decode_slowly(data)


def decode_event(data: bytes) -> list[Chunk | None]:
    """The chunks of one event: usually one, but some servers forget the blank line between."""
    chunk = decode(data)
    if chunk is not None:
        return [chunk]
    if data.startswith(b"["):
        return _decode_list(data)
    lines = data.split(b"\n", MAX_LINES)
    if not 1 < len(lines) <= MAX_LINES:
        return [None]
    return [decode(line) for line in lines if line.strip()]


def _decode_list(data: bytes) -> list[Chunk | None]:
    value = _loads(data)
    items = value if isinstance(value, list) else []
    return [_chunk(item) for item in items if isinstance(item, dict)] or [None]


def _decode_slowly(data: bytes) -> Chunk | None:
    """With the standard library, which lets lone surrogates through, and field by field."""
    value = _loads(data)
    return _chunk(value) if isinstance(value, dict) else None


def _loads(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None


def _chunk(value: dict[str, Any]) -> Chunk:
    return Chunk(
        choices=[_choice(item) for item in _objects(value.get("choices"))],
        usage=_object(value.get("usage")),
        error=_error(value.get("error")),
        x_groq=_object(value.get("x_groq")),
    )


def error_in(data: bytes) -> dict[str, Any] | str | None:
    """The error in an event that is neither a chunk nor says `error`, None if it is harmless."""
    value = _loads(data)
    if not isinstance(value, dict):
        return None
    status = value.get("base_resp")
    if isinstance(status, dict) and status.get("status_code"):
        return {"message": str(status.get("status_msg") or status)}
    said = value.get("message") or value.get("error_msg") or value.get("detail")
    if not isinstance(said, (str, dict, list)) or not said:
        return None
    code = value.get("code") or value.get("error_code") or value.get("status")
    is_error = value.get("object") == "error" or value.get("type") == "error" or code
    if not is_error and "detail" not in value and "error_msg" not in value:
        return None
    return {"message": said if isinstance(said, str) else json.dumps(said), "code": code}


def _error(value: Any) -> dict[str, Any] | str | None:
    if value is None or isinstance(value, (dict, str)):
        return value
    return str(value) if value else None


def _choice(value: dict[str, Any]) -> Choice:
    return Choice(
        index=_integer(value.get("index")),
        delta=_delta(value.get("delta")),
        message=_delta(value.get("message")),
        text=_string(value.get("text")),
        finish_reason=_string(value.get("finish_reason")),
        usage=_object(value.get("usage")),
    )


def _delta(value: Any) -> Delta | None:
    if not isinstance(value, dict):
        return None
    content, details = value.get("content"), value.get("reasoning_details")
    if isinstance(content, dict):
        content = [content]
    return Delta(
        content=content if isinstance(content, (str, list)) else None,
        reasoning_content=_reasoning(value.get("reasoning_content")),
        reasoning=_reasoning(value.get("reasoning")),
        thinking=_reasoning(value.get("thinking")),
        reasoning_text=_reasoning(value.get("reasoning_text")),
        thought=_reasoning(value.get("thought")),
        reasoning_details=details if isinstance(details, list) else None,
        refusal=_string(value.get("refusal")),
        tool_calls=[_call(item) for item in _objects(value.get("tool_calls"))],
        function_call=_function(value.get("function_call")),
    )


def _reasoning(value: Any) -> str | None:
    """A text, also where it is wrapped into objects."""
    if isinstance(value, list):
        return "".join(_reasoning(item) or "" for item in value)
    if isinstance(value, dict):
        inner = (value.get(key) for key in ("text", "content", "thinking", "summary"))
        return next((text for text in inner if isinstance(text, str)), None)
    return _string(value)


def _call(value: dict[str, Any]) -> CallDelta:
    given = value.get("id")
    flat = _function(value)
    return CallDelta(
        index=_integer(value.get("index")),
        id=given if isinstance(given, str) else None if given is None else str(given),
        function=_function(value.get("function")),
        name=flat.name if flat else None,
        arguments=flat.arguments if flat else None,
        extra_content=_object(value.get("extra_content")),
    )


def _function(value: Any) -> FunctionDelta | None:
    if not isinstance(value, dict):
        return None
    arguments = value.get("arguments")
    if arguments is not None and not isinstance(arguments, (str, dict)):
        arguments = json.dumps(arguments)
    return FunctionDelta(name=_string(value.get("name")), arguments=arguments)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in a list; a lone object counts as a list of one."""
    items = value if isinstance(value, list) else [value]
    return (item for item in items if isinstance(item, dict))


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 19 else None


def usage_of(value: dict[str, Any] | None) -> Usage | None:
    """The usage in its usual or its newer names; None where neither count is a number."""
    if not value:
        return None
    prompt = _either(value, "prompt_tokens", "input_tokens")
    completion = _either(value, "completion_tokens", "output_tokens")
    if prompt is None and completion is None:
        return None
    return Usage(prompt or 0, completion or 0)


def cached_of(value: dict[str, Any] | None) -> int:
    """Tokens of the prompt that the provider had kept, wherever it says so."""
    value = value or {}
    for place in ("prompt_tokens_details", "input_tokens_details"):
        details = value.get(place)
        if isinstance(details, dict) and (count := _count(details.get("cached_tokens"))):
            return count
    kept = _either(value, "prompt_cache_hit_tokens", "cache_read_input_tokens")
    return max(0, kept or 0)


def _either(value: dict[str, Any], name: str, newer: str) -> int | None:
    count = _count(value.get(name))
    return _count(value.get(newer)) if count is None else count


def _count(value: Any) -> int | None:
    try:
        number = _integer(value)
    except (ValueError, OverflowError):
        return None
    return None if number is None else max(0, number)


def content_parts(delta: Delta) -> Iterator[tuple[bool, str]]:
    """The content of a delta as (is thinking, text), in order."""
    content = delta.content
    if isinstance(content, str):
        yield False, content
        return
    for part in content or ():
        if isinstance(part, str):
            yield False, part
        elif isinstance(part, dict):
            yield from _typed_part(part)


def _typed_part(part: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    is_thinking = part.get("type") in ("thinking", "reasoning")
    inner = part.get("thinking") if is_thinking else part.get("text")
    if isinstance(inner, str):
        yield is_thinking, inner
    elif isinstance(inner, list):
        for item in inner:
            if isinstance(item, dict) and isinstance(item.get("text"), str):
                yield is_thinking, item["text"]


def reasoning_of(delta: Delta) -> str:
    """The reasoning that a delta adds: the first field that has any, since they mirror it."""
    given = delta.reasoning_content or delta.reasoning or delta.thinking
    given = given or delta.reasoning_text or delta.thought
    if given or not delta.reasoning_details:
        return given or ""
    texts = []
    for detail in delta.reasoning_details:
        if isinstance(detail, dict):
            text = detail.get("text") or detail.get("summary")
            texts.append(text if isinstance(text, str) else "")
    return "".join(texts)
