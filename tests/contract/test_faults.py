"""What networks and servers do to a call: nothing is lost, doubled or answered to somebody else."""

# ruff: noqa: ASYNC221, ASYNC222  waits are for conditions in servers

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import pytest

from checkpoints import StoreSettings, open_store, scripts
from checkpoints.address import Address
from checkpoints.connect import dialler
from checkpoints.errors import (
    LeaseLost,
    StoreDiverged,
    StoreUnavailable,
    StoreUsageError,
)
from checkpoints.model import Claim, Committed, RunId
from checkpoints.pipeline import Line
from checkpoints.redis_store import RedisStore
from checkpoints.testing.contract import (
    R,
    ask,
    commit_of,
    decision,
    entry,
    parked,
    started,
    taken_over,
)
from checkpoints.testing.proxy import FaultProxy
from checkpoints.testing.servers import Clients, free_port, start_redis

PATIENT = StoreSettings(answer_s=10.0)
QUICK = StoreSettings(answer_s=0.4, connect_s=1.0, restart_s=2.0)


def call_of(name: scripts.Name) -> bytes:
    """What marks a call of a script on the wire."""
    return scripts.load(name).sha


@pytest.fixture
async def proxy(
    redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[FaultProxy]:
    """Between `store` and the server."""
    target = Path(redis_url.removeprefix("unix://"))
    socket = target.with_name(f"proxy-{monotonic()}.sock")
    async with FaultProxy(target, socket) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: FaultProxy, debian: Clients) -> AsyncIterator[RedisStore]:
    """A store behind the proxy; `debian` reaches the same data directly."""
    store = await open_store(f"unix://{proxy.socket}", namespace=debian.namespace, settings=QUICK)
    # Else a first call that is lost may be one that only asked for its script.
    for name in scripts.NAMES:
        await store._line.call("SCRIPT", "LOAD", scripts.load(name).text)
    yield store
    await store.aclose()


@pytest.mark.parametrize("fault", ["lost_request", "lost_reply", "half_reply", "silence", "twice"])
async def test_a_commit_through_a_fault_is_one_entry(
    store: RedisStore, proxy: FaultProxy, fault: str
) -> None:
    claim = await started(store)
    proxy.inject(fault, call_of("commit"))  # type: ignore[arg-type]

    done = await store.commit(claim.lease, commit_of(claim, b"once"))

    assert proxy.hits == 1
    assert done.seq == 2
    assert done.was_repeat == (fault != "lost_request")
    assert [e.body for e in await store.journal(R)] == [entry(1), b"once"]


@pytest.mark.parametrize("fault", ["lost_request", "lost_reply", "half_reply", "silence"])
async def test_every_other_call_through_a_fault_happens_once(
    store: RedisStore, proxy: FaultProxy, fault: str
) -> None:
    proxy.inject(fault, call_of("create"))  # type: ignore[arg-type]
    await store.create(R, op="o", body=entry(1), snapshot=b"")
    proxy.inject(fault, call_of("claim"))  # type: ignore[arg-type]
    claim = await store.claim(R, owner="w", nonce="n", term_ms=60_000)
    assert claim.lease.token == 1
    proxy.inject(fault, call_of("signal"))  # type: ignore[arg-type]
    assert await store.signal(R, signal_id="s", body=b"")
    assert (await store.head(R)).mail == 1
    await store.commit(claim.lease, commit_of(claim, opened=(ask(),)))
    proxy.inject(fault, call_of("decide"))  # type: ignore[arg-type]
    await store.decide(R, "q1", decision())
    assert (await store.head(R)).mail == 2
    proxy.inject(fault, call_of("report"))  # type: ignore[arg-type]
    await store.report_orphan(R, b"x")
    assert await store.orphans(R) == [b"x"]
    proxy.inject(fault, call_of("release"))  # type: ignore[arg-type]
    await store.release(claim.lease, due_ms=None)
    assert (await store.head(R)).lease_until_ms == 0
    assert proxy.hits == 6


