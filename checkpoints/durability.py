"""Waiting until more than the primary's memory has a write: what for, how long, and who waits."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from typing import Literal, NamedTuple

import msgspec

from . import scripts
from .errors import BadStoreUrl, StoreUsageError
from .transport import Arg, Reply, ReplyError, Transport

_LINES = 8  # connections that wait: a WAIT holds up whatever comes behind it
_LEVEL = re.compile(r"(memory|disk):(\d{1,2})")


class Durability(msgspec.Struct, frozen=True, kw_only=True):
    """What is waited for, and before what.

    `memory:N` waits until N replicas have a write (WAIT); `disk:N` until it is synced to the
    primary's append-only file and to those of N replicas (WAITAOF, from Redis 7.2 and in Valkey).
    """

    on_disk: bool = False
    replicas: int = 0
    before: Literal["unsafe", "every"] = "unsafe"  # calls of unsafe tools, or every commit
    wait_s: float = 2.0  # for the copies, before the write counts as unconfirmed

    def __str__(self) -> str:
        level = "disk" if self.on_disk else "memory"
        what = "every commit" if self.before == "every" else "an unsafe tool starts"
        return f"{level}:{self.replicas} before {what}"


def parse(level: str, before: str = "unsafe", wait_s: str = "2") -> Durability | None:
    """The policy of these words; None for 'none'. Raises BadStoreUrl."""
    if level == "none":
        return None
    found = _LEVEL.fullmatch(level)
    if found is None or level == "memory:0":
        raise BadStoreUrl(
            f"durability={level!r} is not known. Use none, memory:N (N replicas have it), or "
            "disk:N (on the primary's disk, and on those of N replicas)."
        )
    if before not in ("unsafe", "every"):
        raise BadStoreUrl(f"durability_for={before!r} is not known. Use unsafe or every.")
    try:
        seconds = float(wait_s)
    except ValueError:
        seconds = -1.0
    if not 0.01 <= seconds <= 60:
        raise BadStoreUrl(f"durability_s={wait_s!r} is not a time. Use 0.01 to 60 seconds.")
    return Durability(
        on_disk=found[1] == "disk",
        replicas=int(found[2]),
        before="every" if before == "every" else "unsafe",
        wait_s=seconds,
    )


class Shortfall(NamedTuple):
    """What was missing when the time was over."""

    words: str


class Confirming:
    """Runs scripts on connections of its own, and waits for the copies on the same connection.

    Which copies have a write is known to the connection that made it, and only of what it wrote
    last. A script that finds its work done already (a lost answer) has written nothing, so a small
    write follows each script: where that one is, everything before it is too.
    """

    def __init__(self, policy: Durability, new_transport: Callable[[], Transport]) -> None:
        self.policy = policy
        self._new_transport = new_transport
        self._lines: list[Transport] = []
        self._turn = count()

    async def check(self) -> None:
        """Whether the server can do that at all. Raises StoreUsageError."""
        try:
            await self._line().call(*self._wait(1))
        except ReplyError as error:
            hint = "disk:N needs Redis 7.2 or Valkey, with appendonly yes."
            raise StoreUsageError(
                f"the store cannot confirm {self.policy}: {error}. "
                f"{hint if self.policy.on_disk else 'Use another level.'}"
            ) from error

    async def run(
        self, name: scripts.Name, keys: tuple[bytes, ...], args: tuple[Arg, ...], mark: bytes
    ) -> tuple[list[bytes], Shortfall | None]:
        """A script's answer, and what was missing of its confirmation. `mark`: a key to write."""
        rest = (("SET", mark, "1"), self._wait(int(self.policy.wait_s * 1000)))
        reply, told = await scripts.run_then(self._line(), name, keys, args, *rest)
        return reply, self._shortfall(told)

    def _wait(self, ms: int) -> tuple[Arg, ...]:
        if self.policy.on_disk:
            return ("WAITAOF", 1, self.policy.replicas, ms)
        return ("WAIT", self.policy.replicas, ms)

    def _shortfall(self, told: list[Reply]) -> Shortfall | None:
        marked, copies = told
        for reply in (marked, copies):
            if isinstance(reply, ReplyError):
                return Shortfall(f"the server answered: {reply}")
        wanted = self.policy.replicas
        if self.policy.on_disk:
            local, synced = copies
            if local < 1:
                return Shortfall("it is not on the primary's disk yet")
            copies = synced
        if copies >= wanted:
            return None
        where = "on disk " if self.policy.on_disk else ""
        return Shortfall(f"{copies} of {wanted} replicas have it {where}".strip())

    def _line(self) -> Transport:
        at = next(self._turn) % _LINES
        while at >= len(self._lines):
            self._lines.append(self._new_transport())
        return self._lines[at]

    def drop(self, reason: str) -> None:
        """Replace the connections at their next use."""
        for line in self._lines:
            line.drop(reason)

    async def aclose(self) -> None:
        for line in self._lines:
            await line.aclose()
