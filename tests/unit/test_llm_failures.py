"""What a refused request or an error event means."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from fsm_agent.llm.failures import Failure, classify, classify_event

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def failure(status: int, message: str, **headers: str) -> Failure:
    body = json.dumps({"error": {"message": message}})
    return classify(status, body, {key.replace("_", "-"): v for key, v in headers.items()}, NOW)


@pytest.mark.parametrize(
    ("status", "message", "kind", "is_retryable"),
    [
        (401, "Incorrect API key provided", "auth", False),
        (402, "Insufficient Balance", "quota", False),
        (403, "Country not supported", "auth", False),
        (404, "The model does not exist", "not_found", False),
        (408, "", "timeout", True),
        (413, "Request exceeds the maximum size", "context_length", False),
        (422, "", "bad_request", False),
        (429, "Too many requests", "rate_limited", True),
        (429, "You exceeded your current quota, please check your plan", "quota", False),
        (429, "The engine is currently overloaded", "overloaded", True),
        (429, "ThrottlingException: Too many tokens, please wait", "rate_limited", True),
        (500, "boom", "server_error", True),
        (503, "No available channel for model", "overloaded", True),
        (529, "Overloaded", "overloaded", True),
        (400, "maximum context length is 4096 tokens", "context_length", False),
        (400, "Prompt 超长", "context_length", False),
        (400, "max_tokens must be less than or equal to 4096", "bad_request", False),
        (400, "Failed to call a function. See failed_generation", "stream_error", True),
    ],
)
def test_status_and_words_give_the_kind(
    status: int, message: str, kind: str, is_retryable: bool
) -> None:
    got = failure(status, message)

    assert (got.kind, got.is_retryable) == (kind, is_retryable)


@pytest.mark.parametrize(
    ("status", "message", "change"),
    [
        (400, "Unknown parameter: stream_options", "without_stream_options"),
        (400, "'parallel_tool_calls' is not supported", "without_parallel_tool_calls"),
        (400, "'temperature' does not support 0.2", "without_temperature"),
        (400, "Use 'max_completion_tokens' instead of 'max_tokens'", "swap_max_tokens"),
        (400, "developer is not one of ['system']", "system_role"),
        (400, "unknown variant `image_url`, expected `text`", "without_images"),
        (500, "image input is not supported - hint: mmproj", "without_images"),
        (400, "reasoning_content must be passed back", "with_reasoning_content"),
        (404, "No endpoints found that support tool use", "without_tools"),
        (400, "registry.ollama.ai/library/x does not support tools", "without_tools"),
        (400, "Invalid request", None),
        (429, "Rate limit reached for the toolbox: tools are not supported at this rate", None),
        (400, "the toolbox is not supported", None),
        (500, "internal error while handling {'stream_options': …}", None),
    ],
)
def test_a_refusal_says_what_to_change(status: int, message: str, change: str | None) -> None:
    assert failure(status, message).change == change


@pytest.mark.parametrize(
    ("message", "headers", "wait_s"),
    [
        ("", {"retry_after": "2"}, 2.0),
        ("", {"retry_after_ms": "976", "retry_after": "1"}, 0.976),
        ("", {"retry_after": "Mon, 30 Nov 2026 12:00:07 GMT"}, 7.0),
        ("Please try again in 1.5s.", {}, 1.5),
        ("Please try again in 976ms.", {}, 0.976),
        ("Please try again in 1m30s.", {}, 90.0),
        ("Please try again later.", {}, None),
        ("", {"retry_after": "soon"}, None),
    ],
)
def test_the_wait_is_the_headers_or_the_words(
    message: str, headers: dict[str, str], wait_s: float | None
) -> None:
    assert failure(429, message, **headers).retry_after_s == wait_s


@pytest.mark.parametrize(
    ("error", "kind", "is_retryable"),
    [
        ("The model has crashed", "stream_error", True),
        ({"message": "Provider returned error", "code": 502}, "stream_error", True),
        ({"message": "slow down", "code": 429}, "rate_limited", True),
        ({"message": "exceeds the context window"}, "context_length", False),
        ({"message": "Invalid schema", "status_code": 400}, "stream_error", False),
        ({"message": "No auth", "code": 401}, "auth", False),
        ({}, "stream_error", True),
    ],
)
def test_an_error_event_is_classified_likewise(
    error: dict[str, Any] | str, kind: str, is_retryable: bool
) -> None:
    got = classify_event(error)

    assert (got.kind, got.is_retryable) == (kind, is_retryable)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<html><h1>502 Bad\nGateway</h1></html>", "502 Bad Gateway"),
        ('{"detail": "no stream"}', "no stream"),
        ('{"error": "boom"}', "boom"),
        ('{"detail": [{"msg": "Extra"}]}', '[{"msg": "Extra"}]'),
        ("", ""),
    ],
)
def test_the_servers_own_words_are_found(body: str, said: str) -> None:
    assert classify(400, body, {}, NOW).said == said


def test_a_long_complaint_is_shortened() -> None:
    assert len(failure(400, "x" * 5000).said) == 300
