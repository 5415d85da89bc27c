"""The cases of tests/cases/stream, cut anew at random: a reply is the same however it arrives."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm_agent.labels.protocol import LabelProtocol
from tests.unit.test_llm_kit import Read, body_of, read

FOLDER = Path(__file__).parent.parent / "cases" / "stream"
TIMED = {"_hang", "_drop"}
MAX_BYTES = 60_000


def _cases() -> list[Any]:
    params = []
    for path in sorted(FOLDER.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            case = json.loads(line)
            whole = [chunk for chunk in case["chunks"] if "_delay_ms" not in chunk]
            is_plain = whole and not any(TIMED & item.keys() for item in whole)
            if is_plain and len(body_of(_flat(whole))) <= MAX_BYTES:
                params.append(pytest.param(case, id=case["id"]))
    return params


def _flat(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    flat = []
    for item in items:
        flat += [item["item"]] * item["_repeat"] if "_repeat" in item else [item]
    return flat


def _protocol(case: dict[str, Any]) -> LabelProtocol:
    labels = case["labels"]
    return LabelProtocol(
        allowed=tuple(labels["allowed"]),
        terminal=frozenset(labels["terminal"]),
        intermediate=frozenset(labels["intermediate"]),
        final=frozenset(labels["final"]),
        tool_label=labels["tool"] if labels["tool"] in labels["allowed"] else None,
    )


def _read(case: dict[str, Any], pieces: list[bytes], **options: Any) -> Read:
    given = {"protocol": _protocol(case), "tools": case["tools"]} | options
    return read(pieces, **given)


@pytest.mark.parametrize("case", _cases())
def test_a_reply_is_the_same_however_its_bytes_are_cut(case: dict[str, Any]) -> None:
    body = body_of(_flat(case["chunks"]))
    whole = _read(case, [body])

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cuts=st.lists(st.integers(0, len(body)), max_size=30), is_live=st.booleans())
    def holds(cuts: list[int], is_live: bool) -> None:
        edges = [0, *sorted(cuts), len(body)]
        pieces = [body[start:end] for start, end in pairwise(edges)]

        cut = _read(case, pieces, is_live=is_live)

        assert cut.outcome == whole.outcome
        reply = cut.reply
        is_answer = reply and not reply.violation and reply.label in case["labels"]["final"]
        assert cut.shown("body") == (reply.text if reply and is_answer else "")
        assert cut.shown("thinking") == whole.shown("thinking")

    holds()


@pytest.mark.parametrize("case", _cases())
def test_without_a_protocol_the_same_calls_usage_and_failures_are_read(
    case: dict[str, Any],
) -> None:
    body = body_of(_flat(case["chunks"]))
    labelled, native = _read(case, [body]), _read(case, [body], protocol=None)

    if labelled.error is not None:
        assert native.error is not None
        assert native.error.kind == labelled.error.kind
        return
    assert native.reply is not None
    assert labelled.reply is not None
    assert native.reply.label is None
    assert (native.reply.usage, native.reply.finish_reason) == (
        labelled.reply.usage,
        labelled.reply.finish_reason,
    )
    if not _has_text_calls(case):
        assert native.reply.calls == labelled.reply.calls
    if native.reply.violation is None and not native.reply.calls:
        assert native.shown("body") == native.reply.text


def _has_text_calls(case: dict[str, Any]) -> bool:
    return bool(case["kind"].startswith("text-tool"))
