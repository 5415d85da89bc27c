"""How a step is put to a Chat Completions endpoint."""

from __future__ import annotations

import base64
import re
from typing import Any, assert_never

import msgspec

from fsm_agent.labels.constraint import grammar_of, regex_of
from fsm_agent.llm.arguments import is_complete
from fsm_agent.llm.model import StepRequest, ToolSpec
from fsm_agent.llm.profiles import Change, Profile
from fsm_agent.llm.signatures import replayed
from fsm_agent.run.content import (
    AssistantMessage,
    Call,
    IllustratedMessage,
    Image,
    Message,
    NoteMessage,
    SignedMessage,
    ToolMessage,
    UserMessage,
    clean_json,
)

CONTINUE = "Continue."
"""Said as the user where the last message would be the assistant's, which some providers refuse."""

LEFT_OUT = "[{count} left out here: the model cannot see images.]"

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")

MAX_KEPT_BYTES = 32 << 20
MAX_KEPT_MESSAGES = 20_000


class RequestBuilder:
    """Builds request bodies, and keeps the JSON of each message for the next turn.

    So a turn encodes what is new to it; the JSON of a long history is only joined.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Message, _Form], bytes] = {}
        self._kept_bytes = 0

    def body(self, request: StepRequest, model: str, profile: Profile) -> bytes:
        """The JSON of the request."""
        head = msgspec.json.encode(clean_json(fields(request, model, profile)))
        messages = b",".join(self._messages(request, profile))
        return head[:-1] + b',"messages":[' + messages + b"]}"

    def _messages(self, request: StepRequest, profile: Profile) -> list[bytes]:
        system = {"role": profile.system_role, "content": clean_json(system_text(request))}
        if profile.alternates_roles:
            said = [message_object(message, profile) for message in request.messages]
            return [msgspec.json.encode(clean_json(one)) for one in alternating([system, *said])]
        form = _form(profile)
        parts = [msgspec.json.encode(system)]
        parts += [self._message(message, profile, form) for message in request.messages]
        last = request.messages[-1] if request.messages else None
        if last is None or isinstance(last, AssistantMessage):
            parts.append(msgspec.json.encode(_CONTINUE))
        return parts

    def _message(self, message: Message, profile: Profile, form: _Form) -> bytes:
        key = (message, form)
        kept = self._kept.get(key)
        if kept is None:
            kept = msgspec.json.encode(clean_json(message_object(message, profile)))
            self._keep(key, kept)
        return kept

    def _keep(self, key: tuple[Message, _Form], value: bytes) -> None:
        if self._kept_bytes > MAX_KEPT_BYTES or len(self._kept) >= MAX_KEPT_MESSAGES:
            self._kept.clear()
            self._kept_bytes = 0
        self._kept[key] = value
        self._kept_bytes += 2 * len(value)  # the key holds the text as well


_Form = tuple[bool, ...]  # of a profile: what the JSON of a message depends on
_CONTINUE = {"role": "user", "content": CONTINUE}


def _form(profile: Profile) -> _Form:
    return (
        profile.has_tools,
        profile.has_images,
        profile.echoes_reasoning,
        profile.replays_signatures,
    )


def sendable(request: StepRequest, profile: Profile) -> StepRequest:
    """The request as this model can take it: without tools their label is gone from it too."""
    protocol = request.protocol
    if profile.has_tools or not request.tools:
        return request
    if protocol is not None and len(protocol.allowed) > 1:
        protocol = protocol.without_tools()
    return msgspec.structs.replace(request, tools=(), protocol=protocol)


def alternating(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages for a chat template that wants user and assistant to take turns."""
    out: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        before = out[-1]["role"] if out else None
        if role == "user" and before == "user":
            out[-1] = {"role": "user", "content": _joined(out[-1]["content"], message["content"])}
        elif role == "user" and before == "tool" and isinstance(message["content"], str):
            out[-1] = {**out[-1], "content": _joined(out[-1]["content"], message["content"])}
        elif role == "assistant" and before != "user" and before != "tool":
            out += [_CONTINUE, message]
        else:
            out.append(message)
    if out[-1]["role"] not in ("user", "tool"):
        out.append(_CONTINUE)
    return out


