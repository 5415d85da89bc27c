"""The window: a legal view of a legal history, within its budget, at the cost of what is new."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.context.tokens import tokens_of
from fsm_agent.context.window import Window
from fsm_agent.run.content import (
    AssistantMessage,
    Call,
    Message,
    NoteMessage,
    ToolMessage,
    UserMessage,
)
from fsm_agent.run.record import message_size


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = [UserMessage("task " + "t" * draw(st.integers(0, 200)))]
    for number in range(draw(st.integers(0, 25))):
        text = "x" * draw(st.integers(0, 300))
        match draw(st.sampled_from(["user", "note", "think", "calls", "calls"])):
            case "user":
                messages.append(UserMessage(text))
            case "note":
                messages.append(NoteMessage(text))
            case "think":
                messages.append(AssistantMessage("THINK", text))
            case _:
                ids = [f"c{number}-{n}" for n in range(draw(st.integers(1, 4)))]
                calls = tuple(Call(i, "look", "{}") for i in ids)
                messages.append(AssistantMessage("TOOL", "", calls))
                messages += [ToolMessage(i, "look", text) for i in ids]
    return messages


def groups(messages: list[Message]) -> list[int]:
    """Where each group begins: a call and its results are one."""
    return [n for n, m in enumerate(messages) if not isinstance(m, ToolMessage)]


def tokens(messages: Any) -> int:
    return sum(tokens_of(message_size(m)) for m in messages)


@given(histories(), st.integers(1, 2000))
def test_the_view_is_the_task_a_note_and_the_newest_whole_groups(
    messages: list[Message], budget: int
) -> None:
    shown = Window(budget).view(messages)

    if shown == tuple(messages):
        return
    assert shown[0] == messages[0]
    kept = len(shown) - 2
    assert list(shown[2:]) == messages[-kept:]
    assert len(messages) - kept in groups(messages)
    assert shown[1] == NoteMessage(
        f"[{len(messages) - kept - 1} earlier messages are left out here.]"
    )


@given(histories(), st.integers(1, 2000))
def test_the_view_is_within_the_budget_or_only_the_task_and_the_newest_group(
    messages: list[Message], budget: int
) -> None:
    window = Window(budget)

    shown = window.view(messages)

    if tokens(messages) <= budget:
        assert shown == tuple(messages)
    elif window.tokens > budget:
        assert list(shown[2:]) == messages[groups(messages)[-1] :] or list(shown) == messages
    assert window.tokens == tokens(
        m for n, m in enumerate(shown) if not (n == 1 and m not in messages)
    )


@given(histories(), st.integers(1, 2000), st.data())
def test_the_view_depends_on_the_history_alone(
    messages: list[Message], budget: int, data: st.DataObject
) -> None:
    stepwise = Window(budget)
    for end in sorted(data.draw(st.lists(st.sampled_from(groups(messages)), max_size=6))):
        stepwise.view(messages[:end])

    assert stepwise.view(messages) == Window(budget).view(messages)


def test_a_turn_costs_work_for_its_own_messages_only() -> None:
    sized: list[int] = []

    class Counting(tuple[Message, ...]):
        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, int):
                sized.append(key)
            return tuple.__getitem__(self, key)

    messages: list[Message] = [UserMessage("task")]
    window = Window(500)
    for number in range(2000):
        messages.append(AssistantMessage("THINK", f"{number} " + "x" * 60))
    window.view(messages)
    sized.clear()
    messages.append(AssistantMessage("THINK", "new"))

    window.view(Counting(messages))

    assert len(sized) < 100


def test_the_window_keeps_its_beginning_for_several_turns_after_a_cut() -> None:
    window, starts = Window(1000), []
    messages: list[Message] = [UserMessage("task")]
    for number in range(200):
        messages.append(AssistantMessage("THINK", f"{number} " + "x" * 60))
        starts.append(window.view(messages)[2:3])

    assert len({str(start) for start in starts}) < len(starts) / 4


def test_a_task_above_the_budget_stays_and_so_does_the_newest_message() -> None:
    task = UserMessage("t" * 100_000)

    assert Window(10).view([task]) == (task,)
    assert Window(10).view([task, UserMessage("u")]) == (task, UserMessage("u"))
