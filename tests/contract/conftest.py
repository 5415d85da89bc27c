"""Servers for the contract tests: each is started once, each test has a namespace of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    *(f"checkpoints.testing.{module}" for module in ("contract", "retention", "schedule"))
)

from checkpoints.embedded import EmbeddedServer  # noqa: E402
from checkpoints.testing.servers import Clients, start_cluster, start_redis  # noqa: E402


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A folder whose sockets have short paths."""
    folder = Path(tempfile.mkdtemp(prefix="fsm-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def embedded_url(short_folder: Path) -> Iterator[str]:
    """An embedded server that is kept for all tests."""
    server = EmbeddedServer(short_folder / "embedded")
    server.enter()
    yield f"embedded:{short_folder / 'embedded'}"
    server.leave()


@pytest.fixture(scope="session")
def redis_url(short_folder: Path) -> Iterator[str]:
    """A Debian redis-server on a Unix socket."""
    socket = short_folder / "redis.sock"
    process = start_redis(socket, short_folder)
    yield f"unix://{socket}"
    process.kill()
    process.wait()


@pytest.fixture
async def embedded(embedded_url: str) -> AsyncIterator[Clients]:
    """Clients of the embedded server."""
    clients = Clients(embedded_url)
    yield clients
    await clients.aclose()


@pytest.fixture
async def debian(redis_url: str) -> AsyncIterator[Clients]:
    """Clients of the Debian server."""
    clients = Clients(redis_url)
    yield clients
    await clients.aclose()


@pytest.fixture(scope="session")
def cluster_url(short_folder: Path) -> Iterator[str]:
    """Three primaries without replicas."""
    with start_cluster(short_folder / "cluster") as port:
        yield f"redis+cluster://127.0.0.1:{port}"