def _joined(before: Any, after: Any) -> Any:
    if isinstance(before, str) and isinstance(after, str):
        return f"{before}\n\n{after}"
    return [*_parts(before), *_parts(after)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def system_text(request: StepRequest) -> str:
    """The instructions, and after them the protocol."""
    parts = [request.instructions, request.protocol.describe() if request.protocol else ""]
    return "\n\n".join(part for part in parts if part)


def fields(request: StepRequest, model: str, profile: Profile) -> dict[str, Any]:
    """All of a request but its messages."""
    given: dict[str, Any] = {"model": model, "stream": True}
    if profile.has_stream_options:
        given["stream_options"] = {"include_usage": True}
    if request.tools and profile.has_tools:
        given["tools"] = [_tool(tool) for tool in request.tools]
    given |= constraint_fields(request, profile)
    if profile.parallel_tool_calls is not None:
        given["parallel_tool_calls"] = profile.parallel_tool_calls
    if request.max_tokens is not None:
        given[profile.max_tokens_field] = request.max_tokens
    if request.temperature is not None and profile.has_temperature:
        given["temperature"] = request.temperature
    return given


def constraint_fields(request: StepRequest, profile: Profile) -> dict[str, Any]:
    """What holds the server to the protocol's form, in the names that servers know it by."""
    protocol = request.protocol
    if protocol is None or profile.constraint is None:
        return {}
    if profile.constraint == "regex":
        # vLLM's older and newer name, and SGLang's. Each server passes over those of the others.
        regex = regex_of(protocol)
        return {"guided_regex": regex, "structured_outputs": {"regex": regex}, "regex": regex}
    if request.tools and profile.has_tools:
        return {}  # llama.cpp refuses a grammar beside tools, for which it makes one of its own
    return {"grammar": grammar_of(protocol)}


def may_change(change: Change, request: StepRequest, profile: Profile) -> bool:
    """Whether the request holds what the change would take away."""
    match change:
        case "without_tools":
            return bool(request.tools) and profile.has_tools
        case "without_parallel_tool_calls":
            return profile.parallel_tool_calls is not None
        case "without_temperature":
            return request.temperature is not None
        case "swap_max_tokens":
            return request.max_tokens is not None
        case "with_reasoning_content":
            return any(isinstance(message, AssistantMessage) for message in request.messages)
        case "without_images":
            has_any = any(isinstance(m, IllustratedMessage) for m in request.messages)
            return profile.has_images and has_any
        case "with_signatures":
            return any(isinstance(message, SignedMessage) for message in request.messages)
        case "without_constraint":
            return bool(constraint_fields(request, profile))
        case "system_role":
            return profile.system_role == "developer"
        case "without_stream_options" | "with_alternating_roles" | "without_system_role":
            return True
        case _:
            assert_never(change)


def message_object(message: Message, profile: Profile) -> dict[str, Any]:
    """One message in the provider's form."""
    match message:
        case IllustratedMessage():
            return {"role": "user", "content": _illustrated(message, profile)}
        case UserMessage(text=text) | NoteMessage(text=text):
            return {"role": "user", "content": text}
        case ToolMessage(call_id=call_id, name=name, text=text):
            if not profile.has_tools:
                return {"role": "user", "content": f"Result of {name}:\n{text}"}
            return {"role": "tool", "tool_call_id": call_id, "content": text}
        case AssistantMessage():
            return _assistant(message, profile)
        case _:
            assert_never(message)


def _illustrated(message: IllustratedMessage, profile: Profile) -> str | list[dict[str, Any]]:
    text, count = message.text, len(message.images)
    if not profile.has_images:
        left_out = LEFT_OUT.format(count="1 image was" if count == 1 else f"{count} images were")
        return f"{text}\n\n{left_out}".lstrip()
    spoken = [{"type": "text", "text": text}] if text else []
    return [*spoken, *(_image(image) for image in message.images)]


def _image(image: Image) -> dict[str, Any]:
    url = image.url
    if not url:
        data = base64.b64encode(image.data).decode()
        url = f"data:{image.media_type or 'image/png'};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _assistant(message: AssistantMessage, profile: Profile) -> dict[str, Any]:
    content = message.text
    if message.label is not None:
        content = f"``{message.label}``\n{content}"
    given: dict[str, Any] = {"role": "assistant", "content": content}
    if message.calls and profile.has_tools:
        given["tool_calls"] = [_call(call) for call in message.calls]
    elif message.calls:
        asked = "\n".join(f"Call of {call.name}: {call.arguments}" for call in message.calls)
        given["content"] = f"{content}\n{asked}".strip()
    if profile.echoes_reasoning:
        given["reasoning_content"] = message.reasoning
    if isinstance(message, SignedMessage) and profile.replays_signatures:
        replayed(given, message.replay)
    return given


def _call(call: Call) -> dict[str, Any]:
    # Several servers decode the arguments of old calls and fail on what is no JSON. What was wrong
    # with them is in the call's result.
    arguments = call.arguments if call.problem is None or is_complete(call.arguments) else "{}"
    # A name that the model made up may be anything; servers refuse what they do not take as one.
    name = _NO_NAME.sub("_", call.name)[:64] or "_"
    function = {"name": name, "arguments": arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}
