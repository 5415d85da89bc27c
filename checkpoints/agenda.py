"""What is due, and who is told of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import structlog

from . import answers
from .calls import Calls
from .lists import scored
from .model import RunId
from .pipeline import Wire
from .schedule import Agenda, DueRun
from .transport import Ambiguous, Reply, ReplyError, Unreachable

log = structlog.get_logger(__name__)

_PING_S = 5.0  # a silent listener asks whether anybody is there
_AGAIN_S = 1.0
_KEPT = 1_000  # hints that nobody took yet; more are dropped


class Agendas(Calls):
    """The due indexes of all partitions, and the hints that go with them."""

    async def agenda(self, *, limit: int = 256) -> Agenda:
        """See Schedule."""
        parts = self._all_keys().partitions
        share = max(8, 2 * limit // len(parts))
        replies = await self._everywhere(
            "due", lambda part, until: self._script("agenda", (part.due,), share, until=until)
        )
        found = {run_id: at for reply in replies for at, run_id in scored(reply[3:])}
        runs = tuple(DueRun(run_id, at) for run_id, at in sorted(found.items(), key=_by_time))
        ahead = [answers.number(reply[2]) for reply in replies if reply[2]]
        now_ms = max(int(reply[1]) for reply in replies)
        return Agenda(runs, min(ahead, default=None), now_ms)

    async def due(self, *, limit: int = 16) -> Sequence[RunId]:
        """See Store."""
        replies = await self._everywhere(
            "due", lambda part, until: self._script("due", (part.due,), limit, until=until)
        )
        found = [item for reply in replies for item in scored(reply[1:])]
        return [run_id for _, run_id in sorted(found)[:limit]]

    async def wake(self, run_id: RunId) -> None:
        """See Schedule."""
        keys = self._of(run_id)
        await self._script("wake", (keys.head, keys.partition.due), run_id)

    async def wakes(self) -> AsyncIterator[RunId]:
        """See Schedule. Without a way to listen, as on fakeredis, there are none."""
        heard: asyncio.Queue[RunId] = asyncio.Queue(_KEPT)

        def push(reply: Reply) -> None:
            with suppress(asyncio.QueueFull):
                heard.put_nowait(RunId(reply[3].decode(errors="replace")))

        while True:
            wire: Wire | None = None
            try:
                wire = await self._listening(push)
                while True:
                    run_id: RunId | None = None
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_PING_S):
                            run_id = await heard.get()
                    if run_id:
                        yield run_id
                    else:
                        await wire.send(("PING",))
            except (Unreachable, Ambiguous, ReplyError) as error:
                log.debug("checkpoints.deaf", reason=str(error))
                await asyncio.sleep(_AGAIN_S * random.uniform(0.5, 1.0))
            finally:
                if wire:
                    wire.drop("nobody listens any more")

    async def _listening(self, push: object) -> Wire:
        """A connection of its own on which each hint is pushed."""
        if self._dial_ear is None:
            await asyncio.Event().wait()
            raise AssertionError
        wire = await self._dial_ear()
        wire.on_push = push  # type: ignore[assignment]
        await wire.send(("PSUBSCRIBE", self._all_keys().due_pattern))
        return wire


def _by_time(item: tuple[RunId, int]) -> tuple[int, str]:
    return item[1], item[0]
