"""What the chunks of one reply amount to, and what of it is shown while it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fsm_agent.labels.parser import Parser
from fsm_agent.labels.parts import Part
from fsm_agent.llm.assemble import CallAssembler
from fsm_agent.llm.model import Piece, Reply, StepRequest
from fsm_agent.llm.outcome import CUT, Draft, judge
from fsm_agent.llm.signatures import Details, replay_of
from fsm_agent.llm.snapshots import Snapshots
from fsm_agent.llm.text_calls import calls_in_text, has_call_markup
from fsm_agent.llm.wire import (
    Choice,
    Chunk,
    Delta,
    cached_of,
    content_parts,
    reasoning_of,
    usage_of,
)
from fsm_agent.run.content import Usage, clean_text


class ReplyTooLong(Exception):
    """More text than a reply may have."""


class Reading:
    """Takes the chunks of a reply in order, and shows its live text.

    Thinking, the text of labels that are not final, and a text without a label are shown as they
    come. The body of a final label is shown once, by `finish`; or, with `is_live`, as it comes,
    and taken back with a `retracted` piece if the reply does not hold.
    Without a protocol the text is the body.
    """

    def __init__(
        self,
        request: StepRequest,
        show: Callable[[Piece], None],
        *,
        is_live: bool,
        max_chars: int,
    ) -> None:
        protocol = request.protocol
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.cached_tokens = 0  # of its prompt
        self.is_answering = False
        """Whether text for the user is coming, under a final label."""
        self._protocol, self._show, self._is_live = protocol, show, is_live
        self._offered = tuple(tool.name for tool in request.tools)
        self._left = max_chars
        self._parser = Parser(protocol.allowed if protocol else ())
        self._calls = CallAssembler(self._offered)
        self._content, self._reasoning = Snapshots(8), Snapshots(4)
        self._said: list[str] = []  # content that `settle` has not seen yet
        self._carry = ""  # a high surrogate whose low one comes in the next chunk
        self._thought_carry = ""
        self._details = Details()
        self._texts: list[str] = []
        self._thinking: list[str] = []
        self._shown: list[str] = []  # body text that is shown live
        self._refusal: list[str] = []
        self._slip = ""  # what stood before the label, and was shown as thinking
        self._has_deltas = self._is_last = False

    @property
    def text(self) -> str:
        """The visible text so far, without the label."""
        return "".join(self._texts)

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    @property
    def has_begun(self) -> bool:
        """Whether anything but reasoning has come."""
        return bool(self._texts or self._calls or self._parser.is_locked or self._refusal)

    def are_calls_whole(self) -> bool:
        """Whether there are calls, and none of them lacks anything."""
        calls = self._calls.finish(was_cut=False)
        return bool(calls) and not any(call.problem for call in calls)

    def take(self, chunk: Chunk) -> bool:
        """Take one chunk, and say whether it had anything of the reply in it.

        Its content is shown by the next `settle`. Raises ReplyTooLong.
        """
        before = self._left
        if chunk.usage or chunk.x_groq:
            self._count(chunk.usage or (chunk.x_groq or {}).get("usage"))
        for choice in chunk.choices or ():
            if not choice.index:
                self._choice(choice)
        if self._left < 0:
            raise ReplyTooLong
        return self._left < before

    def _choice(self, choice: Choice) -> None:
        self._is_last = bool(choice.finish_reason)
        if choice.usage:
            self._count(choice.usage)
        if choice.delta is not None:
            self._has_deltas = True
            self._delta(choice.delta)
        if choice.message is not None:
            self._message(choice.message)
        elif choice.text and choice.delta is None:
            self._say(self._content.added(choice.text))
        if choice.finish_reason and self.finish_reason is None:
            self.finish_reason = choice.finish_reason.lower()

    def _count(self, given: Any) -> None:
        """Take a usage. A frame of zeros takes nothing back."""
        usage = usage_of(given if isinstance(given, dict) else None)
        if usage is not None and (usage.total_tokens or self.usage is None):
            self.usage = usage
            self.cached_tokens = cached_of(given)

    def _message(self, message: Delta) -> None:
        """A whole message beside or after deltas: only what they did not bring is news."""
        if not self._has_deltas:
            self._delta(message)
            return
        if (self._texts or self._said or self._parser.is_locked) and message.content:
            message.content = None
        if self._thinking:
            message.reasoning_content = message.reasoning = message.thinking = None
            message.reasoning_details = message.reasoning_text = message.thought = None
        if self._calls:
            message.tool_calls = message.function_call = None
        self._delta(message)

    def _delta(self, delta: Delta) -> None:
        reasoning = reasoning_of(delta)
        if reasoning:
            self._think(self._whole(self._reasoning.added(reasoning)))
        if delta.reasoning_details:
            self._details.add(delta.reasoning_details)
        content = delta.content
        if isinstance(content, str):
            if content:
                self._say(self._content.added(content, is_last=self._is_last))
        elif content:
            for is_thinking, text in content_parts(delta):
                if is_thinking:
                    self._think(clean_text(text))
                else:
                    self._say(self._content.added(text, is_last=self._is_last))
        if delta.refusal:
            self._left -= len(delta.refusal)
            self._refusal.append(delta.refusal)
        if delta.tool_calls or delta.function_call:
            self._call(delta)

    def _call(self, delta: Delta) -> None:
        before = self._calls.size_chars
        if delta.tool_calls:
            self._calls.add(delta.tool_calls)
        elif delta.function_call:
            self._calls.add_legacy(delta.function_call)
        self._left -= max(1, self._calls.size_chars - before)

    def _think(self, text: str) -> None:
        if text:
            self.settle()
            self._left -= len(text)
            self._thinking.append(text)
            self._show(Piece("thinking", text))

    def _whole(self, text: str) -> str:
        """Reasoning with the half of a surrogate pair that the piece before ended with."""
        text, self._thought_carry = self._thought_carry + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._thought_carry = text[:-1], text[-1]
        return clean_text(text)

    def _say(self, text: str) -> None:
        self._left -= len(text)
        self._said.append(text)

    def settle(self) -> None:
        """Parse and show the content so far. Chunks that came together are parsed together."""
        if not self._said:
            return
        text = self._said[0] if len(self._said) == 1 else "".join(self._said)
        self._said = []
        if self._carry:
            text, self._carry = self._carry + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._carry = text[:-1], text[-1]
        self._parts(self._parser.feed(clean_text(text)))

    def _parts(self, parts: list[Part]) -> None:
        for kind, text in parts:
            match kind:
                case "body" | "draft":
                    self._body(kind, text)
                case "label":
                    self.is_answering = self._protocol is not None and text in self._protocol.final
                case "thinking":
                    self._thinking.append(text)
                    self._show(Piece("thinking", text))
                case "demoted":
                    self._demote()
                case "slipped":
                    self._slip, self._texts = self.text, []

    def _body(self, kind: str, text: str) -> None:
        self._texts.append(text)
        if self._protocol is not None and not (kind == "body" and self.is_answering):
            self._show(Piece("thinking", text))
        elif self._is_live:
            self._shown.append(text)
            self._show(Piece("body", text))

    def _demote(self) -> None:
        """All text so far was thinking whose opening tag never came."""
        self._retract()
        if self._protocol is None:
            self._show(Piece("thinking", self.text))
        self._thinking += self._texts
        self._texts = []

    def _retract(self) -> None:
        if self._shown:
            self._show(Piece("retracted", "".join(self._shown)))
            self._shown = []

    def flush(self) -> None:
        """The stream is over: settle what the parser still held."""
        self.settle()
        if self._carry:
            rest, self._carry = clean_text(self._carry), ""
            self._parts(self._parser.feed(rest))
        self._parts(self._parser.close())

    def abandon(self) -> str:
        """The reply failed. Take back what was shown, and give what had come."""
        self.flush()
        self._retract()
        return self.text

    def finish(self) -> Reply:
        """The whole reply, judged. A good final body that was not shown yet is shown now."""
        self.flush()
        draft = self._draft()
        verdict = judge(draft, self._protocol)
        is_good = verdict.violation is None
        self._close_body(draft, is_good=is_good)
        return Reply(
            label=draft.label,
            text=draft.text,
            thinking=draft.thinking,
            calls=draft.calls,
            usage=self.usage,
            cached_tokens=self.cached_tokens,
            finish_reason=draft.finish_reason,
            violation=verdict.violation,
            detail=verdict.detail or self._slip_detail(draft),
            replay=replay_of(self._details, draft.calls),
        )

    def _draft(self) -> Draft:
        label, text = self._parser.label, self.text
        if self._slip and not text.strip() and not self._calls:
            # A label with nothing after it was not late: it was put at the wrong end.
            label, text = None, f"{self._slip}``{label}``"
        refusal = clean_text("".join(self._refusal))
        calls = self._calls.finish(was_cut=self.finish_reason in CUT)
        tool_label = self._protocol.tool_label if self._protocol else None
        if label is not None and label == tool_label and not calls:
            text, calls = calls_in_text(text, self._offered)
        may_be_bare = self._protocol is not None and self._protocol.accept_bare_calls
        if label is None and calls and may_be_bare and not text.strip():
            label = tool_label
        is_answer = self._protocol is not None and label in self._protocol.final
        return Draft(
            has_markup=is_answer and not calls and has_call_markup(text, self._offered),
            label=label,
            text=refusal if refusal and not text.strip() else text,
            thinking="".join(self._thinking),
            refusal=refusal,
            calls=calls,
            finish_reason=self.finish_reason,
            second_label=self._parser.second_label,
            second_line=self._parser.second_line,
        )

    def _slip_detail(self, draft: Draft) -> str:
        if not self._slip or draft.label is None:
            return ""
        return f"The label ``{draft.label}`` came late, after: {self._slip.strip()}"

    def _close_body(self, draft: Draft, *, is_good: bool) -> None:
        is_answer = self.is_answering or (self._protocol is None and not draft.calls)
        if not is_good or not is_answer:
            self._retract()
        elif not self._is_live and draft.text:
            self._show(Piece("body", draft.text))
        if self._protocol is None and draft.calls and draft.text:
            self._show(Piece("thinking", draft.text))
