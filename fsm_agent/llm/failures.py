"""What a refused request or an error event means, and what could be changed about it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from fsm_agent.errors import FailureKind
from fsm_agent.llm.profiles import Change

MAX_SAID_CHARS = 300  # of the provider's words in a message
_MAY_NAME_A_PARAMETER = frozenset({400, 404, 405, 415, 422, 500, 501})
_REFUSED_WITH_500: frozenset[Change] = frozenset(
    {"without_images", "without_tools", "with_alternating_roles", "without_system_role"}
)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One classified failure. `change` is what to change about the request, if it is the cause."""

    kind: FailureKind
    said: str  # the provider's own words, one line
    is_retryable: bool = False
    retry_after_s: float | None = None
    change: Change | None = None
    others: tuple[Change, ...] = ()  # that may be the cause as well


_REFUSED = (
    r"(?:unsupported|not supported|not permitted|not allowed|only allowed|unknown|unrecognized"
    r"|unexpected|extra_forbidden|extra inputs|invalid value|does not support|only the default"
    r"|deprecated|instead|not compatible|only 1 is allowed)"
)
_CONTEXT = re.compile(
    r"context[ _](?:length|window|size)|context the overflows|maximum context|max context"
    r"|maximum prompt length|(?:prompt|input) (?:is )?too long|too many (?:input )?tokens"
    r"|exceed_context|exceeds? the (?:maximum|model'?s) (?:number of )?(?:input )?tokens"
    r"|input (?:token|length).{0,40}exceed|longer than the model|reduce the length|超长|n_ctx"
    r"|token limit|range of input length|too many total text bytes|max_new_tokens. must be"
    r"|max(?:imum)?[_ ](?:seq_len|model_len|message tokens|input length|model length)"
    r"|(?:number of tokens|token count|sequence length|payload size).{0,40}exceed|string too long"
    r"|输入.{0,6}过长|tokens?.{0,6}超过"
    r"|request[_ ]too[_ ]large|request exceeds the maximum size|message size"
)
_OUTPUT_CAP = re.compile(r"max(?:_completion)?_tokens\W.{0,40}(?:less than|at most|too large|<=)")
_QUOTA = re.compile(
    r"insufficient[_ ](?:quota|balance|credit|funds)|credit balance|key limit exceeded"
    r"|(?:spend(?:ing)?|monthly|usage) limit|exceeded your current quota|billing"
    r"|out of credits?|payment required|余额不足|arrears|account balance"
)
_OVERLOADED = re.compile(r"overloaded|no available channel|at capacity|server is busy")
_RATE = re.compile(r"rate.?limit|too many requests|throttl|\btpm\b|\brpm\b")
_OWN_FAULT = re.compile(r"tool_use_failed|failed to call a function|failed_generation")

# In this order: the more special names come first.
_CHANGES: tuple[tuple[re.Pattern[str], Change], ...] = (
    (re.compile(r"stream_options"), "without_stream_options"),
    (re.compile(rf"parallel_tool_calls.*{_REFUSED}|{_REFUSED}.*parallel_tool_calls"),
     "without_parallel_tool_calls"),
    (re.compile(rf"max_(?:completion_)?tokens.*{_REFUSED}|{_REFUSED}.*max_(?:completion_)?tokens"),
     "swap_max_tokens"),
    (re.compile(rf"temperature.*{_REFUSED}|{_REFUSED}.*temperature"), "without_temperature"),
    (re.compile(r"reasoning_content.*(?:passed back|missing|must be|required)"
        r"|missing .{0,4}reasoning_content"),
     "with_reasoning_content"),
    (re.compile(r"developer.{0,40}(?:role|one of)|role.{0,60}developer|['\"`]developer['\"`]"
        r"|incorrect role information|unexpected message role"),
     "system_role"),
    (re.compile(r"thought_signature|thinking blocks?.{0,80}(?:modified|missing|must)"),
     "with_signatures"),
    (re.compile(r"roles? must alternate|roles? should alternate|alternate user/assistant"
        r"|unexpected role .{0,12} after role|consecutive (?:user|assistant)"),
     "with_alternating_roles"),
    (re.compile(r"system role (?:is )?not supported|only user and assistant roles|message role"
        r"|(?:not|n't) support (?:the )?system (?:role|mess)"),
     "without_system_role"),
    (re.compile(rf"(?:grammar|guided_regex|structured_outputs|\bregex\b).*{_REFUSED}"
        rf"|{_REFUSED}.*(?:grammar|guided_regex|structured_outputs|\bregex\b)"
        r"|grammar constraints|failed to (?:parse|initialize|compile) (?:the )?grammar"),
     "without_constraint"),
    (re.compile(r"image_url|image input|mmproj|support image|multimodal|vision|at most 0 image"
        r"|type in content\b|content must be a string|message content type|failed to load image"
        r"|should be a valid string"), "without_images"),
    (re.compile(
        r"tool choice requires|tool-call-parser|requires --jinja|cannot use tools with stream"
        r"|tools? (?:is|are|calls? (?:is|are)) (?:currently )?not supported"
        r"|tool calls? does not support|with tools is (?:currently )?not supported"
        r"|(?:not|n't) support (?:tools?\b|tool[ _](?:use|calls?|calling)|function[ _]call)"
        r"|support tool use|function[ _]calling (?:is|are) not"
        rf"|\btools?\b.{{0,60}}{_REFUSED}|{_REFUSED}.{{0,60}}\btools?\b(?! call)"),
     "without_tools"),
)  # fmt: skip


