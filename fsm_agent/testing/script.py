"""What the scripted model answers to a request, as plain data.

A script looks at what a request says, not at how many came before, so a resumed run that asks
again gets the same answer::

    script = Script(
        when(user="refund").then(tool_calls=[call("lookup_order", order_id="A7")], label="TOOL"),
        when(tool="lookup_order").then("The total is 42.", label="FINISH"),
    )

`user`, `tool` and `result` look only at what is new to the model: the messages after its own
last one. So the first rule above no longer answers once the tool has run, although the user's
message is still in the request. Nothing here does I/O: `fsm_agent.testing.model_server` plays it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack, assert_never

JsonObject = dict[str, Any]
Text = str | re.Pattern[str]
"""A condition on prose. A str is looked for anywhere, ignoring case; a pattern is searched."""

Name = str | re.Pattern[str]
"""A condition on a name. A str must be equal; a pattern must match the whole name."""


# --- what came -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's result as the model is told it. `name` is '' where no earlier call has its id."""

    name: str
    content: str
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One chat completion request as the server read it."""

    body: JsonObject
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name, without those that carry keys or cookies."""
    path: str = "/v1/chat/completions"
    number: int = 1
    """How many chat requests this server has had, this one included."""
    received_at: float = 0.0
    """Unix time in seconds."""

    @property
    def messages(self) -> list[JsonObject]:
        messages: list[JsonObject] = self.body["messages"]
        return messages

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def is_streaming(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for the usage trailer. Plain replies always have usage."""
        options = self.body.get("stream_options")
        return not self.is_streaming or bool(
            isinstance(options, dict) and options.get("include_usage")
        )

    @property
    def turns(self) -> int:
        """How often the model has spoken in these messages: 0 in a first request."""
        return sum(message.get("role") == "assistant" for message in self.messages)

    @property
    def news(self) -> list[JsonObject]:
        """The messages after the model's last one; all of them in a first request."""
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index].get("role") == "assistant":
                return self.messages[index + 1 :]
        return self.messages

    @property
    def user(self) -> str:
        """What users have said since the model last spoke, '' if nothing."""
        return _texts(self.news, "user")

    @property
    def last_user(self) -> str:
        """The last thing that a user said, however long ago."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return text_of(message)
        return ""

    @property
    def system(self) -> str:
        return _texts(self.messages, "system", "developer")

    @property
    def tool_results(self) -> list[ToolResult]:
        """The tool results that came since the model last spoke, in order."""
        names = {
            asked.get("id"): str(asked.get("function", {}).get("name", ""))
            for message in self.messages
            for asked in message.get("tool_calls") or ()
        }
        return [
            ToolResult(
                name=names.get(message.get("tool_call_id")) or str(message.get("name") or ""),
                content=text_of(message),
                call_id=str(message.get("tool_call_id", "")),
            )
            for message in self.news
            if message.get("role") == "tool"
        ]

    @property
    def offered(self) -> list[str]:
        """The names of the tools that the model may call."""
        return [
            str(tool.get("function", {}).get("name", "")) for tool in self.body.get("tools") or ()
        ]

    @property
    def everything(self) -> str:
        """All text of all messages, arguments of calls included."""
        parts = [text_of(message) for message in self.messages]
        parts += [
            str(asked.get("function", {}).get("arguments", ""))
            for message in self.messages
            for asked in message.get("tool_calls") or ()
        ]
        return "\n".join(parts)

    @property
    def digest(self) -> str:
        """Equal for requests that ask the same: model, messages and tools, in hexadecimal."""
        asked = {key: self.body.get(key) for key in ("model", "messages", "tools")}
        return hashlib.sha256(dumps(asked, sort_keys=True).encode()).hexdigest()


def text_of(message: JsonObject) -> str:
    """The text of a message, whether its content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(
        str(part.get("text", "")) for part in content or () if part.get("type") == "text"
    )


def _texts(messages: list[JsonObject], *roles: str) -> str:
    return "\n".join(text_of(message) for message in messages if message.get("role") in roles)


