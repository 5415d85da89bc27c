"""A Transport over a client of redis-py, for a server that our own connection does not reach.

That is fakeredis, in tests.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .transport import Ambiguous, Arg, Reply, ReplyError, Unreachable

_READ_HERE = (
    *(
        "HMGET",
        "HGETALL",
        "HGET",
        "HSET",
        "HSETNX",
        "XADD",
        "XRANGE",
        "XREVRANGE",
        "XREAD",
        "LRANGE",
    ),
    *(
        "ZRANGE",
        "ZREVRANGEBYSCORE",
        "ZRANGEBYSCORE",
        "ZADD",
        "XDEL",
        "PEXPIRE",
        "TIME",
        "INFO",
        "CONFIG GET",
        "CONFIG SET",
        "CONFIG",
    ),
)


class ClientTransport:
    """One command at a time through `client`, which must not retry by itself.

    redis-py's default is to send a command again after a time-out, which would make two of one
    write: build the client with `retry=Retry(NoBackoff(), 0)` and `protocol=2`.
    """

    is_ours = False

    def __init__(self, client: Any, address: str, *, answer_s: float = 3.0) -> None:
        # The client's callbacks would turn raw answers into dicts and tuples that differ by
        # protocol and version; ours are read in one place.
        for command in _READ_HERE:
            client.response_callbacks.pop(command, None)
        self.address = address
        self._client = client
        self._answer_s = answer_s

    async def call(self, *args: Arg, patience_s: float | None = None) -> Reply:
        """Send a command once (see Transport)."""
        import redis.exceptions as errors

        try:
            async with asyncio.timeout(patience_s or self._answer_s):
                return await self._send(args)
        except errors.BusyLoadingError as error:  # by class a ConnectionError, in truth an answer
            raise ReplyError("LOADING", str(error)) from error
        except errors.AuthenticationError as error:
            raise ReplyError("NOAUTH", str(error)) from error
        except errors.ResponseError as error:
            raise _reply_error(error) from error
        except errors.MaxConnectionsError as error:
            raise Unreachable(str(error)) from error
        except errors.RedisClusterException as error:
            if "cannot be connected" in str(error):  # at the first look around, before any command
                raise Unreachable(f"no cluster at {self.address} ({error})") from error
            raise Ambiguous(str(error)) from error
        except errors.ConnectionError as error:
            if "connecting to" in str(error):
                raise Unreachable(str(error)) from error
            raise Ambiguous(str(error)) from error
        except (errors.RedisError, TimeoutError, OSError) as error:
            raise Ambiguous(str(error) or "no answer in time") from error
        except (AttributeError, RuntimeError, TypeError) as error:
            # Seen in a cluster's failover: another task had just torn the connection down.
            raise Ambiguous(f"the client failed: {error!r}") from error

    async def _send(self, args: tuple[Arg, ...]) -> Reply:
        return await self._client.execute_command(*args)

    async def chain(self, *commands: tuple[Arg, ...]) -> list[Reply | ReplyError]:
        """A client with a pool cannot say which connection it uses."""
        raise ReplyError("ERR", "commands cannot be chained over this client")

    def drop(self, reason: str) -> None:
        """The client replaces its connections by itself."""

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()


def _reply_error(error: Exception) -> ReplyError:
    """The server's words: redis-py cuts the code off where it has a class for it."""
    known = {
        "NoScriptError": "NOSCRIPT",
        "ReadOnlyError": "READONLY",
        "OutOfMemoryError": "OOM",
        "NoPermissionError": "NOPERM",
        "MasterDownError": "MASTERDOWN",
        "ClusterDownError": "CLUSTERDOWN",
        "MovedError": "MOVED",
        "AskError": "ASK",
        "TryAgainError": "TRYAGAIN",
    }
    text = str(error)
    if code := known.get(type(error).__name__):
        return ReplyError(code, text)
    code, _, rest = text.partition(" ")
    return ReplyError(code, rest)