async def test_a_signal_that_was_consumed_before_its_repeat_is_not_sent_again(
    store: RedisStore, proxy: FaultProxy, debian: Clients
) -> None:
    claim = await started(store)
    direct = await debian()
    proxy.inject("silence", call_of("signal"))

    async def consume() -> None:
        while not await direct.mailbox(R):
            await asyncio.sleep(0.005)
        await direct.commit(claim.lease, commit_of(claim, consumed=("s",)))

    sent, _ = await asyncio.gather(store.signal(R, signal_id="s", body=b""), consume())

    assert sent
    assert await store.mailbox(R) == []
    assert (await store.head(R)).mail == 1


async def test_a_commit_delivered_after_a_takeover_is_fenced(
    store: RedisStore, proxy: FaultProxy, debian: Clients
) -> None:
    direct = await debian()
    old = await started(direct, term_ms=30)
    # The retries are held up as well: the run is taken over before anything arrives.
    proxy.inject("late_request", call_of("commit"), times=1000)
    attempt = asyncio.ensure_future(store.commit(old.lease, commit_of(old, b"late")))
    while not proxy.hits:
        await asyncio.sleep(0.005)
    attempt.cancel()
    new = await taken_over(direct)
    await asyncio.wait([attempt])
    before = await direct.journal(R)

    await proxy.deliver()

    assert await direct.journal(R) == before
    with pytest.raises(LeaseLost):
        await direct.commit(old.lease, commit_of(old, b"late"))
    assert new.lease.token == 2


async def test_a_cancelled_commit_lands_before_the_cancellation_is_heard(
    store: RedisStore, proxy: FaultProxy
) -> None:
    claim = await started(store)
    proxy.inject("lost_request", call_of("commit"))
    task = asyncio.ensure_future(store.commit(claim.lease, commit_of(claim, b"landed")))
    while not proxy.hits:
        await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert (await store.journal(R))[-1].body == b"landed"


async def test_a_call_cancelled_at_any_await_leaves_every_answer_to_its_caller(
    debian: Clients,
) -> None:
    store = await debian()
    claim = await started(store)
    await parked_other(store)
    names = [await store.put_blob(R, b"blob %d" % n) for n in range(8)]
    for steps in range(12):
        victims = [
            asyncio.ensure_future(call)
            for call in (
                store.head(R),
                store.journal(R),
                store.mailbox(R),
                store.renew([claim.lease]),
                store.signal(R, signal_id=f"s{steps}", body=b""),
                store.due(),
                store.asks(),
                store.now_ms(),
            )
        ]
        witnesses = [asyncio.ensure_future(store.get_blob(R, name)) for name in names]
        for _ in range(steps):
            await asyncio.sleep(0)
        for victim in victims:
            victim.cancel()

        found = await asyncio.gather(*witnesses)
        await asyncio.wait(victims)

        assert found == [b"blob %d" % n for n in range(8)]
        assert (await store.head(R)).seq == 1
        assert isinstance(await store.now_ms(), int)


async def parked_other(store: RedisStore) -> None:
    """Another run with a request, so that lists are not empty."""
    claim = await started(store, RunId("other"))
    await store.commit(claim.lease, commit_of(claim, opened=(ask(),), release=True))


@pytest.mark.parametrize(
    "line",
    [
        "READONLY You can't write against a read only replica.",
        "LOADING Redis is loading the dataset in memory",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "NOREPLICAS Not enough good replicas to write.",
        "BUSY Redis is busy running a script.",
        "MASTERDOWN Link with MASTER is down",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "MISCONF Redis is configured to save RDB snapshots",
    ],
    ids=lambda line: line.partition(" ")[0],
)
async def test_a_server_that_refuses_for_now_is_asked_again(
    store: RedisStore, proxy: FaultProxy, line: str
) -> None:
    claim = await started(store)
    proxy.inject("error", call_of("commit"), times=3, error=line)

    done = await store.commit(claim.lease, commit_of(claim))

    assert proxy.hits == 3
    assert (done.seq, done.was_repeat) == (2, False)


