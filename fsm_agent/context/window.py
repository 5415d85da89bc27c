"""Which messages of a run the model is shown: a view, never an edit of history."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.run.content import AssistantMessage, Message, NoteMessage, ToolMessage, UserMessage
from fsm_agent.run.record import message_size

from .tokens import tokens_of


def fit(messages: Sequence[Message], budget_tokens: int) -> tuple[Message, ...]:
    """The task and the newest messages that fit in `budget_tokens`, in order.

    The first message (the task) always stays, and so does the newest group, however long: a
    window that is still too long is the provider's to refuse. A call is never parted from its
    results. Where something was left out, a note says how many messages. The work is
    proportional to the window, not to the history.
    """
    if not messages:
        return ()
    left = budget_tokens - tokens_of(message_size(messages[0]))
    start = len(messages)
    while start > 1:
        group = _group_start(messages, start)
        size = sum(tokens_of(message_size(m)) for m in messages[group:start])
        if size > left and start < len(messages):
            break
        left -= size
        start = group
    if start <= 1:
        return tuple(messages)
    note = NoteMessage(f"[{start - 1} earlier messages are left out here.]")
    return (messages[0], note, *messages[start:])


def _group_start(messages: Sequence[Message], end: int) -> int:
    """Where the group that ends before `end` begins: results go with the call they answer."""
    start = end - 1
    while start > 1 and isinstance(messages[start], ToolMessage):
        start -= 1
    return max(1, start)


def is_legal(messages: Sequence[Message]) -> bool:
    """Whether every call has its result right after it, and every result its call."""
    due: list[str] = []
    for message in messages:
        match message:
            case ToolMessage():
                if not due or due.pop(0) != message.call_id:
                    return False
            case AssistantMessage():
                if due:
                    return False
                due = [call.call_id for call in message.calls]
            case UserMessage() | NoteMessage():
                if due:
                    return False
    return not due
