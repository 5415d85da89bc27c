"""The least that a durable turn can cost: two scripts, each a SET of a head and an XADD."""

from __future__ import annotations

import uuid

from redis.asyncio import Redis, UnixDomainSocketConnection
from redis.asyncio.connection import BlockingConnectionPool

SCRIPT = """
redis.call('SET', KEYS[1], ARGV[1])
redis.call('XADD', KEYS[2], '*', 'b', ARGV[2])
return 1
"""
HEAD, BODY = "h" * 120, "x" * 1024


class Floor:
    """Bare EVALSHAs on the same server as ours, by redis-py's asyncio client."""

    def __init__(self, socket: str, *, connections: int = 1) -> None:
        pool = BlockingConnectionPool(
            connection_class=UnixDomainSocketConnection,
            path=socket,
            max_connections=connections,
            timeout=60,
        )
        self._redis = Redis(connection_pool=pool)
        self._sha = ""

    async def begin(self) -> None:
        self._sha = await self._redis.script_load(SCRIPT)

    async def turns(self, count: int) -> None:
        """`count` turns of one run."""
        run = uuid.uuid4().hex
        for _ in range(2 * count):
            await self._redis.evalsha(self._sha, 2, f"{run}:h", f"{run}:j", HEAD, BODY)

    async def kept(self, messages: int) -> int:
        """The bytes of a head and a stream with so many messages, each written once."""
        head, stream = (f"{uuid.uuid4().hex}:{part}" for part in "hj")
        for _ in range(messages):
            await self._redis.evalsha(self._sha, 2, head, stream, HEAD, BODY)
        sizes = [await self._redis.memory_usage(key, samples=0) for key in (head, stream)]
        return sum(size or 0 for size in sizes)

    async def aclose(self) -> None:
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()
