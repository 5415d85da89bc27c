"""Which tool calls a text holds, where a server without a parser for them left them there."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from fsm_agent.labels.lines import Fence
from fsm_agent.labels.tags import CONTROL_TAIL
from fsm_agent.llm.arguments import parse_arguments
from fsm_agent.llm.model import RequestedCall
from fsm_agent.llm.names import offered_name

MAX_CHARS = 200_000


class _Found(NamedTuple):
    """Where calls begin in a text, and name and arguments of each; ('', '') for what is none."""

    start: int
    calls: list[tuple[str, str]]


_BROKEN = ("", "")
_NAMES, _ARGUMENTS = (
    ("name", "tool", "tool_name", "function", "action"),
    ("arguments", "parameters", "args", "input", "action_input"),
)

_TAGS = r"tool_calls?|function_calls?|tools|toolcall"
_TAGGED = re.compile(
    rf"<\|?({_TAGS})\|?>(.*?)<\|?/\1\|?>|<\|tool_call_start\|>(.*?)<\|tool_call_end\|>",
    re.DOTALL | re.IGNORECASE,
)
_XML = re.compile(r"<function=([^>\s]+)>\s*(.*?)\s*</function>", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM = re.compile(r"\s*([^\s<{\[]+)\s*((?:<arg_key>.*?</arg_value>\s*)*)\Z", re.DOTALL)
_GLM_PAIR = re.compile(
    r"<arg_key>\s*(.*?)\s*</arg_key>\s*<arg_value>\n?(.*?)\n?</arg_value>", re.DOTALL
)
_INVOKE = re.compile(r'<((?:｜DSML｜|\w+:)?)invoke name="([^"]+)">(.*?)</\1invoke>', re.DOTALL)
_INVOKE_BLOCK = re.compile(r"<(?:｜DSML｜|\w+:)?(?:tool_calls?|function_calls?)>")
_INVOKE_PARAMETER = re.compile(
    r'<((?:｜DSML｜|\w+:)?)parameter name="([^"]+)"(?: string="(true|false)")?>(.*?)</\1parameter>',
    re.DOTALL,
)
_KIMI_CALL = re.compile(
    r"<\|tool_call_begin\|>\s*(\S+?)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
    re.DOTALL,
)
_KIMI_BLOCK = re.compile(r"<\|tool_calls_section_begin\|>")
_DEEPSEEK_CALL = re.compile(
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?\s*([^\s<]+?)\s*"
    r"(?:<｜tool▁sep｜>|(?=```))\s*(.*?)\s*<｜tool▁call▁end｜>",
    re.DOTALL,
)
_DEEPSEEK_BLOCK = re.compile(r"<｜tool▁calls▁begin｜>")
_MISTRAL = re.compile(
    r"\[TOOL_CALLS\]\s*(\w[\w.-]*)\s*(?:\[CALL_ID\]\w*)?\s*(?:\[ARGS\])?\s*"
    r"(\{.*?\})\s*(?=\[TOOL_CALLS\]|\Z)",
    re.DOTALL,
)
_MISTRAL_LIST = re.compile(r"\[TOOL_CALLS\]\s*(\[.*\])\s*\Z", re.DOTALL)
_PYTHON_TAG = re.compile(r"<\|python_tag\|>\s*(.*)\Z", re.DOTALL)
_HARMONY = re.compile(
    r"(?:<\|start\|>\s*assistant)?\s*(?:<\|channel\|>)?(?:commentary|analysis)?\s*"
    r"to=(\S+?)\s*(?:<\|channel\|>\s*(?:commentary|analysis))?\s*(?:<\|constrain\|>)?\s*(?:json)?"
    r"\s*(?:<\|message\|>)?\s*(\{.*\})\s*(?:<\|call\|>)?\s*\Z",
    re.DOTALL,
)
_REACT = re.compile(r"^Action:\s*(\S+)\s*\nAction Input:\s*(\{.*\})\s*\Z", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(
    r"```(?:json|tool_calls?|tool_code|python)?\s*([\[{\w].*)\s*```\s*\Z", re.DOTALL
)


def calls_in_text(text: str, offered: Collection[str]) -> tuple[str, tuple[RequestedCall, ...]]:
    """The text without its calls, and the calls.

    Only whole and valid markup counts, and only if every name in it is offered: else the text
    stays as it is and there are no calls. Ask only under the tool label; elsewhere it is prose.
    """
    return _read(text, offered, (*_MARKUP, _react, _json))


def has_call_markup(text: str, offered: Collection[str]) -> bool:
    """Whether a text ends with a call in a model's own marks, which are no words for a user.

    JSON is not among them, and neither is what stands in a code fence: those may be examples.
    """
    _, calls = _read(text, offered, _MARKUP)
    if not calls:
        return False
    fence = Fence()
    for line in text.splitlines():
        fence.see(line)
        if fence.is_open:
            return False
    return True


def _read(
    text: str, offered: Collection[str], readers: Iterable[Callable[[str], _Found | None]]
) -> tuple[str, tuple[RequestedCall, ...]]:
    if not offered or len(text) > MAX_CHARS:
        return text, ()
    bare = CONTROL_TAIL.sub("", text)
    for read in readers:
        found = read(bare)
        if found is None:
            continue
        calls = [_call(name, arguments, offered) for name, arguments in found.calls]
        whole = tuple(call for call in calls if call is not None)
        if whole and len(whole) == len(calls):
            return text[: found.start].rstrip(), whole
        return text, ()
    return text, ()


def _call(name: str, raw: str, offered: Collection[str]) -> RequestedCall | None:
    known = offered_name(name, offered)
    arguments, problem = parse_arguments(raw)
    if known not in offered or problem:
        return None
    return RequestedCall(known, arguments, raw)


# Each reader gives None where its markup is not in the text.


def _tagged(text: str) -> _Found | None:
    blocks = list(_TAGGED.finditer(text))
    if not blocks or _INVOKE.search(text):
        return None
    inner = (block[2] if block[1] else block[3] for block in blocks)
    return _Found(blocks[0].start(), [call for one in inner for call in _inside(one)])


def _inside(text: str) -> list[tuple[str, str]]:
    """The calls between a pair of tags."""
    if functions := list(_XML.finditer(text)):
        return [_xml_call(one) for one in functions]
    calls = _json_calls(text) or _python_calls(text)
    if calls:
        return calls
    if found := _GLM.match(text):
        pairs = {one[1]: _value(one[2]) for one in _GLM_PAIR.finditer(found[2])}
        return [(found[1], json.dumps(pairs, ensure_ascii=False))]
    return [_BROKEN]


def _xml(text: str) -> _Found | None:
    functions = list(_XML.finditer(text))
    if not functions:
        return None
    return _Found(functions[0].start(), [_xml_call(one) for one in functions])


def _xml_call(found: re.Match[str]) -> tuple[str, str]:
    if found[2].startswith("{"):
        return found[1], found[2]
    pairs = {one[1]: _value(one[2]) for one in _XML_PARAMETER.finditer(found[2])}
    return found[1], json.dumps(pairs, ensure_ascii=False)


def _value(text: str) -> Any:
    """Markup has no types: what is JSON of anything but a string is that, else it is a string."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if not isinstance(value, str) else text


