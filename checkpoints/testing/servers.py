"""Servers, clients and damage for tests of a store."""

# ruff: noqa: ASYNC110  waits are for conditions in servers and processes

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ..cluster import ClusterLines
from ..connect import open_store
from ..keys import Keys
from ..model import RunId
from ..redis_store import RedisStore
from ..sealing import KeyRing
from ..settings import StoreSettings

_namespaces = count()


class RedisVandal:
    """A Vandal (see contract.py) by raw commands on one namespace."""

    def __init__(
        self,
        call: Callable[..., Awaitable[Any]],
        namespace: str,
        partitions: int,
        names: Callable[[], Awaitable[list[bytes]]] | None = None,
    ) -> None:
        self._call = call
        self._keys = Keys(namespace, partitions)
        self._tag = "{" + namespace + ":"
        self._all_names = names or (lambda: call("KEYS", "*"))

    async def flip(self, run_id: RunId, seq: int) -> None:
        """Rewrite the stream with one byte changed: Redis has no command to edit an entry."""
        key = self._keys.of(run_id).journal
        entries = await self._call("XRANGE", key, "-", "+")
        await self._call("DEL", key)
        for entry_id, fields in entries:
            if entry_id == b"%d-0" % seq:
                body = bytearray(fields[5])
                body[len(body) // 2] ^= 1
                fields = [*fields[:5], bytes(body)]
            await self._call("XADD", key, entry_id, *fields)

    async def cut(self, run_id: RunId, seq: int) -> None:
        key = self._keys.of(run_id).journal
        await self._call("XDEL", key, f"{seq}-0")

    async def forget(self) -> None:
        for name in await self._names():
            await self._call("DEL", name)

    async def copy(self, run_id: RunId) -> Any:
        return await self._call("HGETALL", self._keys.of(run_id).head)

    async def rewind(self, run_id: RunId, head: Any) -> None:
        await self._call("HSET", self._keys.of(run_id).head, *head)

    async def occupy(self, run_id: RunId) -> None:
        await self._call("DEL", self._keys.of(run_id).journal)
        await self._call("SET", self._keys.of(run_id).journal, "somebody else's")

    async def hasten(self, run_id: RunId) -> list[bytes]:
        """Let the time of a finished run be over now; its keys that had no expiry."""
        keys = self._keys.of(run_id)
        names = [name for name in keys[:-1] if await self._call("EXISTS", name)]
        lasting = [name for name in names if await self._call("PTTL", name) < 0]
        for name in names:
            if name not in lasting:
                await self._call("DEL", name)
        await self._call("ZADD", keys.partition.ended, "XX", 1, run_id)
        return lasting

    async def digest(self) -> object:
        found = {}
        for name in sorted(await self._names()):
            kind = await self._call("TYPE", name)
            read = {
                b"string": ("GET", name),
                b"hash": ("HGETALL", name),
                b"zset": ("ZRANGE", name, 0, -1, "WITHSCORES"),
                b"list": ("LRANGE", name, 0, -1),
                b"stream": ("XRANGE", name, "-", "+"),
            }[kind]
            found[name] = await self._call(*read)
        return found

    async def _names(self) -> list[bytes]:
        return [name for name in await self._all_names() if name.startswith(self._tag.encode())]


class Clients:
    """Stores on one address and namespace, closed at the end of the test."""

    def __init__(
        self, url: str, settings: StoreSettings | None = None, keys: KeyRing | None = None
    ) -> None:
        self.url, self.settings, self.keys = url, settings, keys
        self.namespace = f"t{os.getpid()}-{next(_namespaces)}"
        self._open: list[RedisStore] = []

    async def __call__(self) -> RedisStore:
        store = await open_store(
            self.url, namespace=self.namespace, settings=self.settings, keys=self.keys
        )
        self._open.append(store)
        return store

    async def vandal(self, partitions: int) -> RedisVandal:
        store = await self()
        line = store._line
        if not isinstance(line, ClusterLines):
            return RedisVandal(line.call, self.namespace, partitions)

        async def names() -> list[bytes]:
            found = [await one.call("KEYS", "*") for one in await line.primaries()]
            return [name for part in found for name in part]

        return RedisVandal(line.call, self.namespace, partitions, names)

    async def aclose(self) -> None:
        for store in self._open:
            await store.aclose()


def _listens(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))
    except OSError:
        return False
    return True


def redis_binary(name: str = "redis-server") -> str:
    """The path of a server program; the test fails where there is none."""
    binary = shutil.which(name)
    if binary is None:
        pytest.fail(f"there is no {name} for this test. Run: apt-get install redis-server")
    return binary


