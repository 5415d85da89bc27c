"""Terminals, pipes and streams that are not there: what is done stays done, and is told so."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from fsm_agent.run.limits import Limits
from fsm_agent.telling.early import early
from tests.integration.cli_kit import Cli, Done, cli, interrupt, kept_store, model_url, until
from tests.integration.test_cli_bad_input import _flip_a_byte

__all__ = ["cli", "kept_store", "model_url"]  # fixtures

AGENT = ("--agent", "desk.py:agent")


def _in_shell(cli: Cli, line: str) -> Done:
    """A line of a shell, in which `fsm-agent` is the command."""
    call = f'fsm-agent() {{ "{sys.executable}" -m fsm_agent "$@"; }}\n{line}'
    done = subprocess.run(
        ["bash", "-c", call],
        cwd=cli.folder,
        env=cli.env | {"FSM_AGENT_STORE": cli.store},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def _pasteable(text: str, verb: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if f"fsm-agent {verb} " in line]


# -- what is pasted --------------------------------------------------------------------------------


def test_every_command_for_a_call_in_doubt_is_whole_and_says_one_thing(cli: Cli) -> None:
    begun = cli.start("run", *AGENT, "risky", "--lease", "1")
    until((cli.folder / "risky.txt").exists)
    begun.kill()
    run_id = cli.end(begun).run_id
    resumed = cli("resume", run_id, "--wait")
    lines = _pasteable(resumed.err, "settle")
    listed = next(h for h in cli("list", "--json").objects if h["run_id"] == run_id)
    wrong = cli("approve", run_id)
    pasted = _in_shell(cli, lines[2])

    assert [shlex.split(line, comments=True)[-1] for line in lines] == [
        "--happened", "--rerun", "--fail",
    ]  # fmt: skip
    assert not any("|" in line for line in lines)
    assert "did it happen?:" not in resumed.err
    assert listed["stands"] == "needs a person"
    assert wrong.code == 2
    assert "settle, with one of --happened, --rerun and --fail" in wrong.err
    assert pasted.code == 0
    assert "settled as 'nobody knows'" in pasted.out


@pytest.mark.parametrize("verb", ["reject", "edit", "answer"])
def test_a_command_that_lacks_its_words_decides_nothing_when_it_is_pasted(
    cli: Cli, verb: str
) -> None:
    waiting = cli.run("pay")
    (line,) = _pasteable(waiting.err, verb)

    pasted = _in_shell(cli, line)
    (head,) = [h for h in cli("list", "--json").objects if h["run_id"] == waiting.run_id]

    assert pasted.code == 2
    assert "is missing, and there is no terminal to ask for it" in pasted.err
    assert head["stands"] == "needs a person"


# -- readers that have gone ------------------------------------------------------------------------


def test_a_decision_whose_reader_has_gone_is_recorded_and_says_so(cli: Cli) -> None:
    run_id = cli.run("pay").run_id

    approved = _in_shell(cli, f"fsm-agent approve {run_id} | true; exit ${{PIPESTATUS[0]}}")
    (head,) = [h for h in cli("list", "--json").objects if h["run_id"] == run_id]
    worked = _in_shell(cli, f"fsm-agent resume {run_id} | true; exit ${{PIPESTATUS[0]}}")
    again = _in_shell(cli, f"fsm-agent resume {run_id} >&-")

    assert approved.code == 0
    assert (head["stands"], head["needs"]) == ("decided, needs a worker", "worker")
    assert (worked.code, again.code) == (0, 0)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("fsm-agent --help | true; exit ${PIPESTATUS[0]}", 141),
        ("fsm-agent cancel {run_id} | true; exit ${PIPESTATUS[0]}", 0),
        ("fsm-agent show {run_id} >&-", 0),
        ("fsm-agent show {run_id} 2>&-", 0),
        ("fsm-agent show {run_id} <&- >&- 2>&-", 0),
        ("fsm-agent show nothing 2>&-", 2),
        ("fsm-agent show {run_id} > /dev/full", 1),
        ("fsm-agent show nothing 2> /dev/full", 2),
    ],
)
def test_streams_that_lead_nowhere_are_met_without_a_traceback(
    cli: Cli, line: str, code: int
) -> None:
    run_id = cli.run("x", "--detach").run_id

    done = _in_shell(cli, line.replace("{run_id}", run_id))

    assert done.code == code
    assert done.err.count("\n") <= 2
    if "> /dev/full" in line and code == 1:
        assert done.err.startswith("error: no space left on device. ")


# -- terminals -------------------------------------------------------------------------------------


def test_what_was_typed_before_the_question_does_not_answer_it(cli: Cli) -> None:
    env = cli.env | {"TERM": "xterm-256color", "FSM_AGENT_STORE": cli.store}
    ours, theirs = pty.openpty()
    os.write(ours, b"a\na\n\na\n")
    until(lambda: bool(select.select([theirs], [], [], 0)[0]))  # it waits to be read
    process = subprocess.Popen(
        [sys.executable, "-m", "fsm_agent", "run", *AGENT, "pay"],
        cwd=cli.folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    shown = _read_until(ours, b"[a] approve")
    time.sleep(0.5)  # an answer that was typed ahead would be read by now
    is_paid = (cli.folder / "paid.txt").exists()
    termios.tcflush(theirs, termios.TCIFLUSH)
    os.write(ours, b"s\n")
    _read_until(ours, b"fsm-agent reject")
    os.close(theirs)
    code = process.wait(timeout=60)
    os.close(ours)

    assert b"pay needs your approval" in shown
    assert not is_paid
    assert code == 3


def _read_until(terminal: int, words: bytes) -> bytes:
    shown, end = b"", time.monotonic() + 90
    while words not in shown:
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 65_536)
    return shown


# -- ends and inputs -------------------------------------------------------------------------------


def test_an_end_names_the_limit_that_came_first_everywhere(cli: Cli) -> None:
    rescued = cli.run("gibberish")
    limited = cli.run("look", "--max-turns", "1")
    shown = cli("show", rescued.run_id)
    (head,) = [h for h in cli("list", "--json").objects if h["run_id"] == rescued.run_id]
    told = cli("show", rescued.run_id, "--json").objects[-1]

    words = early(told["reason"], Limits())
    assert told["reason"] in ("repairs", "loop")
    assert f"the answer is not completed. {words} (" in rescued.err
    assert f"not completed ({words})" in shown.out
    assert head["stands"] == "not completed"
    assert "done      finished early: the limit on turns was reached. 2 turns" in limited.err


def test_a_cancelled_run_is_listed_as_cancelled(cli: Cli) -> None:
    run_id = cli.run("pay").run_id
    cli("cancel", run_id, "-m", "enough")
    cli("resume", run_id)

    row = next(line for line in cli("list").out.splitlines() if run_id in line)

    assert "  cancelled  " in row


def test_graph_as_json_is_json(cli: Cli) -> None:
    run_id = cli.run("plain").run_id

    (told,) = cli("graph", run_id, "--json").objects

    assert (told["format"], told["current"]) == ("mermaid", "DONE")
    assert told["path"][-1] == "DONE"
    assert told["text"].startswith("stateDiagram-v2")


def test_the_demo_refuses_a_store_instead_of_ignoring_it(cli: Cli) -> None:
    after = cli("demo", "--store", cli.store)
    before = cli("--store", cli.store, "demo")

    assert (after.code, before.code) == (2, 2)
    assert "--store" in after.err
    assert "store of its own" in before.err


def test_a_decision_on_a_run_whose_journal_is_corrupt_is_refused(cli: Cli) -> None:
    cli.store = f"embedded:{cli.folder / 'own'}"
    run_id = cli.run("pay").run_id
    _flip_a_byte(cli.folder / "own", run_id)

    done = cli("approve", run_id)

    assert done.code == 1
    assert "entry 3 is corrupt" in done.err


@pytest.mark.parametrize("how", ["argument", "stdin", "reason"])
def test_text_that_is_not_utf8_is_refused_in_one_line(cli: Cli, how: str) -> None:
    bad = b"caf\xe9"
    arguments: list[str | bytes] = {
        "argument": ["run", *AGENT, bad],
        "stdin": ["run", *AGENT, "-"],
        "reason": ["cancel", "r-1", "-m", bad],
    }[how]

    done = subprocess.run(
        [sys.executable, "-m", "fsm_agent", *arguments],
        cwd=cli.folder,
        env=cli.env | {"FSM_AGENT_STORE": cli.store, "LC_ALL": "C.UTF-8"},
        input=bad,
        capture_output=True,
        check=False,
    )

    assert done.returncode == 2
    assert b"UTF-8" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_model_server_whose_port_is_taken_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "from fsm_agent.testing import Script, otherwise\nscript = Script(otherwise('x'))\n"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "fsm_agent.testing.model_server",
             str(tmp_path / "script.py:script"), "--port", str(port)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert done.returncode == 1
    assert f"cannot serve on port {port}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_names_every_exit_code(cli: Cli) -> None:
    shown = " ".join(cli("--help").out.split())

    for words in ("1 failed or done but not completed", "3 waiting", "130", "143", "141"):
        assert words in shown


def test_ctrl_c_in_the_demo_says_what_is_left(cli: Cli) -> None:
    cli.env |= {"TMPDIR": str(cli.folder)}
    demo = cli.start("demo", "--json")
    assert demo.stdout
    json.loads(demo.stdout.readline())
    interrupt(demo)
    ended = cli.end(demo)
    (folder,) = cli.folder.glob("fsm-agent-demo-*")

    assert ended.code == 130
    assert f"rm -r {folder}" in ended.err
    assert f"fsm-agent list --store embedded:{folder}/store" in ended.err