@pytest.mark.parametrize("code", ["NOAUTH", "NOPERM", "WRONGPASS", "MOVED 1 a:1"])
async def test_a_server_that_will_not_have_us_is_asked_once(
    store: RedisStore, proxy: FaultProxy, code: str
) -> None:
    claim = await started(store)
    proxy.inject("error", call_of("commit"), times=100, error=f"{code} no")

    with pytest.raises(StoreUnavailable, match="refuses") as refused:
        await store.commit(claim.lease, commit_of(claim))

    assert proxy.hits == 1
    assert refused.value.applied is False


async def test_a_commit_gives_up_at_the_leases_margin(store: RedisStore, proxy: FaultProxy) -> None:
    claim = await started(store, term_ms=300)
    proxy.inject("error", call_of("commit"), times=10_000, error="OOM no memory")
    begun = monotonic()

    with pytest.raises(StoreUnavailable, match="out of memory") as refused:
        await store.commit(claim.lease, commit_of(claim))

    assert refused.value.applied is False
    assert monotonic() - begun < 1.0
    assert 1 < proxy.hits < 50


async def test_an_unanswered_commit_is_of_unknown_fate(
    store: RedisStore, proxy: FaultProxy
) -> None:
    claim = await started(store, term_ms=300)
    proxy.inject("silence", call_of("commit"), times=10_000)

    with pytest.raises(StoreUnavailable, match="unknown") as refused:
        await store.commit(claim.lease, commit_of(claim))

    assert refused.value.applied is None


async def test_a_script_that_is_forgotten_is_loaded_again(debian: Clients) -> None:
    store = await debian()
    claim = await started(store)
    await store._line.call("SCRIPT", "FLUSH")

    done = await store.commit(claim.lease, commit_of(claim))

    assert (done.seq, done.was_repeat) == (2, False)


async def test_a_full_server_refuses_and_goes_on_once_there_is_room(short_folder: Path) -> None:
    socket = short_folder / "full.sock"
    process = start_redis(socket, short_folder, "--maxmemory-policy", "noeviction")
    try:
        store = await open_store(f"unix://{socket}", settings=PATIENT)
        claim = await started(store, term_ms=200)
        await store._line.call("CONFIG", "SET", "maxmemory", "1mb")
        await store._line.call("CONFIG", "SET", "maxmemory-clients", "0")
        commit = commit_of(claim)
        with pytest.raises(StoreUnavailable, match="out of memory"):
            await store.commit(claim.lease, commit)
        assert (await store.head(R)).seq == 1

        await store._line.call("CONFIG", "SET", "maxmemory", "0")

        assert (await store.commit(claim.lease, commit)).seq == 2
        await store.aclose()
    finally:
        process.kill()
        process.wait()


async def test_a_password_is_asked_for_in_plain_words(short_folder: Path) -> None:
    socket = short_folder / "secret.sock"
    process = start_redis(socket, short_folder, "--requirepass", "hunter2")
    try:
        with pytest.raises(StoreUnavailable, match="Put the password into the address"):
            await open_store(f"unix://{socket}")
        with pytest.raises(StoreUnavailable) as wrong:
            await open_store(f"unix://:hunter3@{socket}")
        assert "hunter3" not in str(wrong.value)

        store = await open_store(f"unix://:hunter2@{socket}")

        assert await store.now_ms() > 0
        await store.aclose()
    finally:
        process.kill()
        process.wait()


async def test_a_server_is_reached_over_tls_and_its_certificate_is_checked(
    short_folder: Path,
) -> None:
    key, cert, port = short_folder / "key.pem", short_folder / "cert.pem", free_port()
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=x"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    tls = ("--tls-port", str(port), "--tls-cert-file", str(cert), "--tls-key-file", str(key))
    more = ("--tls-ca-cert-file", str(cert), "--tls-auth-clients", "no")
    process = start_redis(short_folder / "tls.sock", short_folder, *tls, *more)
    try:
        with pytest.raises(StoreUnavailable, match="TLS failed"):
            await open_store(f"rediss://127.0.0.1:{port}")

        store = await open_store(f"rediss://127.0.0.1:{port}?ssl_ca_certs={cert}")

        claim = await started(store)
        assert (await store.commit(claim.lease, commit_of(claim, b"x" * 100_000))).seq == 2
        assert (await store.journal(R))[-1].body == b"x" * 100_000
        await store.aclose()
    finally:
        process.kill()
        process.wait()


