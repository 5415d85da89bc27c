"""A label protocol says what it allows, or is refused when it is built."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent.errors import BadProtocol
from fsm_agent.labels.protocol import DEFAULT, LabelProtocol


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"allowed": ()}, "at least one"),
        ({"allowed": ("A", "B"), "terminal": {"A"}}, "B in no class"),
        ({"allowed": ("A",), "terminal": {"A"}, "intermediate": {"A"}}, "at once"),
        ({"allowed": ("A",), "terminal": {"A"}, "tool_label": "TOOL"}, "names TOOL"),
        ({"allowed": ("A",), "terminal": {"A"}, "tool_label": "A"}, "at once"),
        ({"allowed": ("A", "A"), "terminal": {"A"}}, "the same"),
        ({"allowed": ("A", "a"), "terminal": {"A", "a"}}, "only in case"),
        ({"allowed": ("",), "terminal": {""}}, "cannot be a label"),
        ({"allowed": ("A B",), "terminal": {"A B"}}, "cannot be a label"),
        ({"allowed": ("``A``",), "terminal": {"``A``"}}, "cannot be a label"),
        ({"allowed": ("A",), "terminal": {"A"}, "final": {"B"}}, "final names B"),
        ({"allowed": ("A",), "terminal": "A"}, "the string 'A'"),
        ({"allowed": ("A" * 41,), "terminal": {"A" * 41}}, "more than 40"),
    ],
)
def test_a_protocol_that_contradicts_itself_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadProtocol, match=said):
        LabelProtocol(**fields)


def test_final_is_orthogonal_to_terminal_and_intermediate() -> None:
    protocol = LabelProtocol(
        allowed=("FINISH", "TOOL", "THINK", "PAUSE", "REPLAN"),
        terminal=frozenset({"FINISH", "REPLAN"}),
        intermediate=frozenset({"THINK", "PAUSE"}),
        final=frozenset({"FINISH", "PAUSE"}),
        tool_label="TOOL",
    )

    assert protocol.terminal & protocol.final == {"FINISH"}
    assert protocol.intermediate & protocol.final == {"PAUSE"}


def test_without_tools_the_tool_label_is_gone_from_vocabulary_and_prompt() -> None:
    reduced = DEFAULT.without_tools()

    assert reduced.allowed == ("THINK", "FINISH")
    assert reduced.tool_label is None
    assert "TOOL" not in reduced.describe()
    assert reduced.without_tools() == reduced


def test_a_step_may_be_reduced_to_the_labels_that_end_the_run() -> None:
    reduced = DEFAULT.only(DEFAULT.terminal)

    assert (reduced.allowed, reduced.intermediate) == (("FINISH",), frozenset())


def test_a_protocol_cannot_be_reduced_to_labels_that_it_does_not_have() -> None:
    with pytest.raises(BadProtocol, match="ANSWER not among"):
        DEFAULT.only({"ANSWER"})


def test_the_prompt_names_every_label_and_what_it_does() -> None:
    text = DEFAULT.describe()

    assert all(f"``{label}``:" in text for label in DEFAULT.allowed)
    assert "shown to the user, and this ends the task" in text
