"""Every exception of this package, by who must act.

AgentError
├── UsageError             the caller: change the call
│   ├── AgentNotFound      an agent path that leads to no agent
│   ├── BadAgent           an agent or tool that was declared in a way that cannot work
│   ├── BadProtocol        a label protocol that contradicts itself
│   ├── UnknownTool        a name that no registered tool has
│   ├── CodeChanged        a run that other code began, or whose calls this code cannot serve
│   ├── NotAllowed         a person who may not do this; another one may
│   ├── IllegalTransition  a trigger that the machine does not allow in this state
│   └── MissingSetting     a setting without which the call cannot work, such as an API key
├── ProviderError          nobody yet: the same request may succeed later, if `is_retryable`
└── CorruptRecord          an operator: stored bytes that are not a record of this schema
    └── NewerRecord        an operator: a newer version wrote them; its workers can read them

The store's errors (lease lost, store down, decision refused …) are those of `checkpoints.errors`.
A tool that fails and a reply that breaks the protocol are observations for the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Literal


class AgentError(Exception):
    """The root of this package's errors."""


class UsageError(AgentError):
    """The call cannot succeed as it was made."""


class AgentNotFound(UsageError):
    """An agent path that leads to no agent."""


class BadAgent(UsageError):
    """An agent or tool that was declared in a way that cannot work."""


class BadProtocol(UsageError):
    """A label protocol that contradicts itself."""


class MissingSetting(UsageError):
    """A setting without which the call cannot work."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' for the nearest known name, or nothing."""
    near = get_close_matches(name, sorted(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


class UnknownTool(UsageError):
    """A name that no registered tool has."""

    def __init__(self, name: str, registered: Iterable[str]) -> None:
        known = sorted(registered)
        super().__init__(
            f"no tool is named {name!r}.{did_you_mean(name, known)}"
            f" Registered: {', '.join(known) or 'none'}."
        )
        self.name = name


class CodeChanged(UsageError):
    """A run that other code began, or whose open calls this code cannot serve."""


class NotAllowed(UsageError):
    """A person who may not do this; another one may."""


class IllegalTransition(UsageError):
    """A trigger that the machine does not allow in this state, or whose guard refuses it."""


class CorruptRecord(AgentError):
    """Stored bytes that are not a record of this schema."""


class NewerRecord(CorruptRecord):
    """Stored bytes that only a newer version of this package can read."""


FailureKind = Literal[
    "stream_error",  # an error event inside the stream
    "malformed_stream",  # bytes that are no stream of chunks
    "connection_dropped",  # the stream ended without a finish reason or [DONE]
    "timeout",  # first byte, idle or whole-reply limit
    "rate_limited",
    "overloaded",
    "server_error",
    "context_length",
    "bad_request",
    "quota",
    "auth",
    "not_found",
    "unreachable",  # no connection could be made
]


class ProviderError(AgentError):
    """A model call that brought no usable reply.

    `retry_after_s` is the provider's own wish, if it gave one. `partial_text` is what had come;
    it is never an answer. `status` is the HTTP status, if there was a response.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        is_retryable: bool,
        retry_after_s: float | None = None,
        status: int | None = None,
        partial_text: str = "",
    ) -> None:
        super().__init__(message)
        self.kind, self.is_retryable, self.retry_after_s = kind, is_retryable, retry_after_s
        self.status, self.partial_text = status, partial_text