def classify(status: int, body: str, headers: Mapping[str, str], now: datetime) -> Failure:
    """The failure of a request that was answered with an error status."""
    said, text = said_in(body), _plain(body)
    wait = _wait_s(headers, text, now)
    if status not in (429, 503, 529) and _is_context(text):
        return Failure(kind="context_length", said=said)
    if status == 413 or (status == 429 and "request too large" in text):
        return Failure(kind="context_length", said=said)
    if _OWN_FAULT.search(text):
        return Failure(kind="stream_error", said=said, is_retryable=True)
    change, *others = _changes(text, status) or (None,)
    kind = _kind_of_status(status, text)
    is_retryable = kind in ("rate_limited", "overloaded", "server_error", "timeout")
    return Failure(
        kind=kind,
        said=said,
        is_retryable=is_retryable,
        retry_after_s=wait,
        change=change,
        others=tuple(other for other in others if other),
    )


def classify_event(error: dict[str, Any] | str) -> Failure:
    """The failure that an error event inside a stream reports. Usually asking again helps."""
    body = error if isinstance(error, str) else json.dumps({"error": error}, ensure_ascii=False)
    said, text = said_in(body), body.lower()
    status = _status_in(error)
    if status != 429 and _is_context(text):
        return Failure(kind="context_length", said=said)
    if _QUOTA.search(text) or status == 402:
        return Failure(kind="quota", said=said)
    if status == 429 or (status is None and _RATE.search(text)):
        wait = _wait_s({}, said, datetime.now(UTC))
        return Failure(kind="rate_limited", said=said, is_retryable=True, retry_after_s=wait)
    if status in (401, 403):
        return Failure(kind="auth", said=said)
    is_refusal = status in (400, 404, 422) and not _OWN_FAULT.search(text)
    return Failure(kind="stream_error", said=said, is_retryable=not is_refusal)


def _is_context(text: str) -> bool:
    return bool(_CONTEXT.search(text)) and not _OUTPUT_CAP.search(text)


def _changes(text: str, status: int) -> tuple[Change, ...]:
    if status not in _MAY_NAME_A_PARAMETER or _OUTPUT_CAP.search(text):
        return ()
    flat = text.replace("\n", " ")
    changes = (change for pattern, change in _CHANGES if pattern.search(flat))
    # A server that breaks may repeat the request in its complaint, which names every field.
    return tuple(change for change in changes if status < 500 or change in _REFUSED_WITH_500)


def _kind_of_status(status: int, text: str) -> FailureKind:
    if status == 402 or (status in (400, 403, 429) and _QUOTA.search(text)):
        return "quota"
    if status in (401, 403):
        return "auth"
    if status == 429:
        return "overloaded" if _OVERLOADED.search(text) else "rate_limited"
    if status in (498, 503, 529):
        return "overloaded"
    if status == 408:
        return "timeout"
    if status >= 500 or status in (409, 425):
        return "server_error"
    return "not_found" if status == 404 else "bad_request"


def _status_in(error: dict[str, Any] | str) -> int | None:
    if isinstance(error, str):
        return None
    for key in ("status_code", "status", "code", "http_code"):
        value = error.get(key)
        if isinstance(value, str) and value.isdecimal():
            value = int(value[:6])
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return None


def _plain(body: str) -> str:
    """The body in lower case, without JSON's escapes."""
    try:
        return json.dumps(json.loads(body), ensure_ascii=False).lower()
    except (ValueError, RecursionError):
        return body.lower()


def said_in(body: str) -> str:
    """What an error body says to people, on one line."""
    try:
        found = _message(json.loads(body))
    except (ValueError, RecursionError):
        found = re.sub(r"<[^>]*>", " ", body)
    line = " ".join(found.split())
    return line if len(line) <= MAX_SAID_CHARS else line[: MAX_SAID_CHARS - 1] + "…"


def _message(value: Any) -> str:
    """The message wherever servers put it."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False) if value is not None else ""
    for key in ("error", "message", "detail", "msg"):
        if value.get(key):
            return _message(value[key])
    return json.dumps(value, ensure_ascii=False)


_AFTER = r"(?:try again|retry) (?:in|after)|retrydelay\W{1,8}|please wait"
_WAIT = re.compile(
    rf"(?:{_AFTER})\s*(?:(\d+)\s*h(?:ours?)?\b\s*|(\d+)h)?(?:(\d+)\s*m(?:in(?:ute)?s?)?(?![a-z]))?"
    r"\s*(?:(\d+(?:\.\d+)?)\s*(ms|milliseconds|s)?)?"
)


def _wait_s(headers: Mapping[str, str], said: str, now: datetime) -> float | None:
    """How long the provider wants to be left alone, in seconds: by its headers, else its words."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        given = headers.get(name, "")
        if re.fullmatch(r"\d+(?:\.\d+)?", given):
            return float(given) * factor
    if given := headers.get("retry-after", ""):
        return _until_s(given, now)
    found = _WAIT.search(said.lower())
    if found is None or not any(found.group(1, 2, 3, 4)):
        return None
    hours, minutes, seconds = found[1] or found[2] or 0, found[3] or 0, found[4] or 0
    factor = 0.001 if (found[5] or "").startswith("m") else 1.0
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds) * factor


def _until_s(date: str, now: datetime) -> float | None:
    try:
        return max(0.0, (parsedate_to_datetime(date) - now).total_seconds())
    except (TypeError, ValueError):
        return None
