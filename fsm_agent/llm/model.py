"""What the engine asks of a model, and what it gets: the seam between the loop and providers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from fsm_agent.labels.protocol import LabelProtocol
from fsm_agent.run.content import Message, Usage

Violation = Literal[
    "refusal",
    "content_filter",
    "multiple_labels",
    "truncated",
    "empty_completion",
    "missing_label",
    "tool_without_calls",
    "label_with_tools",
    "invalid_arguments",
]
Channel = Literal["thinking", "body", "retracted"]
Use = Literal["step", "transcript"]


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as it is offered to the model. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One labelled step: the whole window, and what the model may say."""

    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    protocol: LabelProtocol | None = None  # None: native, tool calls act and text answers
    model: str | None = None  # None: the client's default
    max_tokens: int | None = None
    temperature: float | None = None


class RequestedCall(msgspec.Struct, frozen=True):
    """A tool call as the reply holds it, in order of first appearance.

    `arguments` is the decoded object, or None with `problem` saying why there is none;
    `raw_arguments` is what the model wrote. `provider_id` is not used as an identity.
    """

    name: str
    arguments: dict[str, Any] | None
    raw_arguments: str
    problem: str | None = None
    provider_id: str = ""
    extra: dict[str, Any] | None = None  # what the provider signed of this call


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply: what cases/README.md calls the outcome of a stream without an error."""

    label: str | None
    text: str
    thinking: str = ""
    calls: tuple[RequestedCall, ...] = ()
    usage: Usage | None = None
    finish_reason: str | None = None
    violation: Violation | None = None
    detail: str = ""  # in words for the model: of the violation, or of a slip that was let pass
    cached_tokens: int = 0  # of the prompt, which the provider had kept
    replay: str = ""  # JSON of what the provider signed, if there are calls: see signatures.py


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Live text of a reply under way. Not durable; a retracted piece takes back what was shown."""

    channel: Channel
    text: str


class Model(Protocol):
    """Answers a step. Implementations: the OpenAI-compatible client, and scripted ones in tests."""

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        """Ask once, without retries, and read the reply to its end.

        `on_piece` gets live text as it comes; for an accepted reply the body pieces put together
        equal `Reply.text`. Raises ProviderError if there was no usable reply, or MissingSetting.
        A cancelled step leaves no open connection.
        """

    async def aclose(self) -> None:
        """Close connections."""


class Named(Protocol):
    """A model that knows which one answers where a request names none: prices go by name."""

    def name_of(self, use: Use) -> str:
        """The name; '' where none is set up."""


def name_of(model: object, use: Use) -> str:
    """What a model calls itself for this use; '' where it does not say."""
    # Not by isinstance, which costs 25 µs for a protocol: this is asked several times a turn.
    name = getattr(model, "name_of", None)
    return str(name(use)) if name else ""


@runtime_checkable
class Transcriber(Protocol):
    """A model that can also put sound into words."""

    @property
    def can_transcribe(self) -> bool:
        """Whether that is set up."""

    async def transcribe(self, data: bytes, media_type: str) -> tuple[str, Usage | None]:
        """What is said in a sound or film, and what it cost where the server says so.

        Raises ProviderError or MissingSetting.
        """