def start_redis(
    path: Path, folder: Path, *options: str, binary: str = "redis-server"
) -> subprocess.Popen[bytes]:
    """A redis-server of the system, or another program like it, that answers."""
    binary = redis_binary(binary)
    process = subprocess.Popen(
        [
            *(binary, "--port", "0", "--unixsocket", str(path), "--dir", str(folder)),
            *("--save", "", "--appendonly", "no", *options),
        ],
        stdout=subprocess.DEVNULL,
    )
    until = time.monotonic() + 10
    while not _listens(path):  # the file is there a moment before anybody listens
        assert process.poll() is None, "redis-server ended at once"
        assert time.monotonic() < until, "redis-server made no socket"
        time.sleep(0.01)
    return process


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@contextmanager
def start_cluster(folder: Path) -> Iterator[int]:
    """Three nodes of the system's redis-server that share the slots: the first one's port."""
    with start_cluster_nodes(folder) as nodes:
        yield next(iter(nodes))


@contextmanager
def start_cluster_nodes(
    folder: Path, *, has_replicas: bool = False
) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Three nodes that share the slots by their ports, then a replica of each where wanted."""
    binary = redis_binary()
    ports = [free_port() for _ in range(6 if has_replicas else 3)]
    nodes: dict[int, subprocess.Popen[bytes]] = {}
    for port in ports:
        home = folder / str(port)
        home.mkdir(parents=True)
        options = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(home), "--save", "")
        cluster = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        quick = ("--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0")
        nodes[port] = subprocess.Popen(
            [binary, *options, *cluster, *(quick if has_replicas else ())],
            stdout=subprocess.DEVNULL,
        )
    try:
        for n, port in enumerate(ports[:3]):
            ask_node(port, f"CLUSTER ADDSLOTSRANGE {n * 5462} {min(n * 5462 + 5461, 16383)}", "OK")
        for n, port in enumerate(ports):
            ask_node(port, f"CLUSTER SET-CONFIG-EPOCH {n + 1}", "OK")
        for port in ports[1:]:
            bus = ask_node(port, "CLUSTER NODES", "myself").partition("@")[2].partition(" ")[0]
            ask_node(ports[0], f"CLUSTER MEET 127.0.0.1 {port} {bus}", "OK")
        for port in ports:
            ask_node(port, "CLUSTER INFO", "cluster_state:ok")
            ask_node(port, "CLUSTER INFO", f"cluster_known_nodes:{len(ports)}")
        for primary, replica in zip(ports, ports[3:], strict=False):
            name = ask_node(primary, "CLUSTER MYID", "$40").split("\r\n")[1]
            ask_node(replica, f"CLUSTER REPLICATE {name}", "OK")
        for replica in ports[3:]:
            ask_node(replica, "INFO replication", "master_link_status:up")
        yield nodes
    finally:
        for node in nodes.values():
            node.kill()
            node.wait()


@contextmanager
def start_sentinel_trio(folder: Path) -> Iterator[tuple[int, dict[int, subprocess.Popen[bytes]]]]:
    """A primary named `agents`, its replica and a sentinel: the sentinel's port, all by port."""
    binary = redis_binary()
    primary, replica, sentinel = free_port(), free_port(), free_port()
    place = ("--bind", "127.0.0.1", "--save", "", "--dir", str(folder))
    common = (*place, "--repl-diskless-sync-delay", "0")
    of = ("--replicaof", f"127.0.0.1 {primary}")
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {sentinel}\nbind 127.0.0.1\n"
        f"sentinel monitor agents 127.0.0.1 {primary} 1\n"
        "sentinel down-after-milliseconds agents 300\nsentinel failover-timeout agents 2000\n"
    )
    nodes: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for port, options in ((primary, common), (replica, (*common, *of))):
            nodes[port] = subprocess.Popen(
                [binary, "--port", str(port), *options], stdout=subprocess.DEVNULL
            )
        ask_node(replica, "INFO replication", "master_link_status:up")
        nodes[sentinel] = subprocess.Popen(
            [binary, str(config), "--sentinel"], stdout=subprocess.DEVNULL
        )
        ask_node(sentinel, "SENTINEL REPLICAS agents", str(replica))
        yield sentinel, nodes
    finally:
        for node in nodes.values():
            node.kill()
            node.wait()


def ask_node(port: int, command: str, wanted: str) -> str:
    """Ask a node until its answer has `wanted` in it."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as peer:
                peer.sendall(command.encode() + b"\r\n")
                answer = peer.recv(65536).decode()
        except OSError as error:
            answer = str(error)
        if wanted in answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"{command} at {port}: {answer}")


def wait_for_copy(primary: int, replica: int) -> None:
    """Until the replica has all that the primary has written by now."""
    wanted = _offset(primary)
    until = time.monotonic() + 20
    while _offset(replica) < wanted:
        assert time.monotonic() < until, "the replica does not follow"
        time.sleep(0.01)


def _offset(port: int) -> int:
    told = ask_node(port, "INFO replication", "master_repl_offset:")
    return int(told.partition("master_repl_offset:")[2].partition("\r")[0])


def free_port() -> int:
    """A port that is free now, and whose cluster bus port would be a valid number."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 55000:
            return port