def body_fault(body: JsonObject) -> str | None:
    """Why this body is no chat completion request at all, None if it is one."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "'messages' must be a list of at least one message."
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"messages[{index}] must be an object with a 'role'."
        parts, calls = message.get("content"), message.get("tool_calls") or []
        if not (parts is None or isinstance(parts, str) or _are_objects(parts)):
            return f"messages[{index}].content must be a string or a list of objects."
        if not _are_objects(calls) or not _are_objects(asked.get("function") for asked in calls):
            return f"messages[{index}].tool_calls must be a list of calls with a 'function'."
    tools = body.get("tools") or []
    if not _are_objects(tools) or not _are_objects(tool.get("function", {}) for tool in tools):
        return "'tools' must be a list of objects."
    return None


def _are_objects(values: Any) -> bool:
    return isinstance(values, Iterable) and all(isinstance(value, dict) for value in values)


def history_fault(messages: Sequence[JsonObject]) -> str | None:
    """Why OpenAI would refuse these messages, None if it would not.

    The rule that runtimes break: each call of an assistant message has a tool message
    directly after it, and a tool message answers such a call.
    """
    open_ids: set[Any] = set()
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in open_ids:
                return (
                    f"messages[{index}]: messages with role 'tool' must be a response to a "
                    f"preceding message with 'tool_calls'; nothing before it asks for {call_id!r}."
                )
            open_ids.discard(call_id)
            continue
        if open_ids:
            break
        open_ids = {asked.get("id") for asked in message.get("tool_calls") or ()}
    if not open_ids:
        return None
    missing = ", ".join(sorted(str(call_id) for call_id in open_ids))
    return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding "
        f"to each 'tool_call_id'. These had no response: {missing}."
    )


# --- what goes back ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model asks for. `arguments` is the text as sent, which may be bad JSON.

    Without an `id` the call gets one that follows from the request, the same every time.
    """

    name: str
    arguments: str = "{}"
    id: str | None = None


