"""What somebody outside is told of a run: who is needed for what, until when, and how it ended.

No arguments, no reasons, no text of a model or a tool: a notice goes to chats and mailboxes, where
secrets must not be. Who wants more follows the link.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fsm_agent.errors import CorruptRecord

from .delta import AskKind

NewsType = Literal[
    "request.opened", "request.reminder", "request.escalated", "run.done", "run.error"
]


class Needed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that waits for a person."""

    ask_id: str
    kind: AskKind
    tool: str
    expires_ms: int = 0  # 0: never
    quorum: int = 1
    to: str = ""  # whom the tool's author wants to be asked


class News(msgspec.Struct, frozen=True, omit_defaults=True):
    """One notice. Times are milliseconds by the store's clock."""

    type: NewsType
    run_id: str
    agent: str
    at_ms: int  # when it is, or was, to be told
    requests: tuple[Needed, ...] = ()
    to: str = ""  # of an escalation: whom it has reached
    passed_percent: int = 0  # of a reminder: how much of the time is over
    is_completed: bool = False  # of run.done: False for an answer that a limit cut short
    reason: str = ""  # of run.error, and of an answer cut short: a FailureReason
    parent: str = ""  # the run that this one works for


_decoder = msgspec.msgpack.Decoder(News)


def encode(news: News) -> bytes:
    """The bytes of a notice."""
    return msgspec.msgpack.encode(news)


def decode(body: bytes) -> News:
    """The notice of `body`. Raises CorruptRecord."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise CorruptRecord(f"a notice that cannot be read: {error}") from error
