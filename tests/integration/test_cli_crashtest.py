"""`fsm-agent crashtest`, as a user starts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.testing import ModelServer, Script, call, when

AGENT = '''
from fsm_agent import Agent, tool

print("noise of the agent's file")

@tool(approval="always")
def pay(cents: int) -> str:
    """Pay."""
    print("noise of a tool")
    return f"paid {cents}"

@tool(effect="read")
def unused() -> str:
    """Never called."""
    return ""

agent = Agent("payer <b>", "Pay.", tools=[pay, unused])
'''
SCRIPT = """
from fsm_agent.testing import Script, call, when

script = Script(
    when(tool="pay").then("It is paid.", label="FINISH"),
    when(user="pay").then(tool_calls=[call("pay", cents=5)], label="TOOL"),
)
"""
TASK = ("--task", "pay 5 cents")
ALL = ("payer.py:agent", "--script", "script.py:script", *TASK)


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path, whose name is too long for sockets: the sweep would go to another place.
    folder = Path(tempfile.mkdtemp(prefix="fsm-"))
    (folder / "payer.py").write_text(AGENT)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "tmp").mkdir()
    yield folder
    shutil.rmtree(folder)


def environment(folder: Path, **more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI")}
    return own | {"TMPDIR": str(folder / "tmp")} | more


def crashtest(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fsm_agent", "crashtest", *words],
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=100,
    )


def last(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_sweep_ends_with_its_figures_and_a_page(folder: Path) -> None:
    done = crashtest(folder, *ALL, "--json", "--html", "out.html", "--jobs", "2")

    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    *cases, figures = rows
    assert figures == last(done)
    assert figures["ok"]
    assert figures["runs"] == figures["points"] == len(cases)
    assert figures["effects"]["pay"]["most"] == figures["effects"]["pay"]["least"] == 1
    assert figures["in_doubt"] == sum(case["colour"] == "amber" for case in cases) > 0
    assert figures["uncalled"] == ["unused"]
    assert "payer &lt;b&gt;" in (folder / "out.html").read_text()
    assert list((folder / "tmp").iterdir()) == []


def test_what_tools_print_does_not_mix_with_the_output(folder: Path) -> None:
    done = crashtest(folder, *ALL, "--json", "--replay", "tool pay#1:after=kill")

    assert done.returncode == 0, done.stderr
    assert "noise of a tool" not in done.stdout + done.stderr


@pytest.mark.parametrize("line", ["tool pay#1:before=kill", "wire commit#2=LOADING"])
def test_the_line_of_a_case_plays_just_this_case(folder: Path, line: str) -> None:
    done = crashtest(folder, *ALL, "--json", "--replay", f"seed=4; {line}")

    case, figures = (json.loads(x) for x in done.stdout.splitlines() if x.startswith("{"))
    assert case["case"] == line
    assert case["replay"].endswith(f"--replay 'seed=4; {line}'")
    assert (figures["runs"], figures["points"], figures["ok"]) == (1, 1, True)


def test_a_point_that_is_not_reached_is_a_failure_with_its_line(folder: Path) -> None:
    done = crashtest(folder, *ALL, "--replay", "commit#99:after=kill", "--approve", "pay")

    assert done.returncode == 1
    assert "never reached" in done.stdout
    assert "--script script.py:script --approve pay --replay 'commit#99:after=kill'" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("failed: 1 of 1 run over no point in")


def test_a_budget_that_is_too_small_is_a_failure(folder: Path) -> None:
    done = crashtest(folder, *ALL, "--budget", "0.001s")

    assert done.returncode == 1
    assert "the budget was used up" in done.stdout


def test_the_demo_is_tested_in_one_command(folder: Path) -> None:
    done = crashtest(folder, "--demo", "--json", "--replay", "tool issue_refund#1:after=kill")

    assert done.returncode == 0, done.stderr
    assert last(done)["in_doubt"] == 1
    assert last(done)["uncalled"] == []


def test_a_configured_model_is_asked_once_for_each_request(folder: Path) -> None:
    script = Script(
        when(tool="pay").then("It is paid.", label="FINISH"),
        when(user="pay").then(tool_calls=[call("pay", cents=5)], label="TOOL"),
    )
    with ModelServer(script).in_thread() as server:
        done = crashtest(
            folder, "payer.py:agent", *TASK, "--json",
            OPENAI_BASE_URL=server.base_url, FSM_AGENT_MODEL="m",
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert last(done)["runs"] > 10
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "name the agent"),
        (("payer.py:agent",), 2, "--task"),
        (("payer.py:agent", "--task", " "), 2, "--task"),
        (("nobody.py:agent", *TASK), 2, "no file nobody.py"),
        (("payer.py:agent", "--script", "gone.py:script", *TASK), 2, "gone.py"),
        (("payer.py:agent", "--script", "script.py:other", *TASK), 2, "'other'"),
        (("payer.py:agent", "--script", "script.py", *TASK), 2, "names no script"),
        ((*ALL, "--replay", "refund"), 2, "it is not POINT=FAULT"),
        ((*ALL, "--replay", ""), 2, "names no fault"),
        ((*ALL, "--budget", "soon"), 2, "no length of time"),
        ((*ALL, "--approve", "pya"), 2, "Did you mean 'pay'?"),
        ((*ALL, "--faults", "store", "--pairs", "all"), 2, "pairs of kills"),
        ((*ALL, "--html", "nowhere/out.html"), 2, "no folder nowhere"),
        (("--store", "embedded:x", *ALL), 2, "store"),
        (("payer.py:agent", *TASK), 2, "OPENAI_API_KEY"),
        (("payer.py:agent", "--script", "script.py:script", "--task", "dance"), 1, "undisturbed"),
    ],
)
def test_what_cannot_be_tested_is_told_in_one_line(
    folder: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    done = crashtest(folder, *words)

    assert done.returncode == code, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert said in errors[0]
    assert "Traceback" not in done.stderr
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_sweep_that_is_stopped_leaves_nothing_behind(
    folder: Path, number: signal.Signals, code: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fsm_agent", "crashtest", *ALL, "--pairs", "all", "--jobs", "2"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _until(lambda: any((folder / "tmp").glob("fsm-crash-*/cases/case-3-*")))
        # A terminal's Ctrl-C reaches the whole group.
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)

        assert process.wait(timeout=30) == code
        _until(lambda: not list((folder / "tmp").iterdir()))
        _until(lambda: not _members(process.pid))
    finally:
        if _members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


def _until(holds: Any, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.01)


def _members(session: int) -> list[str]:
    """The processes of the session that are still there: the sweep and all that it forked."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(stat.parent.name)
    return found
