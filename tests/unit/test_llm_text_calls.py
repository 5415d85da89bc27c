"""Tool calls that a server without a parser left in the text."""

from __future__ import annotations

import pytest

from fsm_agent.llm.text_calls import calls_in_text

OFFERED = ("look", "send")


@pytest.mark.parametrize(
    "markup",
    [
        '<tool_call>{"name": "look", "arguments": {"q": "x"}}</tool_call>',
        '<tool_call>{"name": "look", "arguments": "{\\"q\\": \\"x\\"}"}</tool_call>',
        "<tool_call>\n<function=look>\n<parameter=q>\nx\n</parameter>\n</function>\n</tool_call>",
        '<｜DSML｜tool_calls><｜DSML｜invoke name="look"><｜DSML｜parameter name="q">x'
        "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
        '<|tool_call_argument_begin|>{"q": "x"}<|tool_call_end|><|tool_calls_section_end|>',
        '[TOOL_CALLS]look[ARGS]{"q": "x"}',
        '[TOOL_CALLS][{"name": "look", "arguments": {"q": "x"}}]',
        'commentary to=functions.look json{"q": "x"}',
        '```json\n{"name": "look", "parameters": {"q": "x"}}\n```',
        '{"name": "look", "parameters": {"q": "x"}}',
    ],
)
def test_whole_markup_for_an_offered_tool_becomes_a_call(markup: str) -> None:
    text, calls = calls_in_text(markup, OFFERED)

    assert text == ""
    assert [(call.name, call.arguments) for call in calls] == [("look", {"q": "x"})]


@pytest.mark.parametrize(
    "text",
    [
        "I will look.",
        '<tool_call>{"name": "look", "arguments": {"q": "cut',
        '<tool_call>{"name": "drop_db", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
        '<tool_call>{"name": "drop_db", "arguments": {}}</tool_call>',
        "<tool_call>look at it</tool_call>",
        "[TOOL_CALLS][1, 2]",
        "[TOOL_CALLS][nonsense]",
        '{"name": 5}',
        "{}",
    ],
)
def test_all_else_stays_text(text: str) -> None:
    assert calls_in_text(text, OFFERED) == (text, ())


def test_the_words_before_the_calls_stay() -> None:
    text, calls = calls_in_text(
        'I look.\n<tool_call>{"name":"look","arguments":{}}</tool_call>', OFFERED
    )

    assert (text, len(calls)) == ("I look.", 1)
