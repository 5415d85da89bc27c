"""Which messages of a run the model is shown: a view, never an edit of history."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.run.content import Message, NoteMessage, ToolMessage
from fsm_agent.run.record import message_size

from .tokens import tokens_of

KEPT_SHARE = 0.75  # of the budget, after a cut: many turns then share one beginning


class Window:
    """The task and the newest messages that fit in a budget, kept up to date turn by turn.

    The first message (the task) always stays, and so does the newest group, however long: a
    window that is still too long is the provider's to refuse. A call is never parted from its
    results. Where messages are left out, a note says how many. When the budget is passed, old
    groups go until three quarters of it are left, so a turn costs work for its own messages
    only, and providers can reuse what they cached of the beginning. The view depends on the
    history alone, not on when it was looked at.
    """

    def __init__(self, budget_tokens: int) -> None:
        self._budget = budget_tokens
        self._sizes: list[int] = []
        self._start = 1  # of the messages shown after the task
        self._tokens = 0  # of the task and all from `_start` on

    def view(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """What to show of `messages`, which only ever grow from call to call."""
        for index in range(len(self._sizes), len(messages)):
            size = tokens_of(message_size(messages[index]))
            self._sizes.append(size)
            self._tokens += size
            if self._tokens > self._budget:
                self._cut(messages)
        if self._start == 1:
            return tuple(messages)
        note = NoteMessage(f"[{self._start - 1} earlier messages are left out here.]")
        return (messages[0], note, *messages[self._start :])

    @property
    def tokens(self) -> int:
        """Roughly what the last view costs."""
        return self._tokens

    def _cut(self, messages: Sequence[Message]) -> None:
        while self._tokens > self._budget * KEPT_SHARE:
            end = self._group_end(messages)
            if end is None:
                return
            self._tokens -= sum(self._sizes[self._start : end])
            self._start = end

    def _group_end(self, messages: Sequence[Message]) -> int | None:
        """Where the oldest group shown ends; None if it is the newest one, which stays."""
        for index in range(self._start + 1, len(self._sizes)):
            if not isinstance(messages[index], ToolMessage):
                return index
        return None
