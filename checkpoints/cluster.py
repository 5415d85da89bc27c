"""A Transport to all nodes of a cluster: one connection each, and every command to its key's node.

The map of slots is read from any node that answers, again whenever one says that a slot moved, or
does not answer: after a failover its replica has the slots.
"""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from .pipeline import Dial, Line, seen
from .transport import Ambiguous, Arg, Reply, ReplyError, Unreachable

T = TypeVar("T")
Place = tuple[str, int]
Slots = list[Place | None]  # who serves each; empty: not known

SLOTS = 16384
_REDIRECTS = 5  # of one call; more than one happens while slots are being moved


def slot_of(key: bytes) -> int:
    """The slot of a key: of its hash tag, if it has one."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    if end > start + 1:
        key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


class ClusterLines:
    """A Transport (see transport.py) over a Line to each primary."""

    is_ours = True

    def __init__(
        self, seeds: Sequence[Place], dial_to: Callable[[str, int], Dial], address: str
    ) -> None:
        self.address = address
        self._seeds, self._dial_to = tuple(seeds), dial_to
        self._lines: dict[Place, Line] = {}
        self._slots: Slots = []
        self._reading: asyncio.Task[Slots] | None = None

    async def call(self, *args: Arg, patience_s: float | None = None) -> Reply:
        """Send a command to the node of its key; one without a key to any primary."""

        async def send(line: Line) -> Reply:
            return await line.call(*args, patience_s=patience_s)

        async def send_asking(line: Line) -> Reply:
            _, reply = await line.chain(("ASKING",), args)
            if isinstance(reply, ReplyError):
                raise reply
            return reply

        return await self._routed(key_of(args), send, send_asking)

    async def chain(self, *commands: tuple[Arg, ...]) -> list[Reply | ReplyError]:
        """See Transport. The key of the first command says where all of them go."""

        async def send(line: Line) -> list[Reply | ReplyError]:
            replies = await line.chain(*commands)
            if isinstance(replies[0], ReplyError) and replies[0].code in ("MOVED", "ASK"):
                raise replies[0]
            return replies

        async def send_asking(line: Line) -> list[Reply | ReplyError]:
            asking = [each for command in commands for each in (("ASKING",), command)]
            return (await line.chain(*asking))[1::2]

        return await self._routed(key_of(commands[0]), send, send_asking)

    async def _routed(
        self,
        key: bytes | None,
        send: Callable[[Line], Awaitable[T]],
        send_asking: Callable[[Line], Awaitable[T]],
    ) -> T:
        for _ in range(_REDIRECTS):
            place = await self._place_of(key)
            try:
                return await send(self._line(place))
            except ReplyError as error:
                if error.code == "MOVED":
                    self._slots = []
                    continue
                if error.code == "ASK":
                    return await send_asking(self._line(_place(error.text.split()[-1], place[0])))
                if error.code in ("CLUSTERDOWN", "READONLY", "MASTERDOWN"):
                    self._slots = []
                raise
            except (Unreachable, Ambiguous):
                self._slots = []  # perhaps its replica has taken over
                raise
        raise ReplyError("TRYAGAIN", "the slots of the cluster are being moved")

    async def _place_of(self, key: bytes | None) -> Place:
        slots = self._slots or await self._learn()
        place = slots[0 if key is None else slot_of(key)]
        if place is None:
            self._slots = []
            raise ReplyError("CLUSTERDOWN", "no node of the cluster serves the slot of this key")
        return place

    async def _learn(self) -> Slots:
        """The map of slots, read anew. All callers share one attempt, its failure, and its result:
        the first of them may have found the map wrong again before the last one gets it."""
        task = self._reading
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._reading = asyncio.ensure_future(self._read_slots())
            task.add_done_callback(seen)
        return await asyncio.shield(task)

    async def _read_slots(self) -> Slots:
        last: Exception = Unreachable(f"no node of the cluster at {self.address} answers.")
        # Nodes that are connected first: a host that is gone may take long to say nothing.
        known = sorted(self._lines, key=lambda place: not self._lines[place].is_open)
        for place in dict.fromkeys((*known, *self._seeds)):
            try:
                ranges = await self._line(place).call("CLUSTER", "SLOTS")
            except ReplyError as error:
                if error.code == "ERR":
                    error = ReplyError("NOPROTO", f"{error}. Is it a cluster?")
                if error.code not in ("LOADING", "CLUSTERDOWN"):
                    raise error from None
                last = error
            except (Unreachable, Ambiguous) as error:
                # Nothing was written: to the caller this is no doubt, only no connection.
                last = Unreachable(str(error))
            else:
                self._slots = _slots(ranges, place[0])
                return self._slots
        raise last

    async def primaries(self) -> list[Line]:
        """A connection to each node that serves slots."""
        slots = self._slots or await self._learn()
        return [self._line(place) for place in dict.fromkeys(slots) if place]

    def _line(self, place: Place) -> Line:
        if place not in self._lines:
            host, port = place
            self._lines[place] = Line(self._dial_to(host, port), f"{host}:{port}")
        return self._lines[place]

    def drop(self, reason: str) -> None:
        """Replace every connection at its next use, and read the map again."""
        self._slots = []
        for line in self._lines.values():
            line.drop(reason)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
        for line in self._lines.values():
            await line.aclose()


def key_of(args: tuple[Arg, ...]) -> bytes | None:
    """The first key of a command that this package sends, None where it has none."""
    match args[0]:
        case "EVALSHA" | "EVAL":
            key = args[3]
        case "XREAD":
            key = args[-2]
        case "TIME" | "INFO" | "CONFIG" | "SCRIPT" | "ROLE" | "WAIT" | "WAITAOF" | "KEYS" | "ACL":
            return None
        case _:
            key = args[1]
    return key if isinstance(key, bytes) else str(key).encode()


def _slots(ranges: Reply, asked: str) -> Slots:
    slots: Slots = [None] * SLOTS
    for first, last, primary, *_ in ranges:
        # A node that does not know its own name gives none: it is the one that was asked.
        host = (primary[0] or b"").decode()
        place = (asked if host in ("", "?") else host, int(primary[1]))
        slots[first : last + 1] = [place] * (last - first + 1)
    return slots


def _place(text: str, asked: str) -> Place:
    host, _, port = text.rpartition(":")
    return host or asked, int(port)
