"""What a run keeps in the store grows with its content, not with its square."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis

from benchmarks.agent import PAYLOAD, InstantModel, make_agent
from checkpoints import open_store
from checkpoints.embedded import EmbeddedServer
from fsm_agent import Runtime

TURNS = (50, 100, 200)


async def kept_bytes(url: str, client: Redis, turns: int) -> int:
    """Memory of everything that carries the id of a run of `turns` turns of 1 KiB."""
    store = await open_store(url)
    try:
        async with Runtime.open(store, model=InstantModel(turns)) as runtime:
            result = await runtime.run(make_agent(), "Take notes.")
            assert result.turns == turns + 1
    finally:
        await store.aclose()
    keys = [key async for key in client.scan_iter(match=f"*{result.run_id}*")]
    return sum([int(await client.memory_usage(key, samples=0) or 0) for key in keys])


async def test_bytes_grow_linearly_and_stay_below_three_times_the_content(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}"
    server = EmbeddedServer(tmp_path)
    client = Redis(unix_socket_path=server.enter())
    try:
        kept = {turns: await kept_bytes(url, client, turns) for turns in TURNS}
    finally:
        await client.aclose()
        server.leave()

    for turns in TURNS:
        assert kept[turns] <= 3 * turns * len(PAYLOAD)
    first, second = kept[100] - kept[50], kept[200] - kept[100]
    assert second == pytest.approx(2 * first, rel=0.1)