async def test_an_absent_server_is_reported_at_once() -> None:
    begun = monotonic()

    with pytest.raises(StoreUnavailable) as absent:
        await open_store("redis://localhost:1")

    assert str(absent.value) == (
        "no Redis at localhost:1 (connection refused). Start one, or use --store embedded:FOLDER."
    )
    assert monotonic() - begun < 2.0


async def test_the_partition_count_is_fixed_at_the_first_opening(debian: Clients) -> None:
    first = await open_store(debian.url, namespace=debian.namespace + "-p", partitions=7)
    second = await open_store(debian.url, namespace=debian.namespace + "-p")

    assert (await second.facts())["partitions"] == 7

    with pytest.raises(StoreUsageError, match="has 7 partitions, not 8"):
        await open_store(debian.url, namespace=debian.namespace + "-p", partitions=8)
    for store in (first, second):
        await store.aclose()


async def test_two_namespaces_share_no_key(debian: Clients) -> None:
    one = await debian()
    other = await open_store(debian.url, namespace=debian.namespace + "-b")
    await started(one)

    assert await other.runs() == []
    assert await other.create(R, op="another", body=b"", snapshot=b"")
    await other.aclose()


async def test_a_forked_child_refuses_the_inherited_store(debian: Clients) -> None:
    store = await debian()
    await started(store)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.head(R).send(None)
        except StoreUsageError as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert (await store.head(R)).seq == 1


async def test_a_store_can_be_used_by_one_event_loop_after_another(debian: Clients) -> None:
    store = await debian()
    await parked(store)

    def elsewhere() -> int:
        return asyncio.run(store.head(R)).seq

    assert await asyncio.to_thread(elsewhere) == 2
    assert (await store.head(R)).seq == 2


async def test_answers_that_nobody_asked_for_end_the_connection() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    with pytest.raises((StoreUnavailable, StoreDiverged), match="unreadable answer"):
        await open_store(f"redis://127.0.0.1:{port}", settings=QUICK)

    server.close()


async def test_an_argument_that_cannot_be_sent_shifts_nobodys_answers(store: RedisStore) -> None:
    claim = await started(store)
    await store.create(RunId("other"), op="o", body=b"x", snapshot=b"")

    for bad in ("\ud800", object()):
        with pytest.raises((UnicodeEncodeError, TypeError)):
            await store.decide(R, "q", decision(bad))  # type: ignore[arg-type]

    for _ in range(3):
        heads = await asyncio.gather(store.head(R), store.head(RunId("other")))
        assert [found.run_id for found in heads] == [R, "other"]
    assert (await store.commit(claim.lease, commit_of(claim))).seq == 2


@pytest.mark.parametrize("is_open", [False, True], ids=["opening", "committing"])
async def test_a_peer_that_accepts_and_closes_is_an_absent_server(
    short_folder: Path, debian: Clients, is_open: bool
) -> None:
    """As a proxy does before a dead server, and a server that is full."""
    socket = short_folder / "closing.sock"
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), socket)
    async with server, asyncio.timeout(20):
        if not is_open:
            with pytest.raises(StoreUnavailable):
                await open_store(f"unix://{socket}", settings=QUICK)
            return
        store = await debian()
        claim = await started(store, term_ms=1500)
        line = store._line
        assert isinstance(line, Line)
        line._dial = dialler(Address(path=str(socket)), QUICK)
        line.drop("as if the server had died")

        with pytest.raises(StoreUnavailable):
            await store.commit(claim.lease, commit_of(claim))


async def test_a_read_that_a_commit_overtakes_is_no_loss(store: RedisStore) -> None:
    at: Claim | Committed = await started(store)
    lease = at.lease

    for _ in range(50):
        _, committed = await asyncio.gather(store.journal(R), store.commit(lease, commit_of(at)))
        at = committed
