"""The relay: it takes notices out of the outbox and delivers them, each at least once.

Every process that has webhooks runs one. They share the outbox: who takes a notice has a while to
settle it; if they die, another one takes it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from checkpoints.model import Notice, RunId
from checkpoints.store import Store
from fsm_agent.clock import Clock
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import news
from fsm_agent.run.news import News

from .webhook import Failure, Sender, Webhook

log = structlog.get_logger(__name__)

HOLD_S = 120.0  # of what was taken; longer than a round of it takes
BATCH = 4  # a partition and round
PARALLEL = 8
LOOK_S = 2.0  # between two looks while nothing is known to wait
FAREWELL_S = 3.0  # at the end of a process, for what it has just committed
FIRST_RETRY_S = 2.0
LONGEST_RETRY_S = 900.0
GIVE_UP_S = 3 * 86_400.0


class Relay:
    """Delivers the notices of a store to webhooks. `inbox_url` is where links lead to."""

    def __init__(
        self,
        store: Store,
        webhooks: Sequence[Webhook],
        *,
        clock: Clock,
        jitter: Callable[[], float],
        inbox_url: str = "",
    ) -> None:
        self._store, self._clock, self._jitter = store, clock, jitter
        self._webhooks = {webhook.channel: webhook for webhook in webhooks}
        self._inbox_url = inbox_url.rstrip("/")
        self._poked = asyncio.Event()
        self._is_closing = False

    def poke(self) -> None:
        """Something was committed that may be due: look at once."""
        self._poked.set()

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        """Deliver while the body runs; what it committed last gets a moment after it."""
        sender = Sender()
        task = asyncio.create_task(self._run(sender), name="notices")
        try:
            yield
        finally:
            self._is_closing = True
            self.poke()
            await asyncio.wait([task], timeout=FAREWELL_S)
            task.cancel()
            await asyncio.wait([task])
            await sender.aclose()

    async def _run(self, sender: Sender) -> None:
        while True:
            self._poked.clear()  # before the look: what comes during it is looked for again
            is_last = self._is_closing
            count = await self._round(sender)
            if is_last and not count:
                return
            if not count:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._poked.wait()

    async def _round(self, sender: Sender) -> int:
        try:
            return await self.once(sender)
        except Exception as error:
            # Nothing is lost: what was taken and not settled is given again. And a bug in here
            # must not end the telling for as long as the process lives.
            log.warning("notify.round_failed", why=repr(error))
            return 0

    async def once(self, sender: Sender) -> int:
        """Take what is due and try to deliver it. How many notices were taken.

        Raises what the store raises; what was taken and not settled comes again.
        """
        taken = await self._store.take_notices(limit=BATCH, hold_ms=int(HOLD_S * 1000))
        until_s = monotonic() + HOLD_S * 0.75
        places = asyncio.Semaphore(PARALLEL)
        down: dict[str, Failure] = {}

        async def deliver(notice: Notice) -> None:
            async with places:
                if monotonic() < until_s:
                    await self._deliver(sender, notice, down)

        async with asyncio.TaskGroup() as tasks:
            for notice in taken:
                tasks.create_task(deliver(notice))
        return len(taken)

    async def _deliver(self, sender: Sender, notice: Notice, down: dict[str, Failure]) -> None:
        try:
            told = news.decode(notice.body)
        except CorruptRecord as error:
            log.error("notify.unreadable", notice=notice.notice_id, why=str(error))
            await self._store.settle_notice(notice)
            return
        if told.requests and not (told := await self._still_open(told)).requests:
            await self._store.settle_notice(notice)  # decided meanwhile: nobody is needed
            return
        body = _payload(notice, told, self._inbox_url)
        again = []
        for channel in [notice.channel] if notice.channel else list(self._webhooks):
            webhook = self._webhooks.get(channel)
            failure = await self._send(sender, webhook, notice, body, down) if webhook else None
            if failure and (delay_s := self._delay_s(notice, told, failure, channel)) is not None:
                later = replace(notice, channel=channel, tries=notice.tries + 1)
                again.append((later, int(delay_s * 1000)))
        await self._store.settle_notice(notice, again=again)

    async def _still_open(self, told: News) -> News:
        records = await self._store.asks(RunId(told.run_id), is_open=True)
        waiting = {record.ask.ask_id for record in records}
        return replace(told, requests=tuple(r for r in told.requests if r.ask_id in waiting))

    async def _send(
        self,
        sender: Sender,
        webhook: Webhook,
        notice: Notice,
        body: bytes,
        down: dict[str, Failure],
    ) -> Failure | None:
        # One that did not answer is not asked again in this round: each try may take 10 s.
        if failure := down.get(webhook.channel):
            return failure
        at_s = self._clock.wall_ms() // 1000
        failure = await sender.send(webhook, notice.notice_id, body, at_s=at_s)
        if failure:
            down[webhook.channel] = failure
            log.warning(
                "notify.not_delivered",
                webhook=webhook.where,
                notice=notice.notice_id,
                why=failure.why,
                tries=notice.tries + 1,
            )
        return failure

    def _delay_s(self, notice: Notice, told: News, failure: Failure, channel: str) -> float | None:
        """How long to wait before the next try; None: there is none."""
        age_s = (self._clock.wall_ms() - told.at_ms) / 1000
        if failure.is_final or age_s > GIVE_UP_S:
            log.error("notify.given_up", notice=notice.notice_id, channel=channel, why=failure.why)
            return None
        doubled = FIRST_RETRY_S * 2.0 ** min(notice.tries, 16)
        delay_s = min(LONGEST_RETRY_S, doubled) * (0.5 + self._jitter() / 2)
        return max(delay_s, min(failure.retry_after_s or 0.0, LONGEST_RETRY_S))


def _payload(notice: Notice, told: News, inbox_url: str) -> bytes:
    """What a receiver reads: type, timestamp, data."""
    data: dict[str, Any] = {"run_id": told.run_id, "agent": told.agent}
    if told.parent:
        data["parent"] = told.parent
    if told.requests:
        data["requests"] = [_request(told, each, inbox_url) for each in told.requests]
    if told.to:
        data["to"] = told.to
    if told.passed_percent:
        data["passed_percent"] = told.passed_percent
    if told.type == "run.done":
        data["is_completed"] = told.is_completed
    if told.reason:
        data["reason"] = told.reason
    if inbox_url:
        data["link"] = f"{inbox_url}/runs/{told.run_id}"
    payload = {"type": told.type, "id": notice.notice_id, "timestamp": _iso(told.at_ms)}
    return msgspec.json.encode(payload | {"data": data})


def _request(told: News, needed: news.Needed, inbox_url: str) -> dict[str, Any]:
    found: dict[str, Any] = {"ask_id": needed.ask_id, "kind": needed.kind, "tool": needed.tool}
    if needed.expires_ms:
        found["expires_at"] = _iso(needed.expires_ms)
    if needed.quorum > 1:
        found["quorum"] = needed.quorum
    if needed.to:
        found["to"] = needed.to
    if inbox_url:
        found["link"] = f"{inbox_url}/runs/{told.run_id}/asks/{needed.ask_id}"
    return found


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