def call(name: str, /, **arguments: Any) -> ToolCall:
    """A call of the tool `name` with these arguments. For bad JSON or a given id, use ToolCall."""
    return ToolCall(name=name, arguments=json.dumps(arguments))


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage that the reply claims, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    _: KW_ONLY
    cached_tokens: int = 0
    """The part of `prompt_tokens` that was read from a cache."""
    reasoning_tokens: int = 0
    """The part of `completion_tokens` that was thinking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The connection breaks after so many chunks; after 0, before the response has begun."""

    after_chunks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Nothing more comes after so many chunks, until the client or the server goes away.

    After 0 chunks, the response never begins.
    """

    after_chunks: int = 0


@dataclass(frozen=True, slots=True)
class StreamError:
    """After so many chunks the stream holds an error event, and ends without a finish reason."""

    message: str = "The server had an error while processing your request."
    _: KW_ONLY
    after_chunks: int = 0
    type: str = "server_error"
    code: str | int | None = None


Interruption = Drop | Hang | StreamError


class ReplyOptions(TypedDict, total=False):
    """The keywords of `then`: the fields of Reply after its text."""

    label: str | None
    thinking: str
    thinking_as: Literal["reasoning_content", "reasoning", "inline"]
    tool_calls: Sequence[ToolCall]
    finish_reason: str | None
    usage: Usage | Literal["auto"] | None
    chunk_chars: int
    first_byte_ms: int
    between_ms: int
    interruption: Interruption | None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says. Sent as a stream or in one piece, as the request asks.

    Raises ValueError for a length below one character or a negative delay.
    """

    text: str = ""
    _: KW_ONLY
    label: str | None = None
    """Goes before the text, in double backticks on a line of its own."""
    thinking: str = ""
    thinking_as: Literal["reasoning_content", "reasoning", "inline"] = "reasoning_content"
    """The field for the thinking; `inline` puts it in <think> tags before the label."""
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str | None = "auto"
    """`auto` is tool_calls where there are calls, else stop. None sends none."""
    usage: Usage | Literal["auto"] | None = "auto"
    """`auto` counts four characters a token and, in a stream, is sent to who asks for usage.

    A given Usage is always sent, None never."""
    chunk_chars: int = 16
    """The most characters of text, thinking or arguments in one chunk of a stream."""
    first_byte_ms: int = 0
    """The wait before the response begins."""
    between_ms: int = 0
    """The wait between two chunks of a stream."""
    interruption: Interruption | None = None
    """How the stream goes wrong. A reply in one piece goes wrong before it begins."""

    def __post_init__(self) -> None:
        if self.chunk_chars < 1:
            raise ValueError(f"chunk_chars is {self.chunk_chars}; it must be at least 1.")
        if min(self.first_byte_ms, self.between_ms) < 0:
            raise ValueError("first_byte_ms and between_ms must not be negative.")

    @property
    def content(self) -> str:
        """The text as sent: inline thinking, then the label, then the text."""
        label = f"``{self.label}``\n" if self.label is not None else ""
        inline = self.thinking and self.thinking_as == "inline"
        return (f"<think>\n{self.thinking}\n</think>\n\n" if inline else "") + label + self.text

    @property
    def reasoning(self) -> str:
        """The thinking that goes in a field of its own."""
        return "" if self.thinking_as == "inline" else self.thinking

    @property
    def finish(self) -> str | None:
        if self.finish_reason != "auto":
            return self.finish_reason
        return "tool_calls" if self.tool_calls else "stop"


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error status instead of a completion, with a body in OpenAI's shape."""

    status: int
    message: str = "scripted error"
    _: KW_ONLY
    code: str | int | None = None
    type: str | None = None
    """By default what OpenAI says for the status."""
    param: str | None = None
    retry_after_s: float | None = None
    """Sent as the Retry-After header."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """One HTTP response, byte for byte. What is not listed is not sent.

    With `chunks`, a stream: each item is sent in a write of its own, and is one of

    ====================== ================================================================
    any other object       ``data: <its JSON>`` and a blank line
    ``{"_sse": text}``     the text in UTF-8, unchanged
    ``{"_sse_b64": text}`` the bytes, unchanged
    ``{"_done": true}``    ``data: [DONE]`` and a blank line
    ``{"_delay_ms": n}``   nothing for so long
    ``{"_repeat": n, "item": {…}}``  the item n times
    ``{"_hang": true}``    nothing more, and the connection stays open
    ``{"_drop": true}``    the connection breaks without an end of the body
    ====================== ================================================================

    With `body`, that body: an object or list as JSON, a str as text, None as empty.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    """Added to, and stronger than, a content-type that fits."""
    chunks: Sequence[JsonObject] | None = None
    body: bytes | str | JsonObject | list[Any] | None = None
    before_head: Sequence[JsonObject] = ()
    """Items for the time before the status line: delays, a hang or a drop."""

    @classmethod
    def of(cls, response: JsonObject) -> Raw:
        """From `{"status", "headers"?, "body"}` or `{"status", "headers"?, "chunks"}`."""
        return cls(
            status=response.get("status", 200),
            headers=response.get("headers") or {},
            chunks=response.get("chunks"),
            body=response.get("body"),
        )


Response = Reply | HttpError | Raw
AnswerFunction = Callable[[Request], "Awaitable[Answer]"]


@dataclass(frozen=True, slots=True, eq=False)
class Attempts:
    """Responses by order, one a request; the last one repeats.

    This is for retries, where the same is asked again and the answer must differ. Requests
    count together while `key` of them is equal: by default, the last thing that a user said,
    which stays when the client takes options, images or old messages out of a request.
    The server counts for this very object, so a function has to answer the same one each time.
    """

    responses: Sequence[Response]
    _: KW_ONLY
    key: Callable[[Request], str] = lambda request: request.last_user

    def __post_init__(self) -> None:
        if not self.responses:
            raise ValueError("Attempts needs at least one response.")

    def pick(self, earlier: int) -> Response:
        """The response after so many earlier requests of the same key."""
        return self.responses[min(earlier, len(self.responses) - 1)]


Answer = Response | Attempts | AnswerFunction
"""What a rule may answer with. A function is asked on each request, and may answer any of these."""


