"""What a model is asked to sum up, and whether it is time to."""

from __future__ import annotations

from fsm_agent.run.content import AssistantMessage, FilesMessage, Message, NoteMessage, ToolMessage
from fsm_agent.run.delta import Cut
from fsm_agent.run.record import Run

from .tokens import CHARS_PER_TOKEN, shortened

MOST_RESULT_CHARS = 1_500  # of one result, in what is summed up


def is_due(run: Run, cut: Cut) -> bool:
    """Whether the cut leaves out messages that no summary speaks of yet."""
    return cut.start > (run.summary.covers if run.summary else 1)


def transcript(run: Run, cut: Cut, most_tokens: int) -> str:
    """The summary so far and what is newly left out, as one text of at most so many tokens."""
    begin = run.summary.covers if run.summary else 1
    told = [_told(run.messages[n]) for n in range(begin, cut.start) if n not in cut.pinned]
    parts = [f"The task:\n{shortened(run.task, 2_000)}"]
    if run.summary and run.summary.text:
        parts.append(f"The notes so far:\n{run.summary.text}")
    parts.append("What happened since, oldest first:\n" + "\n".join(told))
    return shortened("\n\n".join(parts), max(LEAST, int(most_tokens * CHARS_PER_TOKEN)))


LEAST = 1_000  # characters that are always summed up


def _told(message: Message) -> str:
    match message:
        case AssistantMessage():
            calls = "".join(
                f"\n  calls {call.name} {shortened(call.arguments, 400)}" for call in message.calls
            )
            return f"- agent: {shortened(message.text, 2_000)}{calls}"
        case ToolMessage():
            text = shortened(message.text, MOST_RESULT_CHARS)
            return f"- result of {message.name} ({message.status}): {text}"
        case NoteMessage():
            return f"- runtime: {shortened(message.text, 400)}"
        case FilesMessage() if message.is_from_tools:
            return f"- files of tools: {shortened(message.text, MOST_RESULT_CHARS)}"
        case _:
            return f"- user: {shortened(message.text, 2_000)}"
