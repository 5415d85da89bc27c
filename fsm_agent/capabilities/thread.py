"""What a run takes over from the run before it: the words between person and agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from fsm_agent.context.tokens import CHARS_PER_TOKEN, tokens_of
from fsm_agent.run.content import (
    AssistantMessage,
    FilesMessage,
    Message,
    NoteMessage,
    UserMessage,
)
from fsm_agent.run.delta import Carried
from fsm_agent.run.record import Run, message_size
from fsm_agent.tools.results import shortened

from .agent import Agent

SHARE = 0.5  # of the room for messages, at the most; the rest is for the new run
MAX_TOKENS = 50_000  # whatever the window: it goes into one entry of the journal


def carried(before: Run, agent: Agent) -> Carried:
    """The conversation that ends with the run `before`, as far as there is room for it.

    It holds what people said, what the agent said to them, and how the run ended; not its thinking,
    and not its tools' results, which may be out of date by now. The newest words are kept.
    """
    room = max(1, agent.context_tokens - agent.overhead_tokens)
    room_tokens = min(int(room * SHARE), MAX_TOKENS)
    most_chars = int(room_tokens * CHARS_PER_TOKEN / 4)
    words = [*(before.carried.messages if before.carried else ())]
    words += [_cut(message, most_chars) for message in _words(before, agent)]
    kept = _newest(words, room_tokens)
    earlier = before.carried.left_out if before.carried else 0
    return Carried(before.run_id, tuple(kept), earlier + len(words) - len(kept))


def _words(run: Run, agent: Agent) -> Iterator[Message]:
    for message in run.messages:
        if isinstance(message, FilesMessage) and message.is_from_tools:
            continue  # like their results
        if isinstance(message, UserMessage):
            yield UserMessage(message.text)  # pictures stay with the run that they were given to
        elif isinstance(message, AssistantMessage) and message.label in agent.capability.spoken:
            yield AssistantMessage(message.label, message.text)
    if run.answer:
        yield AssistantMessage(_answer_label(agent), run.answer.text)
    elif run.failure:
        yield NoteMessage(f"[This ended without an answer: {run.failure.reason}.]")


def _cut(message: Message, most_chars: int) -> Message:
    """One long message must not take the place of all others."""
    if len(message.text) <= most_chars:
        return message
    return replace(message, text=shortened(message.text, most_chars))


def _answer_label(agent: Agent) -> str | None:
    protocol = agent.protocol
    if protocol is None:
        return None
    return next(label for label in protocol.allowed if label in protocol.terminal)


def _newest(words: Sequence[Message], room_tokens: int) -> list[Message]:
    """The last of the messages that fit, from one of the person on."""
    start, left = len(words), room_tokens
    while start and (left := left - tokens_of(message_size(words[start - 1]))) >= 0:
        start -= 1
    kept = list(words[start:])
    while kept and not isinstance(kept[0], UserMessage):
        kept.pop(0)
    return kept
