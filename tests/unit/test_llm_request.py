"""How a step is put to a Chat Completions endpoint."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec

from fsm_agent.labels.protocol import DEFAULT
from fsm_agent.llm.model import StepRequest, ToolSpec
from fsm_agent.llm.profiles import Profile, adapted, profile_for
from fsm_agent.llm.request import CONTINUE, RequestBuilder
from fsm_agent.run.content import (
    AssistantMessage,
    Call,
    File,
    FilesMessage,
    Message,
    NoteMessage,
    Part,
    ToolMessage,
    UserMessage,
)

TOOLS = (ToolSpec("look", "Look it up.", {"type": "object", "properties": {}}),)
HISTORY: tuple[Message, ...] = (
    UserMessage("What is it?"),
    AssistantMessage("TOOL", "I look.", (Call("c1", "look", '{"q":1}'),), "hm"),
    ToolMessage("c1", "look", "42"),
)


def body(*messages: Message, profile: Profile | None = None, **fields: Any) -> dict[str, Any]:
    request = StepRequest(instructions="Be brief.", messages=messages, **fields)
    decoded: dict[str, Any] = json.loads(RequestBuilder().body(request, "m", profile or Profile()))
    return decoded


def test_a_request_is_streamed_and_asks_for_usage() -> None:
    sent = body(UserMessage("hi"))

    assert sent["model"] == "m"
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True}
    assert "tools" not in sent
    assert "temperature" not in sent


def test_the_system_prompt_is_the_instructions_and_the_protocol() -> None:
    sent = body(UserMessage("hi"), protocol=DEFAULT)

    assert sent["messages"][0]["role"] == "system"
    assert sent["messages"][0]["content"] == "Be brief.\n\n" + DEFAULT.describe()


def test_the_model_sees_its_own_format_and_results_by_id() -> None:
    sent = body(*HISTORY, tools=TOOLS)

    assert sent["messages"][2:] == [
        {
            "role": "assistant",
            "content": "``TOOL``\nI look.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"q":1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    assert sent["tools"][0]["function"]["name"] == "look"


def test_a_note_speaks_as_the_user() -> None:
    assert body(NoteMessage("Finish now."))["messages"][-1] == {
        "role": "user",
        "content": "Finish now.",
    }


def test_the_last_message_is_never_the_assistants() -> None:
    for messages in ((UserMessage("hi"), AssistantMessage("THINK", "Hm.")), ()):
        assert body(*messages)["messages"][-1] == {"role": "user", "content": CONTINUE}


def test_files_are_sent_in_words_whatever_is_known_of_them() -> None:
    part = Part(File("a.pdf", "d1", 9), "pdf", "application/pdf", "the text", facts={"pages": 2})
    other = msgspec.structs.replace(part, facts={"pages": 3})

    sent = body(FilesMessage("a.pdf: the text", (part, other)))

    assert sent["messages"][-1] == {"role": "user", "content": "a.pdf: the text"}
    assert part != other


def test_without_tool_support_the_history_is_plain_text() -> None:
    sent = body(*HISTORY, tools=TOOLS, profile=Profile(has_tools=False))

    assert "tools" not in sent
    assert {message["role"] for message in sent["messages"]} == {"system", "user", "assistant"}
    assert "Call of look" in sent["messages"][2]["content"]
    assert sent["messages"][3]["content"] == "Result of look:\n42"


def test_old_arguments_that_are_no_json_are_not_sent_back() -> None:
    call = Call("c1", "look", '{"q": "cut', problem="cut off")

    sent = body(AssistantMessage("TOOL", "", (call,)), ToolMessage("c1", "look", "bad"))

    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_reasoning_goes_back_only_where_it_is_wanted() -> None:
    assert "reasoning_content" not in body(*HISTORY)["messages"][2]
    echoed = body(*HISTORY, profile=Profile(echoes_reasoning=True))
    assert echoed["messages"][2]["reasoning_content"] == "hm"


def test_lone_surrogates_do_not_stop_a_request() -> None:
    sent = body(UserMessage("a\ud83db"), tools=(ToolSpec("x", "\udc00", {"type": "object"}),))

    assert sent["messages"][1]["content"] == "a\ufffdb"


def test_each_change_is_made_once() -> None:
    changed = adapted(Profile(), "swap_max_tokens")

    assert changed is not None
    assert changed.max_tokens_field == "max_completion_tokens"
    assert adapted(changed, "swap_max_tokens") is None
    assert adapted(Profile(), "without_parallel_tool_calls") is None


def test_what_is_known_of_a_host_is_used() -> None:
    openai = profile_for("https://api.openai.com/v1")

    assert openai.max_tokens_field == "max_completion_tokens"
    assert profile_for("http://127.0.0.1:8080/v1") == Profile()


def test_a_turn_does_not_encode_the_history_again() -> None:
    builder = RequestBuilder()
    text = "word " * 400
    history = tuple(UserMessage(f"{number} {text}") for number in range(1000))
    request = StepRequest(instructions="", messages=history)

    def seconds() -> float:
        started = time.process_time()
        builder.body(request, "m", Profile())
        return time.process_time() - started

    first = seconds()

    assert min(seconds() for _ in range(3)) < first / 2