# --- which answer to which request ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    """A question about a request. `words` is how an error message names it."""

    words: str
    holds: Callable[[Request], bool]

    def then(self, answer: str | Answer = "", /, **options: Unpack[ReplyOptions]) -> Rule:
        """The rule that answers with this text, or with any other kind of answer.

        The options are the fields of Reply, and go with a text only: else TypeError.
        """
        if isinstance(answer, str):
            return Rule(self, Reply(answer, **options))
        if options:
            given = ", ".join(options)
            raise TypeError(f"{given}: these go with a text; put them in the Reply instead.")
        return Rule(self, answer)


@dataclass(frozen=True, slots=True)
class Rule:
    """When the condition holds, this is the answer. Made by `when(…).then(…)`."""

    condition: Condition
    answer: Answer


def when(
    *,
    user: Text | None = None,
    tool: Name | None = None,
    result: Text | None = None,
    turns: int | None = None,
    offers: Name | None = None,
    model: Name | None = None,
    system: Text | None = None,
    anywhere: Text | None = None,
    where: Callable[[Request], bool] | None = None,
) -> Condition:
    """A condition that holds when all of these do; without any, always.

    user      what users have said since the model last spoke
    tool      a tool by this name has answered since the model last spoke
    result    the text of such an answer (of that tool, where `tool` is given too)
    turns     how often the model has spoken before: 0 in a first request
    offers    a tool by this name may be called
    model     the model that is asked for
    system    the system or developer messages
    anywhere  any message's text, or any call's arguments
    where     any other question

    Texts are found inside, ignoring case, and names are equal; a compiled pattern works for both.
    """
    checks: list[Callable[[Request], bool]] = []
    if user is not None:
        checks.append(lambda request: _is_in(request.user, user))
    if tool is not None or result is not None:
        checks.append(lambda request: _has_answered(request, tool, result))
    if turns is not None:
        checks.append(lambda request: request.turns == turns)
    if offers is not None:
        checks.append(lambda request: any(_is_named(name, offers) for name in request.offered))
    if model is not None:
        checks.append(lambda request: _is_named(request.model, model))
    if system is not None:
        checks.append(lambda request: _is_in(request.system, system))
    if anywhere is not None:
        checks.append(lambda request: _is_in(request.everything, anywhere))
    if where is not None:
        checks.append(where)
    given = {
        "user": user, "tool": tool, "result": result, "turns": turns, "offers": offers,
        "model": model, "system": system, "anywhere": anywhere, "where": where,
    }  # fmt: skip
    words = ", ".join(f"{key}={_named(value)}" for key, value in given.items() if value is not None)
    return Condition(f"when({words})", lambda request: all(check(request) for check in checks))


def otherwise(answer: str | Answer = "", /, **options: Unpack[ReplyOptions]) -> Rule:
    """The rule for all that is left. It stands last."""
    return when().then(answer, **options)


def _is_in(text: str, wanted: Text) -> bool:
    if isinstance(wanted, str):
        return wanted.casefold() in text.casefold()
    return wanted.search(text) is not None


def _is_named(name: str, wanted: Name) -> bool:
    if isinstance(wanted, str):
        return wanted == name
    return wanted.fullmatch(name) is not None


def _has_answered(request: Request, tool: Name | None, result: Text | None) -> bool:
    return any(
        (tool is None or _is_named(answer.name, tool))
        and (result is None or _is_in(answer.content, result))
        for answer in request.tool_results
    )


def _named(value: object) -> str:
    if isinstance(value, re.Pattern):
        return f"/{value.pattern}/"
    return getattr(value, "__name__", None) or repr(value)


class Unmatched(LookupError):
    """No rule of the script answers a request. The text names both."""

    def __init__(self, request: Request, rules: Sequence[Rule]) -> None:
        news = "; ".join(_in_short(message, request) for message in request.news) or "nothing new"
        listed = "".join(f"\n  {n}. {rule.condition.words}" for n, rule in enumerate(rules, 1))
        super().__init__(
            f"no rule of this script answers the request: turns={request.turns}, "
            f"model={request.model!r}, offers={', '.join(request.offered) or 'no tool'}.\n"
            f"New to the model: {news}.\nRules:{listed or ' none'}\n"
            "Add a rule that fits, or otherwise(…) as the last one."
        )
        self.request = request