def _invoke(text: str) -> _Found | None:
    return _found_in(text, _INVOKE, _INVOKE_BLOCK, _invoke_call)


def _invoke_call(found: re.Match[str]) -> tuple[str, str]:
    pairs = {
        one[2]: one[4] if one[3] == "true" else _value(one[4])
        for one in _INVOKE_PARAMETER.finditer(found[3])
    }
    return found[2], json.dumps(pairs, ensure_ascii=False)


def _kimi(text: str) -> _Found | None:
    return _found_in(text, _KIMI_CALL, _KIMI_BLOCK, lambda one: (one[1], one[2]))


def _deepseek(text: str) -> _Found | None:
    return _found_in(text, _DEEPSEEK_CALL, _DEEPSEEK_BLOCK, lambda one: (one[1], one[2]))


def _found_in(
    text: str,
    pattern: re.Pattern[str],
    block: re.Pattern[str],
    call: Callable[[re.Match[str]], tuple[str, str]],
) -> _Found | None:
    """All calls of a pattern, which may stand in a block of their own."""
    found = list(pattern.finditer(text))
    if not found:
        return None
    opening = block.search(text, 0, found[0].start())
    start = opening.start() if opening else found[0].start()
    return _Found(start, [call(one) for one in found])


def _mistral(text: str) -> _Found | None:
    if found := _MISTRAL_LIST.search(text):
        return _Found(found.start(), _json_calls(found[1]) or [_BROKEN])
    calls = list(_MISTRAL.finditer(text))
    if not calls:
        return None
    return _Found(calls[0].start(), [(one[1], one[2]) for one in calls])


