"""Message brokers as private processes on free ports."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from checkpoints.testing.servers import free_port, start_cluster

RABBIT = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # /usr/sbin has a wrapper that changes the user
START_S = 90.0  # it compiles and fills a database first


@contextmanager
def redis_broker(folder: Path) -> Iterator[str]:
    """A redis-server of the system on a port."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.fail("there is no redis-server for this test. Run: apt-get install redis-server")
    port = free_port()
    folder.mkdir(parents=True)
    options = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "")
    process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
    try:
        _await_port(port, process)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def cluster_broker(folder: Path) -> Iterator[str]:
    """Three nodes."""
    with start_cluster(folder) as port:
        yield f"redis+cluster://127.0.0.1:{port}"


@contextmanager
def rabbit_broker(folder: Path) -> Iterator[str]:
    """Debian's RabbitMQ, with the port mapper that Erlang wants, as this user."""
    mapper = shutil.which("epmd")
    if mapper is None or not Path(RABBIT).exists():
        pytest.fail("there is no RabbitMQ for this test. Run: apt-get install rabbitmq-server")
    folder.mkdir(parents=True)
    port, names, between = free_port(), free_port(), free_port()
    config = folder / "rabbit.conf"
    # The write-ahead log of queues that are not used here would take half a gigabyte first.
    config.write_text("raft.wal_max_size_bytes = 4194304\n")
    environment = os.environ | {
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_NODENAME": f"fsm{os.getpid()}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(between),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "env"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none",
    }
    with open(folder / "out.log", "wb") as log:
        epmd = subprocess.Popen([mapper], env=environment, stdout=log, stderr=log)
        server = subprocess.Popen(
            [RABBIT], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _await_port(port, server)
        yield f"amqp://guest:guest@127.0.0.1:{port}/"
    finally:
        # A shell, the virtual machine and its helpers: all of the session that was started here.
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        epmd.kill()
        epmd.wait()


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None, "the broker ended at once"
        assert time.monotonic() < end, "the broker did not come up"
        time.sleep(0.02)
