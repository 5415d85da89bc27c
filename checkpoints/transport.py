"""One call to a server, and the three ways in which it can fail."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

Arg = bytes | str | int
Reply = Any  # None, int, bytes, or a list of replies


class ReplyError(Exception):
    """The server answered with an error.

    The command was not applied, unless the error came up inside a script.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code} {text}".strip())
        self.code, self.text = code, text


class Unreachable(Exception):
    """No connection could be made: the command was not sent."""


class Ambiguous(Exception):
    """The command may have been sent, its answer will not come: nobody knows if it was applied."""


class Transport(Protocol):
    """Something that carries one command at a time from each caller, for many callers at once."""

    address: str
    is_ours: bool  # waits for nothing but answers, and sets no time limit on the caller's task

    def call(self, *args: Arg, patience_s: float | None = None) -> Awaitable[Reply]:
        """Send a command once, never twice, and return its answer as RESP2 gives it.

        A server that is silent for `patience_s` (default: the transport's) has not answered.
        Raises ReplyError, Unreachable or Ambiguous.
        """

    async def chain(self, *commands: tuple[Arg, ...]) -> list[Reply | ReplyError]:
        """Send commands on one connection, one right behind the other, each once.

        An error that the server answers is a value here. Raises Unreachable or Ambiguous.
        """

    def drop(self, reason: str) -> None:
        """Replace the connection at its next use."""

    async def aclose(self) -> None:
        """Close the connection. A later call opens another."""
