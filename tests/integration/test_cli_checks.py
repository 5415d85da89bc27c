"""What doctor and the demo's verdict say of good and bad findings, and what clean text is."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from checkpoints.address import parse
from checkpoints.testing.servers import start_redis
from fsm_agent.cli import asjson
from fsm_agent.cli.clean import cleaned, one_line, piece
from fsm_agent.cli.demo import verdict
from fsm_agent.cli.demo.stage import Sending
from fsm_agent.runtime import Result
from fsm_agent.telling import checks
from tests.integration.cli_kit import Cli, cli, kept_store, model_url, until

__all__ = ["cli", "kept_store", "model_url"]  # fixtures

GOOD: dict[str, Any] = {
    "server": "valkey",
    "version": "8.1.4",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "role": "master",
    "connected_slaves": "1",
    "min-replicas-to-write": "1",
    "bind": "127.0.0.1",
    "protected-mode": "yes",
}


@pytest.mark.parametrize(
    ("change", "name", "level"),
    [
        ({}, "promise", "green"),
        ({"version": "6.0.16", "server": "redis"}, "version", "red"),
        ({"version": "7.0.15", "server": "redis"}, "version", "yellow"),
        ({"version": "7.2.10", "server": "redis"}, "version", "yellow"),
        ({"version": "8.2.2", "server": "redis"}, "version", "green"),
        ({"version": "9.0.0"}, "version", "green"),
        ({"version": ""}, "version", "yellow"),
        ({"appendonly": "no"}, "persistence", "red"),
        ({"appendonly": "no"}, "promise", "red"),
        ({"appendfsync": "always"}, "persistence", "green"),
        ({"appendfsync": "no"}, "persistence", "yellow"),
        ({"aof_last_write_status": "err"}, "persistence", "red"),
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "1000"}, "eviction", "red"),
        ({"maxmemory-policy": "allkeys-lru"}, "eviction", "yellow"),
        ({"maxmemory-policy": "volatile-ttl", "maxmemory": "1000"}, "eviction", "yellow"),
        ({"role": "slave"}, "copies", "red"),
        ({"connected_slaves": "0"}, "copies", "yellow"),
        ({"min-replicas-to-write": "0"}, "copies", "yellow"),
        ({"min-replicas-to-write": "2"}, "copies", "red"),
        ({"used_memory": "1000", "maxmemory": "2000"}, "memory", "green"),
        ({"used_memory": "1700", "maxmemory": "2000"}, "memory", "yellow"),
        ({"used_memory": "1900", "maxmemory": "2000"}, "memory", "red"),
        ({"used_memory": str(2 << 30)}, "memory", "yellow"),
        ({}, "waits for", "yellow"),
        ({"connected_slaves": "0"}, "waits for", "green"),
        ({"durability": "memory:1 before an unsafe tool starts"}, "waits for", "green"),
        ({"durability": "disk:2 before every commit"}, "waits for", "red"),
        ({"durability": "disk:0 before an unsafe tool starts"}, "waits for", "green"),
        ({"durability": "disk:0 before …", "appendfsync": "no"}, "waits for", "red"),
        ({"encryption": ("k2", "k1"), "compress_from": 1024}, "at rest", "green"),
        ({"bind": "* -::*", "protected-mode": "no"}, "access", "red"),
    ],
)  # fmt: skip
def test_doctor_judges_a_server(change: dict[str, Any], name: str, level: str) -> None:
    found = checks.store(GOOD | change, parse("redis://localhost"), 1)

    (check,) = [check for check in found if check.name == name]

    assert check.level == level


@pytest.mark.parametrize(
    ("store", "level"),
    [
        ("embedded:here", "green"),
        ("unix:///run/redis.sock", "green"),
        ("redis://localhost", "green"),
        ("redis://far.example", "red"),
        ("redis://:secret@far.example", "yellow"),
        ("rediss://:secret@far.example", "green"),
    ],
)
def test_doctor_judges_how_a_store_is_reached(store: str, level: str) -> None:
    found = checks.store(GOOD, parse(store), 1)

    (check,) = [check for check in found if check.name == "access"]

    assert check.level == level
    assert not any("secret" in check.words for check in found)


def test_doctor_fails_on_a_server_that_keeps_nothing(cli: Cli, tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.fail("there is no redis-server for this test. Run: apt-get install redis-server")
    socket = tmp_path / "r.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL, cwd=tmp_path)
    try:
        until(socket.exists)
        done = cli("doctor", "--store", f"unix://{socket}")
    finally:
        server.kill()
        server.wait()

    assert done.code == 1
    assert "red     persistence  no append-only file" in done.out


def test_the_verdict_notices_what_is_not_so() -> None:
    result = Result(run_id="r", status="done", answer="x", is_completed=True)
    twice = [Sending("refund", "k1", True), Sending("refund", "k2", True)]
    effects = [
        verdict.count(
            "note", [Sending("note", "k", True), Sending("note", "k", False)], expected=1
        ),
        verdict.count("refund", twice, expected=1),
    ]

    found = verdict.checks(result, [], killed_code=0, cut=None, effects=effects)
    wrong = {check.words for check in found if not check.is_so}

    assert effects[0] == verdict.Effect("note", 2, 1, ("k",), 1)
    assert wrong == {
        "worker 1 was ended by SIGKILL",
        "the SIGKILL fell while send_credit_note ran",
        "another process took over",
        "three processes worked on it",
        "refund: took effect once",
    }


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;c3RvbGVu\x07x", "x"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title never ends", ""),
        ("a\x9b2Jb\x85c\x7fd", "abcd"),
        ("pay \u202e001\u2069 now", "pay 001 now"),
        ("half \ud800 pair", "half ? pair"),
        ("carriage\rreturn\r\n", "carriagereturn\n"),
    ],
)
def test_cleaned_text_commands_no_terminal(text: str, clean: str) -> None:
    assert cleaned(text) == clean


def test_a_sequence_that_is_cut_between_pieces_is_harmless() -> None:
    shown = piece("a\x1b") + piece("]52;c;c3RvbGVu\x07b")

    assert not {"\x1b", "\x07"} & set(shown)
    assert one_line("a\n b\x1b[2J" + "c" * 200, 10) == "a bcccccc…"


def test_json_is_the_same_value_without_what_terminals_obey() -> None:
    value = {"text": "a\x9bb\u202ec\x1bdé"}

    line = asjson.line(value)

    assert json.loads(line) == value
    assert not {"\x9b", "\u202e", "\x1b"} & set(line)
    assert "é" in line


def test_doctor_says_how_bytes_are_kept_and_prints_no_key(cli: Cli, tmp_path: Path) -> None:
    key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    sealed = {"FSM_AGENT_KEYS": f"k7:{key}", "FSM_AGENT_STORE": f"embedded:{tmp_path}/sealed"}

    done = cli("doctor", env=sealed)
    run = cli("run", "--agent", "desk.py:agent", "plain", env=sealed)
    without = cli("list", env={"FSM_AGENT_STORE": sealed["FSM_AGENT_STORE"]})

    assert "encrypted with the key k7" in done.out
    assert (run.code, cli("show", run.run_id, env=sealed).code) == (0, 0)
    assert (without.code, "Give its key: FSM_AGENT_KEYS" in without.err) == (2, True)
    assert key not in done.out + done.err + run.err + without.err


def test_doctor_prints_rules_that_a_server_takes(cli: Cli, tmp_path: Path) -> None:
    socket = tmp_path / "r.sock"
    rules = cli("doctor", "--acl").out.replace(">PASSWORD", ">pass")
    (tmp_path / "users.acl").write_text(
        "\n".join(line for line in rules.splitlines() if line.startswith("user "))
    )
    server = start_redis(socket, tmp_path, "--aclfile", str(tmp_path / "users.acl"))
    try:
        loaded = cli("doctor", "--load-scripts", "--store", f"unix://agents-loader:pass@{socket}")
        strict = f"unix://agents-strict:pass@{socket}"
        done = cli("run", "--agent", "desk.py:agent", "look", "--store", strict)
        looked = cli("doctor", "--store", f"unix://agents:pass@{socket}")
    finally:
        server.kill()
        server.wait()

    assert (loaded.code, done.code) == (0, 0), (loaded, done)
    assert "the server does not say" not in looked.out
    assert "memory" in looked.out
    assert {o["user"] for o in cli("doctor", "--acl", "--json").objects} == {
        "agents", "agents-strict", "agents-loader",
    }  # fmt: skip
