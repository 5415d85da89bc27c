"""The message brokers of a fleet, by address: taskiq's, set up so that a message is only a hint.

What their defaults would do (taskiq 0.13, taskiq-redis 1.2, taskiq-aio-pika 0.6): a new group of a
stream drops what was sent before it, streams and queues grow for ever, a lock that a killed worker
held stops all others, and a read that blocks longer than the client's patience fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fsm_agent.errors import MissingSetting, UsageError

if TYPE_CHECKING:
    from taskiq import AsyncBroker

MOST_WAITING = 100_000  # messages; older ones go, and the due index makes up for them
BLOCK_MS = 2_000  # below the 5 s after which redis-py gives a silent server up
LOCK_S = 5.0
FORMS = "redis://…, rediss://…, redis+cluster://…, rediss+cluster://…, amqp://… or amqps://…"
_INSTALL = "Messages by a broker need the extra 'fleet': pip install 'fsm-agent[fleet]'."


@asynccontextmanager
async def opened(
    url: str, queue: str, *, consumer: str, listens: bool = False
) -> AsyncIterator[AsyncBroker]:
    """A broker that is connected, for the length of the block.

    Raises UsageError for an address of another form, MissingSetting without the extra 'fleet',
    and what the broker's client raises if nobody is there.
    """
    broker = _broker(url, queue, consumer)
    broker.is_worker_process = listens
    try:
        await broker.startup()
        yield broker
    finally:
        await broker.shutdown()


def check_broker(url: str) -> None:
    """Raises what `opened` raises before it connects."""
    _broker(url, "check", "check")


def _broker(url: str, queue: str, consumer: str) -> AsyncBroker:
    scheme, _, rest = url.partition("://")
    plain = scheme.removesuffix("+cluster")
    if not rest or scheme not in _MAKERS:
        shown = f"{scheme}://…" if rest else repr(url[:80])
        raise UsageError(f"{shown} is not the address of a message broker. Use {FORMS}.")
    try:
        return _MAKERS[scheme](f"{plain}://{rest}", queue, consumer)
    except ImportError as error:
        raise MissingSetting(f"{_INSTALL} (missing: {error.name})") from error
    except ValueError as error:
        raise UsageError(f"{scheme}://… is not the address of a broker: {error}.") from error


def _streams(consumer: str) -> dict[str, Any]:
    return {
        "consumer_group_name": "fsm-agent",
        "consumer_name": consumer,
        "consumer_id": "0",
        "maxlen": MOST_WAITING,
        "xread_block": BLOCK_MS,
    }


def _redis(url: str, queue: str, consumer: str) -> AsyncBroker:
    from taskiq_redis import RedisStreamBroker

    # One message at a time: what a process has fetched, the others cannot get.
    return RedisStreamBroker(
        url, queue, xread_count=1, unacknowledged_lock_timeout=LOCK_S, **_streams(consumer)
    )


def _cluster(url: str, queue: str, consumer: str) -> AsyncBroker:
    from taskiq_redis import RedisStreamClusterBroker

    return RedisStreamClusterBroker(url, queue, **_streams(consumer))


def _rabbit(url: str, queue: str, consumer: str) -> AsyncBroker:
    from taskiq_aio_pika import AioPikaBroker, Exchange, Queue, QueueType

    def short(name: str, most: int) -> Queue:
        return Queue(
            name=name, type=QueueType.CLASSIC, durable=False, arguments={"x-max-length": most}
        )

    return AioPikaBroker(
        url,
        qos=1,
        exchange=Exchange(name=queue, durable=False),
        task_queues=[short(queue, MOST_WAITING)],
        dead_letter_queue=short(f"{queue}.dead", 1),  # the client wants one: nobody reads it
    )


_MAKERS = {
    "redis": _redis,
    "rediss": _redis,
    "redis+cluster": _cluster,
    "rediss+cluster": _cluster,
    "amqp": _rabbit,
    "amqps": _rabbit,
}
