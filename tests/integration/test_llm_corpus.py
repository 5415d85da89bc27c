"""tests/cases/stream/*.jsonl through the real client, over real HTTP, cut in several ways."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.errors import ProviderError
from fsm_agent.labels.protocol import LabelProtocol
from fsm_agent.llm.client import OpenAIModel
from fsm_agent.llm.limits import Limits
from fsm_agent.llm.model import Piece, Reply, StepRequest, ToolSpec
from fsm_agent.llm.profiles import Profile
from fsm_agent.run.content import (
    AssistantMessage,
    Call,
    IllustratedMessage,
    Image,
    Message,
    ToolMessage,
    UserMessage,
)
from fsm_agent.testing.model_server import ModelServer
from fsm_agent.testing.script import Raw, Request, item_bytes

CASES_DIR = Path(__file__).parent.parent / "cases"
LIMITS = Limits(first_s=2.5, idle_s=1.7, idle_answer_s=1.5, trailer_s=0.7, whole_s=20)
MAX_ATTEMPTS = 4
MAX_BYTE_BY_BYTE = 12_000  # longer bodies are sent in pieces of a prime length instead
TOOL_SCHEMA = {"type": "object", "properties": {}}


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _params() -> list[Any]:
    cases = [case for path in sorted(CASES_DIR.glob("stream/*.jsonl")) for case in _read(path)]
    return [pytest.param(case, id=case["id"]) for case in cases]


class Outcome:
    """What came of a case: the last step, and what it took."""

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.error: ProviderError | None = None
        self.pieces: list[Piece] = []
        self.retries: list[str] = []
        self.waited_s = 0.0
        self.seconds = 0.0


def _protocol(labels: dict[str, Any]) -> LabelProtocol:
    tool = labels["tool"] if labels["tool"] in labels["allowed"] else None
    return LabelProtocol(
        allowed=tuple(labels["allowed"]),
        terminal=frozenset(labels["terminal"]),
        intermediate=frozenset(labels["intermediate"]),
        final=frozenset(labels["final"]),
        tool_label=tool,
    )


def _request(case: dict[str, Any]) -> StepRequest:
    features = case.get("request_features") or ()
    messages: tuple[Message, ...] = (UserMessage("Go on, please."),)
    if "images" in features:
        picture = Image(data=b"\x89PNG", media_type="image/png")
        messages = (IllustratedMessage("Go on, please.", (picture,)),)
    if "assistant_tool_history" in features:
        asked = AssistantMessage("TOOL", "", (Call("c1", "now", "{}"),), "I look at the clock.")
        messages += (asked, ToolMessage("c1", "now", "noon"))
    return StepRequest(
        instructions="Answer with a label.",
        messages=messages,
        tools=tuple(ToolSpec(name, name, TOOL_SCHEMA) for name in case["tools"]),
        protocol=_protocol(case["labels"]),
        max_tokens=512 if {"max_tokens", "max_completion_tokens"} & set(features) else None,
        temperature=0.2 if "temperature" in features else None,
    )


def _profile(case: dict[str, Any]) -> Profile:
    features = case.get("request_features") or ()
    return Profile(
        system_role="developer" if "developer_role" in features else "system",
        max_tokens_field=(
            "max_completion_tokens" if "max_completion_tokens" in features else "max_tokens"
        ),
        parallel_tool_calls=True if "parallel_tool_calls" in features else None,
    )


def _sees_features(case: dict[str, Any], body: dict[str, Any]) -> bool:
    seen = {
        "developer_role": body["messages"][0]["role"] == "developer",
        "images": any(isinstance(message["content"], list) for message in body["messages"]),
        "assistant_tool_history": any("tool_calls" in message for message in body["messages"]),
    }
    return all(seen.get(name, name in body) for name in case.get("request_features") or ())


async def _play(case: dict[str, Any], *, is_live: bool = False, is_cut: bool = False) -> Outcome:
    """The case as an engine would see it: a retryable failure is asked again."""
    attempts = case.get("attempts") or [{"status": 200, "chunks": case["chunks"]}]
    if is_cut:
        attempts = [_in_single_bytes(attempt) for attempt in attempts]
    count = 0

    async def answer(request: Request) -> Raw:
        nonlocal count
        if count == 0:
            assert _sees_features(case, request.body)
        count += 1
        return Raw.of(attempts[min(count, len(attempts)) - 1])

    outcome = Outcome()
    async with ModelServer(answer) as server:
        model = OpenAIModel(
            "test-model", server.base_url, limits=LIMITS, is_live=is_live, profile=_profile(case)
        )
        started = time.monotonic()
        for _ in range(MAX_ATTEMPTS):
            await _step(model, case, outcome)
            if not _may_go_on(outcome, left=len(attempts) - count):
                break
        outcome.seconds = time.monotonic() - started
        await model.aclose()
    assert not case.get("attempts") or count == len(attempts)
    return outcome


def _in_single_bytes(attempt: dict[str, Any]) -> dict[str, Any]:
    """The same bytes, each in a write of its own, and the same pauses between them."""
    if "chunks" not in attempt:
        return attempt
    items = list(_flat(attempt["chunks"]))
    size = sum(len(item_bytes(item) or b"") for item in items)
    step = 1 if size <= MAX_BYTE_BY_BYTE else 997
    pieces: list[dict[str, Any]] = []
    pending = b""
    for item in [*items, {}]:
        data = item_bytes(item) if item else None
        pending += data or b""
        if data is None:
            cuts = range(0, len(pending), step)
            pieces += [{"_sse_b64": base64.b64encode(pending[at : at + step])} for at in cuts]
            pieces += [item] if item else []
            pending = b""
    return attempt | {"chunks": pieces}


def _flat(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in items:
        if "_repeat" in item:
            yield from [item["item"]] * item["_repeat"]
        else:
            yield item


async def _step(model: OpenAIModel, case: dict[str, Any], outcome: Outcome) -> None:
    endpoint = model.endpoint()
    before = len(model.profile(endpoint).changes)
    outcome.reply = outcome.error = None
    outcome.pieces = []
    try:
        outcome.reply = await model.step(_request(case), outcome.pieces.append)
    except ProviderError as error:
        outcome.error = error
    outcome.retries += model.profile(endpoint).changes[before:]


def _may_go_on(outcome: Outcome, left: int) -> bool:
    error = outcome.error
    if error is None or left < 1:
        return False
    if error.kind == "context_length":
        outcome.retries.append("shrink_context")
    elif error.is_retryable:
        outcome.retries.append("backoff")
        outcome.waited_s += error.retry_after_s or 1.0
    else:
        return False
    return True


def _bare(text: str) -> str:
    return "".join(text.split())


def _expanded(value: Any) -> Any:
    if isinstance(value, dict):
        if "_repeat_text" in value:
            return value["_repeat_text"] * value["times"]
        return {key: _expanded(item) for key, item in value.items()}
    return [_expanded(item) for item in value] if isinstance(value, list) else value


def _failure_word(outcome: Outcome) -> str | None:
    assert outcome.error is not None
    if outcome.error.kind == "context_length":
        return "shrink_context"
    return "backoff" if outcome.error.is_retryable else None


def _got(case: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
    if (error := outcome.error) is not None:
        retry = outcome.retries[0] if outcome.retries else _failure_word(outcome)
        return {"error": error.kind, "text": error.partial_text.strip(), "retry": retry}
    reply = outcome.reply
    assert reply is not None
    usage = reply.usage
    return {
        "label": reply.label,
        "text": reply.text.strip(),
        "thinking": _bare(reply.thinking),
        "tool_calls": [_call(call, case["tools"]) for call in reply.calls],
        "usage": usage and (usage.prompt_tokens, usage.completion_tokens),
        "finish_reason": reply.finish_reason,
        "violation": reply.violation,
        "error": None,
        "retry": outcome.retries[0] if outcome.retries else None,
    }


def _call(call: Any, tools: list[str]) -> dict[str, Any]:
    given = {
        "name": call.name,
        "arguments": call.arguments,
        "arguments_error": call.problem is not None,
    }
    return given if call.name in tools else given | {"unknown": True}


def _wanted(expect: dict[str, Any], got: dict[str, Any]) -> dict[str, Any]:
    expect = _expanded(expect)
    usage = expect["usage"]
    wanted = expect | {
        "text": expect["text"].strip(),
        "thinking": _bare(expect["thinking"]),
        "usage": usage and (usage["prompt_tokens"], usage["completion_tokens"]),
        "tool_calls": [
            {key: value for key, value in call.items() if key != "duplicate_of"}
            for call in expect["tool_calls"]
        ],
    }
    return {key: wanted[key] for key in got}


def _variants(case: dict[str, Any]) -> list[dict[str, Any]]:
    return [case["expect"], *(case["expect"] | other for other in case.get("accept") or ())]


@pytest.mark.parametrize("is_cut", [False, True], ids=["as-written", "byte-by-byte"])
@pytest.mark.parametrize("case", _params())
async def test_a_stream_has_the_outcome_that_the_corpus_says(
    case: dict[str, Any], is_cut: bool
) -> None:
    outcome = await _play(case, is_cut=is_cut)

    got = _got(case, outcome)
    wanted = [_wanted(expect, got) for expect in _variants(case)]
    assert got in wanted, f"\n got {got}\nwant {wanted[0]}\n {outcome.error}"
    expect = case["expect"]
    assert outcome.retries == expect.get("retries", outcome.retries)
    assert outcome.waited_s >= expect.get("min_wait_s", 0)
    assert outcome.seconds * 1000 <= expect.get("max_wait_ms", 60_000)


def _untimed() -> list[Any]:
    """The cases whose outcome takes no waiting: waits are the same in both modes."""
    params = [param for param in _params() if param.values[0]["chunks"]]
    waits = ("_hang", "_delay_ms")
    return [
        param
        for param in params
        if not any(key in item for item in param.values[0]["chunks"] for key in waits)
    ]


@pytest.mark.parametrize("is_live", [False, True], ids=["buffered", "live"])
@pytest.mark.parametrize("case", _untimed())
async def test_live_body_text_is_the_text_of_an_accepted_reply_and_of_no_other(
    case: dict[str, Any], is_live: bool
) -> None:
    outcome = await _play(case, is_live=is_live)

    shown = ""
    for piece in outcome.pieces:
        if piece.channel == "body":
            shown += piece.text
        elif piece.channel == "retracted":
            assert shown == piece.text
            shown = ""
    reply = outcome.reply
    is_answer = reply is not None and not reply.violation and reply.label in case["labels"]["final"]
    assert shown == (reply.text if reply is not None and is_answer else "")
