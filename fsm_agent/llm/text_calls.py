"""Which tool calls a text holds, where a server without a parser for them left them there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

from fsm_agent.llm.arguments import parse_arguments
from fsm_agent.llm.model import RequestedCall
from fsm_agent.llm.names import offered_name

MAX_CHARS = 200_000
_Found = list[tuple[str, str]]  # name, arguments

_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_XML = re.compile(r"<function=([^>\s]+)>\s*(.*?)\s*</function>", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_DSML = re.compile(r"<｜DSML｜tool_calls>(.*?)</｜DSML｜tool_calls>", re.DOTALL)
_DSML_CALL = re.compile(r'<｜DSML｜invoke name="([^"]+)">(.*?)</｜DSML｜invoke>', re.DOTALL)
_DSML_PARAMETER = re.compile(
    r'<｜DSML｜parameter name="([^"]+)"(?: string="(true|false)")?>(.*?)</｜DSML｜parameter>',
    re.DOTALL,
)
_KIMI = re.compile(r"<\|tool_calls_section_begin\|>(.*?)<\|tool_calls_section_end\|>", re.DOTALL)
_KIMI_CALL = re.compile(
    r"<\|tool_call_begin\|>\s*(\S+?)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
    re.DOTALL,
)
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*(\w[\w.-]*)\[ARGS\](\{.*\})\s*\Z", re.DOTALL)
_MISTRAL_LIST = re.compile(r"\[TOOL_CALLS\]\s*(\[.*\])\s*\Z", re.DOTALL)
_HARMONY = re.compile(
    r"(?:<\|channel\|>)?commentary to=(\S+?)\s*(?:<\|constrain\|>)?\s*json\s*(?:<\|message\|>)?"
    r"\s*(\{.*\})\s*(?:<\|call\|>)?\s*\Z",
    re.DOTALL,
)
_JSON_FENCE = re.compile(r"```(?:json)?\s*(\{.*\})\s*```\s*\Z", re.DOTALL)


def calls_in_text(text: str, offered: Collection[str]) -> tuple[str, tuple[RequestedCall, ...]]:
    """The text without its calls, and the calls.

    Only whole and valid markup counts, and only if every name in it is offered: else the text
    stays as it is and there are no calls. Ask only under the tool label; elsewhere it is prose.
    """
    if not offered or len(text) > MAX_CHARS:
        return text, ()
    for read in _READERS:
        span = read(text)
        if span is None:
            continue
        start, found = span
        calls = [_call(name, arguments, offered) for name, arguments in found]
        whole = tuple(call for call in calls if call is not None)
        if whole and len(whole) == len(calls):
            return text[:start].rstrip(), whole
        return text, ()
    return text, ()


def _call(name: str, raw: str, offered: Collection[str]) -> RequestedCall | None:
    known = offered_name(name, offered)
    arguments, problem = parse_arguments(raw)
    if known not in offered or problem:
        return None
    return RequestedCall(known, arguments, raw)


def _hermes(text: str) -> tuple[int, _Found] | None:
    blocks = list(_HERMES.finditer(text))
    if not blocks:
        return None
    found: _Found = []
    for block in blocks:
        inner = list(_XML.finditer(block[1]))
        found += [_xml(one) for one in inner] if inner else [_json_call(block[1])]
    return blocks[0].start(), found


def _xml(found: re.Match[str]) -> tuple[str, str]:
    pairs = {one[1]: _value(one[2]) for one in _XML_PARAMETER.finditer(found[2])}
    return found[1], json.dumps(pairs, ensure_ascii=False)


def _value(text: str) -> Any:
    """Markup has no types: what is JSON of anything but a string is that, else it is a string."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if not isinstance(value, str) else text


def _json_call(text: str) -> tuple[str, str]:
    """The name and arguments of `{"name": …, "arguments": …}`; empty where it is no such thing."""
    value, _ = parse_arguments(text)
    if not value or not isinstance(value.get("name"), str):
        return "", ""
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        return value["name"], arguments
    return value["name"], json.dumps(arguments, ensure_ascii=False)


def _dsml(text: str) -> tuple[int, _Found] | None:
    block = _DSML.search(text)
    if block is None:
        return None
    return block.start(), [_dsml_call(one) for one in _DSML_CALL.finditer(block[1])]


def _dsml_call(found: re.Match[str]) -> tuple[str, str]:
    pairs = {
        one[1]: one[3] if one[2] == "true" else _value(one[3])
        for one in _DSML_PARAMETER.finditer(found[2])
    }
    return found[1], json.dumps(pairs, ensure_ascii=False)


def _kimi(text: str) -> tuple[int, _Found] | None:
    block = _KIMI.search(text)
    if block is None:
        return None
    return block.start(), [(one[1], one[2]) for one in _KIMI_CALL.finditer(block[1])]


def _mistral(text: str) -> tuple[int, _Found] | None:
    if found := _MISTRAL.search(text):
        return found.start(), [(found[1], found[2])]
    if found := _MISTRAL_LIST.search(text):
        return found.start(), _json_calls(found[1])
    return None


def _json_calls(text: str) -> _Found:
    try:
        items = json.loads(text)
    except ValueError:
        return [("", "")]
    return [_json_call(json.dumps(item, ensure_ascii=False)) for item in items]


def _harmony(text: str) -> tuple[int, _Found] | None:
    found = _HARMONY.search(text)
    return (found.start(), [(found[1], found[2])]) if found else None


def _json(text: str) -> tuple[int, _Found] | None:
    """The whole text is one JSON object, or ends with one in a fence."""
    bare = text.strip()
    if bare.startswith("{") and bare.endswith("}"):
        return 0, [_json_call(bare)]
    found = _JSON_FENCE.search(text)
    return (found.start(), [_json_call(found[1])]) if found else None


_READERS: Iterable[Callable[[str], tuple[int, _Found] | None]] = (
    _hermes,
    _dsml,
    _kimi,
    _mistral,
    _harmony,
    _json,
)
