"""Reads the bytes of a stream without a server: for tests of what a reply amounts to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from fsm_agent.errors import ProviderError
from fsm_agent.labels.protocol import LabelProtocol
from fsm_agent.llm.limits import Limits
from fsm_agent.llm.model import Piece, Reply, StepRequest, ToolSpec
from fsm_agent.llm.patience import Patience
from fsm_agent.llm.reading import Reading
from fsm_agent.llm.stream import Stream
from fsm_agent.run.content import UserMessage
from fsm_agent.testing.script import item_bytes

PROTOCOL = LabelProtocol(
    allowed=("THINK", "TOOL", "PAUSE", "FINISH"),
    terminal=frozenset({"FINISH"}),
    intermediate=frozenset({"THINK", "PAUSE"}),
    final=frozenset({"FINISH", "PAUSE"}),
    tool_label="TOOL",
)
DONE = b"data: [DONE]\n\n"


class _EndlessPatience:
    """No time passes here."""

    limits = Limits()

    def allow(self, seconds: float, waiting: str) -> None:
        pass


class Read:
    """What came of a stream: a reply or an error, and what was shown on the way."""

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.error: ProviderError | None = None
        self.pieces: list[Piece] = []

    @property
    def outcome(self) -> Any:
        if self.error is not None:
            return self.error.kind, self.error.is_retryable, self.error.partial_text
        assert self.reply is not None
        calls = [(call.name, call.arguments, call.problem) for call in self.reply.calls]
        return (
            self.reply.label,
            self.reply.text,
            self.reply.thinking,
            calls,
            self.reply.violation,
            self.reply.usage,
            self.reply.finish_reason,
        )

    def shown(self, channel: str) -> str:
        """The live text of a channel that was not taken back."""
        text = ""
        for piece in self.pieces:
            if piece.channel == channel:
                text += piece.text
            elif piece.channel == "retracted" and channel == "body":
                assert text == piece.text
                text = ""
        return text


def read(
    reads: Iterable[bytes],
    *,
    tools: Iterable[str] = ("look", "send"),
    protocol: LabelProtocol | None = PROTOCOL,
    is_live: bool = False,
    max_chars: int = 4 << 20,
) -> Read:
    """Read a body that comes in these pieces, to its peaceful end."""
    found = Read()
    request = StepRequest(
        instructions="",
        messages=(UserMessage("go"),),
        tools=tuple(ToolSpec(name, name, {}) for name in tools),
        protocol=protocol,
    )
    reading = Reading(request, found.pieces.append, is_live=is_live, max_chars=max_chars)
    stream = Stream(reading, cast(Patience, _EndlessPatience()))
    try:
        for data in reads:
            stream._take(data)
        stream.close()
        stream.check()
        found.reply = reading.finish()
    except ProviderError as error:
        found.error = error
    return found


def body_of(items: Iterable[dict[str, Any]]) -> bytes:
    """The bytes of a case's chunks, if none of them is a matter of time."""
    return b"".join(item_bytes(item) or b"" for item in items)


def event(value: Any) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def chunk(finish: Any = None, **delta: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def said(*parts: str, finish: str = "stop", **options: Any) -> Read:
    """A reply whose content comes in these chunks."""
    return read([*(chunk(content=part) for part in parts), chunk(finish), DONE], **options)


def called(*deltas: Any, finish: str = "tool_calls", **options: Any) -> Read:
    """A reply under the tool label whose tool_calls come in these chunks."""
    body = [chunk(content="``TOOL``\n"), *(chunk(tool_calls=[delta]) for delta in deltas)]
    return read([*body, chunk(finish), DONE], **options)


def part_of_call(name: str | None = None, arguments: Any = None, **fields: Any) -> dict[str, Any]:
    """One delta of a tool call; what is None is left out."""
    given = {"name": name, "arguments": arguments}
    return {**fields, "function": {key: value for key, value in given.items() if value is not None}}
