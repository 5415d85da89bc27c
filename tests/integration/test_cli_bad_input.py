"""Bad input: one line on stderr that names the thing, an exit code, no traceback, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsm_agent.testing import Script, otherwise
from fsm_agent.testing.model_server import ModelServer
from tests.integration.cli_kit import Cli, cli, kept_store, model_url

__all__ = ["cli", "kept_store", "model_url"]  # fixtures

AGENT = ("--agent", "desk.py:agent")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "r-nope"], 2, "no run is named 'r-nope'"),
        (["watch", "r-nope"], 2, "no run is named 'r-nope'"),
        (["resume", "r-nope"], 2, "no run is named 'r-nope'"),
        (["approve", "r-nope"], 2, "no run is named 'r-nope'"),
        (["cancel", "r-nope"], 2, "no run is named 'r-nope'"),
        (["say", "r-nope", "hi"], 2, "no run is named 'r-nope'"),
        (["graph", "r-nope"], 2, "no run is named 'r-nope'"),
        (["show", "a:b*"], 2, "'a:b*' is not a run id"),
        (["show", "x\x1b]0;owned\x07"], 2, "is not a run id"),
        (["show", "r" * 10_000], 2, "is not a run id"),
        (["run", *AGENT, "plain", "--run-id", "../x"], 2, "'../x' is not a run id"),
        (["list", "--store", "mysql://x"], 2, "'mysql://x' is not a store address"),
        (["list", "--store", "redis://u:secret@h/x"], 2, "is not a store address"),
        (["list", "--store", ""], 2, "set FSM_AGENT_STORE"),
        (["list", "--store", "redis://localhost:1"], 1, "no Redis at localhost:1"),
        (["list", "--store", "unix:///nowhere.sock"], 1, "/nowhere.sock"),
        (["list", "--store", "embedded:/proc/none"], 2, "'embedded:/proc/none' cannot be used"),
        (["run", "--agent", "desk.py", "x"], 2, "'desk.py' is not the path of an agent"),
        (["run", "--agent", "gone.py:agent", "x"], 2, "there is no file gone.py"),
        (["run", "--agent", "desk.py:agnt", "x"], 2, "Did you mean 'agent'?"),
        (["run", "--agent", "desk.py:HERE", "x"], 2, "not an Agent"),
        (["run", "--agent", "broken.py:agent", "x"], 2, "SyntaxError"),
        (["run", "--agent", "leaves.py:agent", "x"], 2, "leaves.py:agent fails when imported"),
        (["run", "--agent", "no.such.module:agent", "x"], 2, "there is no module"),
        (["run", *AGENT, " "], 2, "the task is empty"),
        (["run", *AGENT], 2, "Missing argument 'TASK'"),
        (["run", "x"], 2, "Missing option '--agent'"),
        (["run", *AGENT, "x", "--max-turns", "0"], 2, "--max-turns"),
        (["worker", "--once", "--store", "embedded:fresh"], 2, "has no agent to work for"),
        (["aprove", "r-1"], 2, "Did you mean 'approve'?"),
        (["list", "--status", "nice"], 2, "'nice'"),
        (["edit", "r-1", "--args", "{"], 2, "--args is not JSON"),
        (["edit", "r-1", "--args", "[1]"], 2, "must be a JSON object"),
        (["edit", "r-1", "--args", "@gone.json"], 2, "@gone.json"),
        (["approve", "r-1", "--hash", "xyz!"], 2, "hex digits"),
        (["settle", "r-1"], 2, "--happened, --rerun and --fail"),
        (["settle", "r-1", "--rerun", "--fail"], 2, "--happened, --rerun and --fail"),
        (["reject", "r-1"], 2, "--reason"),
        (["graph", "-o", "/proc/none/x.dot"], 1, "/proc/none/x.dot"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(cli: Cli, arguments: list[str], code: int, words: str) -> None:
    (cli.folder / "broken.py").write_text("def f(:\n")
    (cli.folder / "leaves.py").write_text("raise SystemExit('bye')\n")

    done = cli(*arguments)

    assert done.code == code
    assert done.out == ""
    assert words in done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert "\x1b" not in done.err
    assert "secret" not in done.err


def test_without_a_key_nothing_is_put_on_record(cli: Cli) -> None:
    done = cli("run", *AGENT, "plain", "--run-id", "no-key", env={"OPENAI_BASE_URL": ""})
    shown = cli("show", "no-key")

    assert done.code == 2
    assert done.err.startswith("error: no API key for the model. Set OPENAI_API_KEY")
    assert shown.code == 2


def test_without_a_model_name_nothing_is_put_on_record(cli: Cli) -> None:
    done = cli("run", *AGENT, "plain", "--run-id", "no-model", env={"FSM_AGENT_MODEL": ""})

    assert done.code == 2
    assert "FSM_AGENT_MODEL" in done.err
    assert cli("show", "no-model").code == 2


def test_a_wrong_key_keeps_the_run_for_the_right_one(cli: Cli) -> None:
    script = Script(otherwise("Here it is.", label="FINISH"))
    with ModelServer(script, api_key="right").in_thread() as server:
        url = {"OPENAI_BASE_URL": server.base_url}
        refused = cli("run", *AGENT, "plain", env=url | {"OPENAI_API_KEY": "wrong-one"})
        line = refused.err.splitlines()[-1]
        resumed = cli("resume", refused.run_id, env=url | {"OPENAI_API_KEY": "right"})

    assert refused.code == 1
    assert "Check OPENAI_API_KEY" in line
    assert f"fsm-agent resume {refused.run_id}" in line
    assert "wrong-one" not in refused.err
    assert resumed.code == 0
    assert resumed.out == "Here it is.\n"


def test_a_model_server_that_is_away_keeps_the_run(cli: Cli, model_url: str) -> None:
    away = cli("run", *AGENT, "plain", env={"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})
    resumed = cli("resume", away.run_id)

    assert away.code == 1
    assert "no model server at http://127.0.0.1:1/v1" in away.err.splitlines()[-1]
    assert resumed.code == 0


def test_a_corrupt_entry_is_named_and_nothing_is_changed(cli: Cli) -> None:
    store = f"embedded:{cli.folder / 'own'}"
    cli.store = store
    run_id = cli.run("pay").run_id
    _flip_a_byte(cli.folder / "own", run_id)

    shown = cli("show", run_id)
    resumed = cli("resume", run_id)
    listed = cli("list")

    for done in (shown, resumed):
        assert done.code == 1
        assert "entry 3 is corrupt" in done.err
        assert done.err.count("\n") == 1
    assert listed.code == 0
    assert run_id in listed.out


def _flip_a_byte(folder: Path, run_id: str) -> None:
    """Change a stored entry, as a failing disk would: by hand, below the store."""
    import redis

    from checkpoints.embedded import EmbeddedServer

    server = EmbeddedServer(folder)
    client = redis.Redis(unix_socket_path=server.enter())
    for key in client.scan_iter(f"*{run_id}*"):
        if client.type(key) == b"stream":
            entries = client.xrange(key)
            client.delete(key)
            for number, (entry_id, fields) in enumerate(entries, 1):
                if number == 3:
                    name = max(fields, key=lambda field: len(fields[field]))
                    fields[name] = bytes([*fields[name][:-1], fields[name][-1] ^ 1])
                client.xadd(key, fields, id=entry_id)
    client.close()
    server.leave()


def test_a_folder_that_may_not_be_written_is_named(cli: Cli) -> None:
    (cli.folder / "a-file").write_text("")

    done = cli("list", "--store", "embedded:a-file/below")

    assert done.code == 2
    assert "a-file/below" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", ["show", "list"])
def test_a_reader_that_goes_away_ends_the_command_quietly(cli: Cli, command: str) -> None:
    run_id = cli.run("look").run_id
    arguments = [command, run_id] if command == "show" else [command, "-n", "500"]
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [sys.executable, "-m", "fsm_agent", *arguments, "--json"],
        cwd=cli.folder,
        env=cli.env | {"FSM_AGENT_STORE": cli.store},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)

    assert done.returncode == 141
    assert done.stderr == ""


def test_a_reader_that_goes_away_from_a_run_gives_it_back(cli: Cli) -> None:
    begun = cli.start("run", *AGENT, "slow", "--json", "--run-id", f"gone-{os.getpid()}")
    assert begun.stdout
    begun.stdout.readline()
    begun.stdout.close()
    begun.stdout = None
    ended = cli.end(begun)
    (head,) = [
        h for h in cli("list", "--json", "-n", "500").objects if h["run_id"].startswith("gone-")
    ]

    assert ended.code == 141
    assert head["status"] == "ready"
