"""A fleet: workers on many machines, woken by the messages of a broker.

A message says 'look at this run' and nothing more. It is acknowledged on receipt, and may be lost,
doubled or late: the due index is the truth, and each worker reads it every few seconds anyway.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from checkpoints.model import RunId
from checkpoints.schedule import Limit
from checkpoints.store import Store
from fsm_agent.engine.tasks import task_group

from .broker import opened
from .services import Service

if TYPE_CHECKING:
    from taskiq import AsyncBroker

QUEUE = "fsm-agent"
TASK = "look at this run"
POST = "post:relay"  # a group with one place: whose process sends the messages
POST_TERM_S = 6.0
TICK_S = 1.0
BATCH = 256  # messages of one tick at the most
AGAIN_S = 30.0  # before a run that is still due is sent once more; doubled each time
LONGEST_S = 600.0

log = structlog.get_logger(__name__)


async def no_hints() -> AsyncIterator[RunId]:
    """For a worker that is only woken by messages."""
    await asyncio.Event().wait()
    yield RunId("")  # never: it makes this a generator


def services(
    url: str, store: Store, *, owner: str, offer: Callable[[RunId], Awaitable[None]]
) -> tuple[Service, Service]:
    """What a worker's process does for its fleet: hear messages, and send them if it has the post.

    `offer` waits until there is room for a run: until then the broker keeps the rest for others.
    """
    relay = Relay(url, store, owner=owner)
    return Service("messages", lambda: listen(url, owner, offer)), Service("relay", relay.run)


async def listen(url: str, owner: str, offer: Callable[[RunId], Awaitable[None]]) -> None:
    """Take messages and offer their runs, one after the other, for ever."""
    # Not taskiq's Receiver, whose tasks outlive a cancellation that the broker's client has lost,
    # and which fetches ahead: there is one task, and a message is no more than a run's id.
    from taskiq.utils import maybe_awaitable

    async with (
        opened(url, QUEUE, consumer=owner, listens=True) as broker,
        aclosing(broker.listen()) as messages,
    ):
        async for message in messages:
            data = message if isinstance(message, bytes) else message.data
            if not isinstance(message, bytes):
                await maybe_awaitable(message.ack())
            if run_id := _named_in(broker, data):
                await offer(run_id)


def _named_in(broker: AsyncBroker, data: bytes) -> RunId | None:
    """The run that a message names, or None for one that is none of ours."""
    try:
        said = broker.formatter.loads(data)
    except (ValueError, RecursionError) as error:  # pydantic's are ValueErrors too
        log.warning("fleet.message_unreadable", why=str(error)[:200])
        return None
    if said.task_name != TASK or len(said.args) != 1 or not isinstance(said.args[0], str):
        log.warning("fleet.message_unknown", task=said.task_name[:100])
        return None
    return RunId(said.args[0])


class Sender:
    """Sends messages to the fleet."""

    def __init__(self, broker: AsyncBroker) -> None:
        self._task = broker.task(task_name=TASK)(_look)

    async def send(self, run_id: str) -> None:
        """Tell the fleet to look at a run."""
        await self._task.kiq(run_id)


async def _look(run_id: str) -> None:
    """Stands for the receiver's task."""


class Relay:
    """Sends a message for each run that becomes due. One process of the fleet at a time does.

    It hears what the store says, and reads the due index for what it missed: timers, and leases
    that ran out. A run that stays due is sent again, less and less often.
    """

    def __init__(
        self,
        url: str,
        store: Store,
        *,
        owner: str,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._store, self._owner = url, store, owner
        self._steady_s = steady_s
        # Places are counted by run, and the post is one process's: each stands for a run.
        self._post_id = RunId(hashlib.sha256(owner.encode()).hexdigest())
        self._sent: dict[RunId, tuple[float, float]] = {}  # when, and the pause after that

    async def run(self) -> None:
        """Relay for ever, whenever this process has the post."""
        async with opened(self._url, QUEUE, consumer=self._owner) as broker:
            sender = Sender(broker)
            while True:
                if await self._has_post():
                    await self._relay(sender)
                await asyncio.sleep(POST_TERM_S / 3)

    async def _relay(self, sender: Sender) -> None:
        """Until the post is lost."""
        async with task_group() as tasks:
            hearing = tasks.create_task(self._hear(sender), name="relay of wake-ups")
            try:
                while await self._has_post():
                    await self._sweep(sender)
                    await asyncio.sleep(TICK_S)
            finally:
                hearing.cancel()

    async def _has_post(self) -> bool:
        term_ms = int(POST_TERM_S * 1000)
        place = await self._store.take_slot(
            POST, self._post_id, Limit(at_once=1), owner=self._owner, term_ms=term_ms, begins=False
        )
        return place == 0

    async def _hear(self, sender: Sender) -> None:
        async for run_id in self._store.wakes():
            await self._send(sender, run_id)

    async def _sweep(self, sender: Sender) -> None:
        now = self._steady_s()
        agenda = await self._store.agenda(limit=BATCH)
        due = [run.run_id for run in agenda.runs]
        self._sent = {run_id: self._sent[run_id] for run_id in due if run_id in self._sent}
        for run_id in due[:BATCH]:
            at, pause_s = self._sent.get(run_id, (float("-inf"), 0.0))
            if now >= at + pause_s:
                await self._send(sender, run_id)

    async def _send(self, sender: Sender, run_id: RunId) -> None:
        _, pause_s = self._sent.get(run_id, (0.0, 0.0))
        self._sent[run_id] = self._steady_s(), min(2 * pause_s or AGAIN_S, LONGEST_S)
        await sender.send(run_id)
