"""Stores that encrypt and compress: the whole contract, keys, and what is refused."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints import KeyRing, StoreSettings, open_store
from checkpoints.errors import CorruptEntry, MissingKey, StoreDiverged, StoreUsageError
from checkpoints.model import RunId
from checkpoints.testing.contract import (
    TERM_MS,
    NewStore,
    R,
    StoreContract,
    Vandal,
    ask,
    commit_of,
    decision,
    notice,
    parked,
    started,
)
from checkpoints.testing.retention import RetentionContract, ended
from checkpoints.testing.servers import Clients

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
ALWAYS = StoreSettings(compress_from=0, fold_after_s=0.0)
CANARY = b"canary-7f3a"


class _Sealed:
    """Encrypted, and everything compressed that gets smaller."""

    @pytest.fixture
    async def clients(self, embedded_url: str) -> AsyncIterator[Clients]:
        clients = Clients(embedded_url, ALWAYS, KeyRing({"k1": OLD}))
        yield clients
        await clients.aclose()

    @pytest.fixture
    def new_store(self, clients: Clients) -> NewStore:
        return clients

    @pytest.fixture
    async def vandal(self, clients: Clients) -> Vandal:
        return await clients.vandal(1)


class TestSealedStore(_Sealed, StoreContract):
    """The contract of every store."""


class TestSealedRetention(_Sealed, RetentionContract):
    """The contract of what becomes of finished runs."""


class TestCompressedStore(StoreContract):
    """Compressed only."""

    @pytest.fixture
    async def clients(self, embedded_url: str) -> AsyncIterator[Clients]:
        clients = Clients(embedded_url, ALWAYS)
        yield clients
        await clients.aclose()

    @pytest.fixture
    def new_store(self, clients: Clients) -> NewStore:
        return clients

    @pytest.fixture
    async def vandal(self, clients: Clients) -> Vandal:
        return await clients.vandal(1)


@pytest.fixture
async def clients(embedded_url: str) -> AsyncIterator[Clients]:
    clients = Clients(embedded_url, StoreSettings(fold_after_s=0.0), KeyRing({"k1": OLD}))
    yield clients
    await clients.aclose()


async def filled(store: Any, run_id: RunId = R) -> None:
    """A waiting run with the canary in every place that takes bytes."""
    await store.create(run_id, op="o", body=b"body " + CANARY, snapshot=b"snap " + CANARY)
    claim = await store.claim(run_id, owner="w", nonce="n", term_ms=TERM_MS)
    await store.commit(
        claim.lease,
        commit_of(
            claim,
            b"entry " + CANARY,
            snapshot=b"snap " + CANARY,
            opened=(ask(body=b"ask " + CANARY), ask("q2", quorum=2)),
            outbox=(notice(body=b"out " + CANARY),),
            status="waiting",
            release=True,
        ),
    )
    await store.signal(run_id, signal_id="s", body=b"signal " + CANARY)
    await store.decide(run_id, "q1", decision(body=b"decision " + CANARY))
    await store.decide(run_id, "q2", decision("v1", body=b"vote " + CANARY))
    await store.comment(run_id, "q2", by="mia", text=f"comment {CANARY.decode()}")
    await store.report_orphan(run_id, b"report " + CANARY)
    await store.put_blob(run_id, b"blob " + CANARY)
    await store.publish(run_id, [b"live " + CANARY])


async def test_nothing_that_was_said_can_be_read_in_the_store(clients: Clients) -> None:
    store = await clients()
    vandal: Any = await clients.vandal(1)
    await filled(store)
    await ended(store, RunId("run-2"))
    await store.tidy()

    kept = repr(await vandal.digest())

    assert CANARY.decode() not in kept
    assert "looks packed" not in kept
    reader = await clients()
    assert [s.body for s in await reader.mailbox(R)] == [
        b"signal " + CANARY, b"decision " + CANARY, b"vote " + CANARY,
    ]  # fmt: skip
    (record,) = await reader.asks()
    assert record.comments[0].text == f"comment {CANARY.decode()}"
    assert await reader.orphans(R) == [b"report " + CANARY]
    assert (await reader.head(R)).snapshot == b"snap " + CANARY


async def test_bytes_of_one_place_are_refused_in_another(clients: Clients) -> None:
    store = await clients()
    for run_id in (R, RunId("run-2")):
        await ended(store, run_id)
    call, keys, other = store._line.call, store._of(R), store._of(RunId("run-2"))
    entries = await call("XRANGE", other.journal, "-", "+")
    mine = await call("XRANGE", keys.journal, "-", "+")

    for swapped in (entries[1][1][5], mine[2][1][5], mine[1][1][5][:-1], b"\xc1\x02", b"plain"):
        await call("DEL", keys.journal)
        for item_id, fields in mine:
            body = swapped if item_id == b"2-0" else fields[5]
            await call("XADD", keys.journal, item_id, *fields[:5], body)
        with pytest.raises((CorruptEntry, MissingKey)) as refused:
            await store.journal(R)
        assert "entry 2" in str(refused.value)
    await call("SET", keys.snapshot, await call("GET", other.snapshot))
    with pytest.raises(StoreDiverged, match="snapshot does not decrypt"):
        await store.head(R)
    assert {h.run_id: h.snapshot for h in await store.runs()}[R] == b""


async def test_plain_text_is_refused_where_encryption_is_on(clients: Clients) -> None:
    store = await clients()
    await filled(store)
    await store._line.call("HSET", store._of(R).mailbox, "forged", b"9 1 abc approve everything")

    with pytest.raises(StoreDiverged, match="signal forged is not encrypted"):
        await store.mailbox(R)


async def test_keys_are_rotated_and_old_runs_stay_readable(clients: Clients) -> None:
    await filled(await clients())
    clients.keys = KeyRing({"k2": NEW, "k1": OLD})
    second = await clients()

    claim = await second.claim(R, owner="w", nonce="n2", term_ms=TERM_MS)
    await second.commit(claim.lease, commit_of(claim, b"with the new key"))

    assert len(await second.journal(R)) == 3
    clients.keys = KeyRing({"k2": NEW})  # the namespace opens, and what the old key made does not
    third = await clients()
    with pytest.raises(MissingKey, match="entry 1 is encrypted with the key 'k1'"):
        await third.journal(R)
    assert (await third.head(R)).snapshot == b"snapshot \xff"


async def test_wrong_and_missing_keys_are_said_when_the_store_is_opened(clients: Clients) -> None:
    await clients()
    for keys, error, words in (
        (None, MissingKey, "is encrypted. Give its key: FSM_AGENT_KEYS"),
        (KeyRing({"k9": OLD}), MissingKey, "with the key 'k1', and given were: k9"),
        (KeyRing({"k1": NEW}), StoreUsageError, "with another key than the one that has the id"),
    ):
        clients.keys = keys
        with pytest.raises(error, match=words):
            await clients()


async def test_a_namespace_with_plain_text_is_not_opened_with_keys(embedded: Clients) -> None:
    await started(await embedded())
    embedded.keys = KeyRing({"k1": OLD})

    with pytest.raises(StoreUsageError, match="holds plain text"):
        await embedded()


async def test_keys_come_from_the_environment_or_a_file_and_are_never_shown(
    embedded_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = base64.b64encode(OLD).decode()
    file = tmp_path / "keys"
    file.write_text(f"k1:{encoded}\nk0:{base64.b64encode(NEW).decode()}\n")
    file.chmod(0o600)
    name = f"env{os.getpid()}"
    monkeypatch.setenv("FSM_AGENT_KEYS", f"k1:{encoded}")
    store = await open_store(embedded_url, namespace=name)
    await filled(store)
    assert (await store.facts())["encryption"] == ("k1",)
    assert encoded not in repr(vars(store)) + repr(await store.facts())
    await store.aclose()
    monkeypatch.delenv("FSM_AGENT_KEYS")
    monkeypatch.setenv("FSM_AGENT_KEYS_FILE", str(file))
    store = await open_store(embedded_url, namespace=name)
    assert len(await store.journal(R)) == 2
    await store.aclose()
    file.chmod(0o666)
    with pytest.raises(StoreUsageError, match="changed by others"):
        await open_store(embedded_url, namespace=name)
    monkeypatch.setenv("FSM_AGENT_KEYS_FILE", str(tmp_path / "absent"))
    with pytest.raises(StoreUsageError, match="cannot be read"):
        await open_store(embedded_url, namespace=name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no key"),
        ("c2VjcmV0", "key 1 is not written as ID:BASE64"),
        ("k1:c2VjcmV0", "has 6 bytes instead of 32"),
        ("k1:!!!", "key 1 is not written as"),
        (f"k 1:{base64.b64encode(OLD).decode()}", "key 1 is not"),
        (f"ä:{base64.b64encode(OLD).decode()}", "is no id of a key"),
        (f"a:{base64.b64encode(OLD).decode()},a:{base64.b64encode(NEW).decode()}", "two keys"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_without_being_shown(text: str, words: str) -> None:
    with pytest.raises(StoreUsageError, match=words) as refused:
        KeyRing.parse(text, "FSM_AGENT_KEYS")

    assert "c2VjcmV0" not in str(refused.value)
    assert base64.b64encode(OLD).decode() not in str(refused.value)


async def test_what_one_client_compresses_every_client_reads(embedded: Clients) -> None:
    plain = await embedded()
    embedded.settings = StoreSettings(compress_from=100)
    packing = await embedded()
    body = json.dumps([{"role": "tool", "text": "much of the same"}] * 50).encode()
    claim = await started(packing)
    at = await packing.commit(claim.lease, commit_of(claim, body, b"\xc1 small"))
    await plain.commit(claim.lease, commit_of(at, body))

    entries = await plain.journal(R)

    assert [e.body for e in entries[1:]] == [body, b"\xc1 small", body]
    assert [e.body for e in await packing.journal(R)][1:] == [body, b"\xc1 small", body]
    stored = await plain._line.call("XRANGE", plain._of(R).journal, "2-0", "2-0")
    assert len(stored[0][1][5]) < len(body) / 10


async def test_a_decision_in_the_mailbox_reads_with_any_ask_id(clients: Clients) -> None:
    store = await clients()
    await parked(store, ask("a:b:c"), ask("vote:1:x", quorum=2))

    await store.decide(R, "a:b:c", decision(body=b"1"))
    await store.decide(R, "vote:1:x", decision("v1", body=b"2"))

    assert [s.body for s in await store.mailbox(R)] == [b"1", b"2"]


async def test_live_text_that_is_not_ours_is_left_out(clients: Clients) -> None:
    store = await clients()
    await store._line.call("XADD", store._of(R).live, "*", "b", b"forged")
    await store.publish(R, [b"ours"])

    _, payload = await anext(aiter(store.live(R, after="0-0")))

    assert payload == b"ours"