def _python_tag(text: str) -> _Found | None:
    found = _PYTHON_TAG.search(text)
    if found is None:
        return None
    return _Found(found.start(), _json_calls(found[1]) or _python_calls(found[1]) or [_BROKEN])


def _harmony(text: str) -> _Found | None:
    found = _HARMONY.search(text)
    return _Found(found.start(), [(found[1], found[2])]) if found else None


def _react(text: str) -> _Found | None:
    found = _REACT.search(text)
    return _Found(found.start(), [(found[1], found[2])]) if found else None


def _json(text: str) -> _Found | None:
    """The whole text is JSON or a Python call, or it ends with one in a fence."""
    bare = text.strip()
    if calls := _json_calls(bare) or _python_calls(bare):
        return _Found(0, calls)
    found = _FENCED.search(text)
    if found is None:
        return None
    return _Found(found.start(), _json_calls(found[1]) or _python_calls(found[1]) or [_BROKEN])


def _json_calls(text: str) -> list[tuple[str, str]]:
    """The calls of a JSON object or list; none where it is neither."""
    text = text.strip()
    if text.startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError):
            return []
        return [_call_of(item) for item in items] if isinstance(items, list) else []
    if not text.startswith("{") or not text.endswith("}"):
        return []
    value, problem = parse_arguments(text)
    if problem or not value:
        return [_BROKEN]
    inner = value.get("tool_calls")
    return [_call_of(item) for item in inner] if isinstance(inner, list) else [_call_of(value)]


def _call_of(value: Any) -> tuple[str, str]:
    """Name and arguments of `{"name": …, "arguments": …}`, in any of the words for them."""
    if not isinstance(value, dict):
        return _BROKEN
    if isinstance(value.get("function"), dict):
        return _call_of(value["function"])
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), "")
    arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
    if isinstance(arguments, str):
        return name, arguments
    return name, json.dumps(arguments, ensure_ascii=False)


def _python_calls(text: str) -> list[tuple[str, str]]:
    """The calls of `[f(a=1), g()]` or `f(a=1)`, if all arguments are named literals."""
    text = text.strip()
    if not text.endswith((")", "]")) or len(text) > 10_000:
        return []
    try:
        node = ast.parse(text, mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    calls = node.elts if isinstance(node, ast.List) else [node]
    if not all(isinstance(call, ast.Call) for call in calls):
        return []
    return [_python_call(call) for call in calls if isinstance(call, ast.Call)]


def _python_call(call: ast.Call) -> tuple[str, str]:
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        return _BROKEN
    try:
        pairs = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        return ast.unparse(call.func), json.dumps(pairs, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return _BROKEN


_MARKUP: tuple[Callable[[str], _Found | None], ...] = (
    _tagged,
    _xml,
    _invoke,
    _kimi,
    _deepseek,
    _mistral,
    _python_tag,
    _harmony,
)
