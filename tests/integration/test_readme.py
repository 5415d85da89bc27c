"""The README's examples, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsm_agent.testing import ModelServer
from fsm_agent.testing.model_server import load_script

ROOT = Path(__file__).parents[2]
TASK = "Refund order A7, the customer is right."


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    desk, script, main = blocks("python")[:3]
    assert desk.startswith("# desk.py")
    assert script.startswith("# script.py")
    (tmp_path / "desk.py").write_text(desk)
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "main.py").write_text(main)
    return tmp_path


@pytest.fixture
def environment(folder: Path) -> Iterator[dict[str, str]]:
    with ModelServer(load_script(f"{folder / 'script.py'}:script")).in_thread() as server:
        own = {
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "any",
            "FSM_AGENT_MODEL": "scripted",
            "PYTHONPATH": str(folder),
        }
        yield {**os.environ, **own}
        assert server.errors == []


def run(
    command: list[str], folder: Path, environment: dict[str, str], *, code: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr + done.stdout
    return done


def cli(*words: str) -> list[str]:
    return [sys.executable, "-m", "fsm_agent", *words]


def test_the_python_example_ends_with_its_answer(folder: Path, environment: dict[str, str]) -> None:
    done = run([sys.executable, "main.py"], folder, environment)

    shown, last = done.stdout.splitlines()
    assert shown.startswith('refund {"amount":42,"order":"A7"}')
    assert last == "done Order A7 was paid back."


def test_the_commands_of_the_example_lead_to_the_answer(
    folder: Path, environment: dict[str, str]
) -> None:
    started = run(
        cli("run", "--agent", "desk.py:agent", TASK, "--run-id", "r-readme"),
        folder,
        environment,
        code=3,
    )
    assert "fsm-agent approve r-readme" in started.stdout + started.stderr

    listed = run(cli("list", "--json"), folder, environment)
    assert json.loads(listed.stdout.splitlines()[0])["run_id"] == "r-readme"
    run(cli("approve", "r-readme"), folder, environment)
    ended = run(cli("resume", "r-readme"), folder, environment)
    shown = run(cli("show", "r-readme"), folder, environment)

    assert "Order A7 was paid back." in ended.stdout
    assert "refund" in shown.stdout


def test_the_lines_of_the_testing_section_work(folder: Path) -> None:
    namespace: dict[str, object] = {"script": load_script(f"{folder / 'script.py'}:script")}

    exec(next(block for block in blocks("python") if "import ModelServer" in block), namespace)


def test_the_approvals_section_declares_tools() -> None:
    namespace: dict[str, object] = {}

    exec(next(block for block in blocks("python") if "over_100_in_all" in block), namespace)

    tools = namespace["tools"]
    assert isinstance(tools, list)
    assert [each.name for each in tools] == ["refund", "delete_account", "ask_user"]


def test_the_crash_test_of_the_example_passes(folder: Path) -> None:
    (command,) = [b for b in blocks("sh") if b.startswith("fsm-agent crashtest")]
    _, *words = shlex.split(command)

    done = run(cli(*words), folder, dict(os.environ))

    table = next(block for block in blocks("text") if block.startswith("where"))
    shown, told = table.splitlines(), done.stdout.splitlines()
    assert told[:-1] == shown[:-1]
    assert re.sub(r"in \d+ s", "", told[-1]) == re.sub(r"in \d+ s", "", shown[-1])


def test_the_crash_test_in_pytest_passes(folder: Path) -> None:
    code = next(block for block in blocks("python") if "crash_sweep" in block)
    (folder / "test_desk.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")

    done = run([sys.executable, "-m", "pytest", "-q", "test_desk.py"], folder, dict(os.environ))

    assert "1 passed" in done.stdout
