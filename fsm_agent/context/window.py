"""Which messages of a run the model is shown: a view, never an edit of history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from fsm_agent.run.content import FilesMessage, Message, NoteMessage, ToolMessage, UserMessage
from fsm_agent.run.delta import Cut, Summarised
from fsm_agent.run.record import Run, message_size

from .policies import Context
from .tokens import shortened, tokens_of

LEAST_CHARS = 200  # of a message that is cut


class Window:
    """The view of one run, at the cost of what is new to it.

    What is left out is a fact on record (`run.cut`), so the view depends on the journal alone,
    not on who looks at it or when. Only the sums are kept here.
    """

    def __init__(
        self, context_tokens: int, context: Context | None = None, *, overhead_tokens: int = 0
    ) -> None:
        """`context_tokens` as the provider counts, of which a request's rest takes
        `overhead_tokens` by plain estimate: instructions, tools, protocol."""
        self._context_tokens, self.overhead_tokens = context_tokens, overhead_tokens
        self._context = context or Context()
        self._cut: Cut | None = None  # of which `_sum` is the cost
        self._was_refused = False
        self._old: tuple[Message, ...] | None = None  # what this cut shows in another form
        self._summary: Summarised | None = None  # that stands in it
        self._counted = 0  # messages whose size is in the sum
        self._sum = 0

    def budget(self, run: Run) -> int:
        """Tokens for the messages, by plain estimate: corrected by what providers counted, and
        smaller after a request that was too long."""
        tokens = self._context_tokens / run.token_scale
        tokens = min(tokens, run.most_tokens or tokens) - self.overhead_tokens
        if self._context.summary:
            tokens -= self._context.summary.max_tokens
        return max(1, round(tokens))

    def tokens(self, run: Run) -> int:
        """What the view costs, by plain estimate."""
        self._follow(run)
        self._sum += self._cost(run, run.cut, range(self._counted, len(run.messages)))
        self._counted = len(run.messages)
        return self._sum + (tokens_of(len(run.summary.text)) if run.summary else 0)

    def _follow(self, run: Run) -> None:
        """Begin anew with another cut, or once words of people may be cut as well."""
        cut, was_refused = run.cut, bool(run.most_tokens)
        if cut is not self._cut or was_refused is not self._was_refused:
            self._cut, self._was_refused, self._counted = cut, was_refused, cut.start
            self._old = None
            self._sum = self._cost(run, cut, (0, *cut.pinned))

    def _cost(self, run: Run, cut: Cut, indices: Iterable[int]) -> int:
        return sum(tokens_of(message_size(self._shown(run, cut, n))) for n in indices)

    def plan(self, run: Run) -> Cut:
        """The cut that the next request needs: the one on record while everything fits."""
        budget = self.budget(run)
        if self.tokens(run) <= budget:
            return run.cut
        goal = int(budget * self._context.keep)
        groups = list(_groups(run.messages, run.cut.start))
        fresh = groups[-self._context.fresh :][0][0] if groups else run.cut.start
        cut = replace(run.cut, trim=max(run.cut.trim, fresh), most_chars=0)
        sizes = [self._cost(run, cut, range(*group)) for group in groups]
        pinned = [(*group, self._cost(run, cut, range(*group))) for group in self._pinned(run)]
        pinned = self._affordable(pinned, budget)
        rest, dropped = self._cost(run, cut, (0,)) + sum(sizes), 0
        while dropped < len(groups) - 1:
            if rest + sum(cost for _, _, cost in pinned) <= goal:
                break
            rest -= sizes[dropped]
            if self._is_pinned(run, groups[dropped]):
                pinned = self._affordable([*pinned, (*groups[dropped], sizes[dropped])], budget)
            dropped += 1
        start = groups[dropped][0] if groups else run.cut.start
        kept = tuple(n for begin, end, _ in pinned for n in range(begin, end))
        cut = replace(cut, start=start, pinned=kept)
        is_enough = rest + sum(cost for _, _, cost in pinned) <= budget
        return cut if is_enough else self._fitted(run, cut, budget)

    def may_shrink(self, run: Run, refused: Run) -> bool:
        """Whether the next request of `refused`, which is `run` after its last one was too long,
        would hold less than that one."""
        cut = self.plan(refused)
        indices = (0, *cut.pinned, *range(cut.start, len(run.messages)))
        before = (0, *run.cut.pinned, *range(run.cut.start, len(run.messages)))
        return self._cost(refused, cut, indices) < self._cost(run, run.cut, before)

    def _pinned(self, run: Run) -> list[tuple[int, int]]:
        """The pinned messages as the groups that they are."""
        groups: list[tuple[int, int]] = []
        for index in run.cut.pinned:
            if groups and isinstance(run.messages[index], ToolMessage):
                groups[-1] = (groups[-1][0], index + 1)
            else:
                groups.append((index, index + 1))
        return groups

    def _is_pinned(self, run: Run, group: tuple[int, int]) -> bool:
        first, *results = run.messages[group[0] : group[1]]
        if isinstance(first, UserMessage):
            return not _is_of_tools(first)
        names = {message.name for message in results if isinstance(message, ToolMessage)}
        return bool(names.intersection(self._context.pin_tools))

    def _affordable(
        self, pinned: list[tuple[int, int, int]], budget: int
    ) -> list[tuple[int, int, int]]:
        """The newest of them that fit into their share."""
        left, kept = int(budget * self._context.pin_share), []
        for group in reversed(pinned):
            if group[2] > left:
                break
            left -= group[2]
            kept.append(group)
        return kept[::-1]

    def _fitted(self, run: Run, cut: Cut, budget: int) -> Cut:
        """The cut with a limit for each message, where even the newest group is too long."""
        indices = (0, *cut.pinned, *range(cut.start, len(run.messages)))
        most = max(len(run.messages[n].text) for n in indices)
        cost, fitted = self._cost(run, cut, indices), cut
        while cost > budget and most > LEAST_CHARS:
            most = max(most // 2, LEAST_CHARS)
            shorter = replace(cut, most_chars=most)
            if (less := self._cost(run, shorter, indices)) < cost:
                cost, fitted = less, shorter
        return fitted

    def view(self, run: Run) -> tuple[Message, ...]:
        """What to show of the run's messages, under the cut on record."""
        cut, messages = run.cut, run.messages
        if cut == Cut(1):
            return messages
        self._follow(run)
        old = max(cut.trim, cut.start)
        if self._old is None or self._summary is not run.summary:
            self._old, self._summary = tuple(self._reformed(run, old)), run.summary
        if not cut.most_chars:
            return self._old + messages[old:]
        new = (self._shown(run, cut, n) for n in range(old, len(messages)))
        return (*self._old, *new)

    def _reformed(self, run: Run, end: int) -> Iterator[Message]:
        """The view up to message `end`."""
        cut = run.cut
        for index in (0, *cut.pinned):
            yield self._shown(run, cut, index)
        if left_out := cut.start - 1 - len(cut.pinned):
            yield NoteMessage(_note(run, left_out))
        for index in range(cut.start, end):
            yield self._shown(run, cut, index)

    def _shown(self, run: Run, cut: Cut, index: int) -> Message:
        """A message as the view has it: perhaps in short."""
        message = run.messages[index]
        most = cut.most_chars
        if isinstance(message, ToolMessage) or _is_of_tools(message):
            if index < cut.trim:
                most = min(most or self._context.trimmed_chars, self._context.trimmed_chars)
                message = _without_pictures(message)
        elif isinstance(message, UserMessage) and not run.most_tokens:
            return message
        if not most or len(message.text) <= most:
            return message
        return replace(message, text=shortened(message.text, most))


def _is_of_tools(message: Message) -> bool:
    return isinstance(message, FilesMessage) and message.is_from_tools


def _without_pictures(message: Message) -> Message:
    """Old pictures of tools go, as old results are shortened: each costs as much as a page."""
    if not isinstance(message, FilesMessage) or not message.pictures:
        return message
    return UserMessage(f"[The pictures of these files are not shown any more.]\n{message.text}")


def _groups(messages: Sequence[Message], start: int) -> Iterator[tuple[int, int]]:
    """From `start` on: each message that is no result, with the results that follow it."""
    begin = start
    for index in range(start + 1, len(messages)):
        if not isinstance(messages[index], ToolMessage):
            yield begin, index
            begin = index
    if begin < len(messages):
        yield begin, len(messages)


def _note(run: Run, left_out: int) -> str:
    note = f"[{left_out} earlier messages are left out here.]"
    if run.summary and run.summary.text:
        return f"{note}\nWhat was said and found in them, in short:\n{run.summary.text}"
    return note