def _in_short(message: JsonObject, request: Request) -> str:
    role = str(message.get("role"))
    if role == "tool":
        names = {answer.call_id: answer.name for answer in request.tool_results}
        role += f" {names.get(str(message.get('tool_call_id'))) or '?'}"
    text = text_of(message)
    return f"{role} {text[:80] + '…' if len(text) > 80 else text!r}"


class Script:
    """Rules, of which the first that fits answers.

    With `drifting`, no two replies are equal: each is marked with the number of its request,
    as `drifted` says. A crash test needs that, to show that a run's record holds one whole
    reply a step, and not half of one and half of its repeat.
    """

    def __init__(self, *rules: Rule, drifting: bool = False) -> None:
        if strays := [rule for rule in rules if not isinstance(rule, Rule)]:
            raise TypeError(f"{strays[0]!r} is not a rule. Write when(…).then(…).")
        self.rules = rules
        self.drifting = drifting

    def answer(self, request: Request) -> Answer:
        """The answer of the first rule that fits. Raises Unmatched if none does."""
        for rule in self.rules:
            if rule.condition.holds(request):
                return rule.answer
        raise Unmatched(request, self.rules)


def drifted(reply: Reply, number: int) -> Reply:
    """The reply, marked `[attempt N]` at both ends of its text and its thinking.

    In the arguments of calls, and in texts that hold it, `{attempt}` becomes the number instead.
    """

    def marked(text: str) -> str:
        if "{attempt}" in text:
            return text.replace("{attempt}", str(number))
        return f"[attempt {number}] {text} [attempt {number}]" if text else text

    calls = [
        replace(asked, arguments=asked.arguments.replace("{attempt}", str(number)))
        for asked in reply.tool_calls
    ]
    return replace(
        reply, text=marked(reply.text), thinking=marked(reply.thinking), tool_calls=calls
    )


def attempts_in(text: str) -> set[int]:
    """The numbers of the drifted replies that this text has parts of."""
    return {int(number) for number in re.findall(r"\[attempt (\d+)\]", text)}


# --- from an answer to a response ----------------------------------------------------------------

_ERROR_TYPES = {429: "rate_limit_error", 401: "invalid_request_error"}


def rendered(response: Response, request: Request, *, seed: str = "") -> Raw:
    """The HTTP response for this request. Ids follow from the request and `seed` alone."""
    match response:
        case Raw():
            return response
        case HttpError():
            return _rendered_error(response)
        case Reply():
            source = f"{request.digest} {seed}"
            if request.is_streaming:
                return _rendered_stream(response, request, source)
            return _rendered_whole(response, request, source)
        case _:
            assert_never(response)


def error_body(
    message: str, *, type: str, code: str | int | None = None, param: str | None = None
) -> JsonObject:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def _rendered_error(error: HttpError) -> Raw:
    fallback = "server_error" if error.status >= 500 else "invalid_request_error"
    kind = error.type or _ERROR_TYPES.get(error.status, fallback)
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["retry-after"] = f"{error.retry_after_s:g}"
    body = error_body(error.message, type=kind, code=error.code, param=error.param)
    return Raw(status=error.status, headers=headers, body=body)


def _rendered_whole(reply: Reply, request: Request, source: str) -> Raw:
    message: JsonObject = {"role": "assistant", "content": reply.content or None}
    if reply.reasoning:
        message[reply.thinking_as] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            _call_json(asked, index, source) for index, asked in enumerate(reply.tool_calls)
        ]
    body = _envelope("chat.completion", request, source)
    body["choices"] = [{"index": 0, "message": message, "finish_reason": reply.finish}]
    if reply.usage is not None:
        body["usage"] = _usage_json(reply, request)
    match reply.interruption:
        case StreamError() as error:
            failed = error_body(error.message, type=error.type, code=error.code)
            return Raw(status=500, body=failed, before_head=_first_wait(reply))
        case _ as interruption:
            return Raw(body=body, before_head=[*_first_wait(reply), *_breaks(interruption)])


