"""The label grammar, case by case: tests/cases/labels.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.labels.grammar import is_invisible, read_label

LINES = (Path(__file__).parent.parent / "cases/labels.jsonl").read_text("utf-8").splitlines()
CASES: list[dict[str, Any]] = [json.loads(line) for line in LINES]


def visible(text: str) -> str:
    start, end = 0, len(text)
    while start < end and is_invisible(text[start]):
        start += 1
    while start < end and is_invisible(text[end - 1]):
        end -= 1
    return text[start:end]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_a_text_begins_with_the_label_that_the_corpus_says(case: dict[str, Any]) -> None:
    wanted = [case["expect"], *(case["expect"] | other for other in case.get("accept", ()))]

    reading = read_label(case["text"], tuple(case["allowed"]), ended=case["final"])

    got = {"state": reading.state, "label": reading.label, "rest": visible(reading.rest)}
    if reading.state == "need_more":
        got["rest"] = ""
    assert got in [other | {"rest": visible(other["rest"])} for other in wanted]
