"""How a step is put to a Chat Completions endpoint."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from fsm_agent.llm.arguments import is_complete
from fsm_agent.llm.model import StepRequest, ToolSpec
from fsm_agent.llm.profiles import Change, Profile
from fsm_agent.run.content import (
    AssistantMessage,
    Call,
    Message,
    NoteMessage,
    ToolMessage,
    UserMessage,
    clean_json,
)

CONTINUE = "Continue."
"""Said as the user where the last message would be the assistant's, which some providers refuse."""

MAX_KEPT_BYTES = 32 << 20
MAX_KEPT_MESSAGES = 20_000


class RequestBuilder:
    """Builds request bodies, and keeps the JSON of each message for the next turn.

    So a turn encodes what is new to it; the JSON of a long history is only joined.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Message, bool, bool], bytes] = {}
        self._kept_bytes = 0

    def body(self, request: StepRequest, model: str, profile: Profile) -> bytes:
        """The JSON of the request."""
        head = msgspec.json.encode(clean_json(fields(request, model, profile)))
        messages = b",".join(self._messages(request, profile))
        return head[:-1] + b',"messages":[' + messages + b"]}"

    def _messages(self, request: StepRequest, profile: Profile) -> list[bytes]:
        system = {"role": profile.system_role, "content": clean_json(system_text(request))}
        parts = [msgspec.json.encode(system)]
        parts += [self._message(message, profile) for message in request.messages]
        last = request.messages[-1] if request.messages else None
        if last is None or isinstance(last, AssistantMessage):
            parts.append(msgspec.json.encode({"role": "user", "content": CONTINUE}))
        return parts

    def _message(self, message: Message, profile: Profile) -> bytes:
        key = (message, profile.has_tools, profile.echoes_reasoning)
        kept = self._kept.get(key)
        if kept is None:
            kept = msgspec.json.encode(clean_json(message_object(message, profile)))
            self._keep(key, kept)
        return kept

    def _keep(self, key: tuple[Message, bool, bool], value: bytes) -> None:
        if self._kept_bytes > MAX_KEPT_BYTES or len(self._kept) >= MAX_KEPT_MESSAGES:
            self._kept.clear()
            self._kept_bytes = 0
        self._kept[key] = value
        self._kept_bytes += 2 * len(value)  # the key holds the text as well


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
    if profile.parallel_tool_calls is not None:
        given["parallel_tool_calls"] = profile.parallel_tool_calls
    if request.max_tokens is not None:
        given[profile.max_tokens_field] = request.max_tokens
    if request.temperature is not None and profile.has_temperature:
        given["temperature"] = request.temperature
    return given


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
            return False  # messages hold no images yet
        case "without_stream_options" | "system_role":
            return True
        case _:
            assert_never(change)


def message_object(message: Message, profile: Profile) -> dict[str, Any]:
    """One message in the provider's form."""
    match message:
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
    return given


def _call(call: Call) -> dict[str, Any]:
    # Several servers decode the arguments of old calls and fail on what is no JSON. What was wrong
    # with them is in the call's result.
    arguments = call.arguments if call.problem is None or is_complete(call.arguments) else "{}"
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}