def _rendered_stream(reply: Reply, request: Request, source: str) -> Raw:
    chunks = list(_chunks(reply, request, source))
    interruption = reply.interruption
    if interruption is None:
        return Raw(
            chunks=[*_paced(chunks, reply.between_ms), {"_done": True}],
            before_head=_first_wait(reply),
        )
    kept = _paced(chunks[: interruption.after_chunks], reply.between_ms)
    if isinstance(interruption, StreamError):
        event = error_body(interruption.message, type=interruption.type, code=interruption.code)
        return Raw(chunks=[*kept, event], before_head=_first_wait(reply))
    if not interruption.after_chunks:
        return Raw(before_head=[*_first_wait(reply), *_breaks(interruption)])
    return Raw(chunks=[*kept, *_breaks(interruption)], before_head=_first_wait(reply))


def _first_wait(reply: Reply) -> list[JsonObject]:
    return [{"_delay_ms": reply.first_byte_ms}] if reply.first_byte_ms else []


def _breaks(interruption: Drop | Hang | None) -> list[JsonObject]:
    match interruption:
        case None:
            return []
        case Drop():
            return [{"_drop": True}]
        case Hang():
            return [{"_hang": True}]
        case _:
            assert_never(interruption)


def _paced(chunks: Sequence[JsonObject], between_ms: int) -> list[JsonObject]:
    if not between_ms:
        return list(chunks)
    waits = [item for chunk in chunks for item in (chunk, {"_delay_ms": between_ms})]
    return waits[:-1]


def _chunks(reply: Reply, request: Request, source: str) -> Iterator[JsonObject]:
    """The chunks of a whole stream: role, thinking, text, calls, finish reason, usage."""
    envelope = _envelope("chat.completion.chunk", request, source)
    sends_usage = reply.usage is not None and (request.wants_usage or reply.usage != "auto")
    if sends_usage:
        envelope["usage"] = None  # OpenAI: null in each chunk but the last

    def chunk(delta: JsonObject, finish: str | None = None) -> JsonObject:
        return envelope | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for part in _parts(reply.reasoning, reply.chunk_chars):
        yield chunk({reply.thinking_as: part})
    for part in _parts(reply.content, reply.chunk_chars):
        yield chunk({"content": part})
    for index, asked in enumerate(reply.tool_calls):
        whole = _call_json(asked, index, source)
        head = whole | {"index": index, "function": {"name": asked.name, "arguments": ""}}
        yield chunk({"tool_calls": [head]})
        for part in _parts(asked.arguments, reply.chunk_chars):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    if reply.finish is not None:
        yield chunk({}, reply.finish)
    if sends_usage:
        yield envelope | {"choices": [], "usage": _usage_json(reply, request)}


def _parts(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _envelope(kind: str, request: Request, source: str) -> JsonObject:
    return {
        "id": f"chatcmpl-{_short_digest(source)}",
        "object": kind,
        "created": int(request.received_at),
        "model": request.model,
    }


def _call_json(asked: ToolCall, index: int, source: str) -> JsonObject:
    return {
        "id": asked.id if asked.id is not None else f"call_{_short_digest(f'{source} {index}')}",
        "type": "function",
        "function": {"name": asked.name, "arguments": asked.arguments},
    }


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _usage_json(reply: Reply, request: Request) -> JsonObject:
    usage = reply.usage if isinstance(reply.usage, Usage) else _estimated(reply, request)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _estimated(reply: Reply, request: Request) -> Usage:
    spoken = reply.content + "".join(asked.name + asked.arguments for asked in reply.tool_calls)
    asked_for = dumps([request.messages, request.body.get("tools")])
    return Usage(
        _tokens(asked_for),
        _tokens(spoken) + _tokens(reply.reasoning),
        reasoning_tokens=_tokens(reply.reasoning),
    )


def _tokens(text: str) -> int:
    return -(-len(text) // 4)


def item_bytes(item: JsonObject) -> bytes | None:
    """What an item of Raw.chunks puts on the wire, None for the items that are no bytes."""
    if "_sse" in item:
        return str(item["_sse"]).encode()
    if "_sse_b64" in item:
        return base64.b64decode(item["_sse_b64"])
    if "_done" in item:
        return b"data: [DONE]\n\n"
    if item.keys() & {"_delay_ms", "_repeat", "_hang", "_drop"}:
        return None
    return f"data: {dumps(item)}\n\n".encode()


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """Compact JSON in ASCII. msgspec would refuse half a surrogate pair, which models do send."""
    return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys)
