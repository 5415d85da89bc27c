"""What the tests of the command line share: real processes, a kept store, a scripted model."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from checkpoints.embedded import EmbeddedServer
from fsm_agent.testing import Script, call, when
from fsm_agent.testing.model_server import ModelServer

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = CHECKOUT / "examples"
PATIENCE_S = 60.0

AGENT = '''
import asyncio, os, pathlib, time
from fsm_agent import Agent, ToolContext, ask_user, keyed, tool

HERE = pathlib.Path(__file__).parent

@tool(effect="read")
def look(what: str) -> str:
    """Look at something."""
    return f"seen: {what}"

@tool(approval="always")
def pay(cents: int) -> str:
    """Pay."""
    with open(HERE / "paid.txt", "a") as out:
        out.write(f"{cents}\\n")
    return f"paid {cents}"

@tool(effect="read", timeout_s=120)
async def slow() -> str:
    """Take long."""
    (HERE / "slow.txt").write_text("started")
    await asyncio.sleep(60)
    return "at last"

@tool(timeout_s=120)
async def risky() -> str:
    """Do something that nobody can repeat."""
    with open(HERE / "risky.txt", "a") as out:
        out.write("done\\n")
    if not (HERE / "quick").exists():
        await asyncio.sleep(60)
    return "it was done"

agent = Agent("desk", "Work.", tools=[look, pay, slow, risky, ask_user])
other = Agent("another", "Work.")
'''

SCRIPT = Script(
    when(tool="ask_user").then("You said it.", label="FINISH"),
    when(tool="pay", result=re.compile("refused")).then("Not paid.", label="FINISH"),
    when(tool="pay").then("It is paid.", label="FINISH"),
    when(tool=re.compile("look|slow|risky|ghost")).then("I have seen it.", label="FINISH"),
    when(user="pay twice").then(
        label="TOOL", tool_calls=[call("pay", cents=1), call("pay", cents=2)]
    ),
    when(user="pay").then(label="TOOL", tool_calls=[call("pay", cents=100)]),
    when(user="look").then(
        label="TOOL", thinking="I should look.", tool_calls=[call("look", what="it")]
    ),
    when(user="slow").then(label="TOOL", tool_calls=[call("slow")]),
    when(user="risky").then(label="TOOL", tool_calls=[call("risky")]),
    when(user="ghost").then(label="TOOL", tool_calls=[call("ghost", a=1)]),
    when(user="question").then(
        label="TOOL", tool_calls=[call("ask_user", question="Which one?", options=["a", "b"])]
    ),
    when(user="escape").then("A\x1b]52;c;c3RvbGVu\x07B\x1b[2JC\u202eD", label="FINISH"),
    when(anywhere="gibberish").then("no label at all"),
    when(user="plain").then("The plain answer.", label="FINISH"),
)


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """stdout as JSON, one object a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def run_id(self) -> str:
        """The run that this command speaks of."""
        found = re.search(r"\br-[2-9a-z]{16}\b", self.out + self.err)
        assert found, self
        return found.group()


@dataclass
class Cli:
    """The command line in a folder of its own."""

    folder: Path
    store: str
    env: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """A command that goes on while the test does."""
        return subprocess.Popen(
            [sys.executable, "-m", "fsm_agent", *arguments],
            cwd=self.folder,
            env=self.env | {"FSM_AGENT_STORE": self.store} | options.pop("env", {}),
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def __call__(self, *arguments: str, given: str | None = None, **options: Any) -> Done:
        """Run a command to its end."""
        stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
        with self.start(*arguments, stdin=stdin, **options) as process:
            return self.end(process, given)

    def end(self, process: subprocess.Popen[str], given: str | None = None) -> Done:
        """Wait for a command."""
        out, err = process.communicate(given, timeout=PATIENCE_S)
        assert "Traceback" not in err, err
        return Done(process.returncode, out, err)

    def run(self, task: str, *arguments: str) -> Done:
        """`run` of the test's agent."""
        return self("run", "--agent", "desk.py:agent", task, *arguments)

    def entries(self, run_id: str) -> list[dict[str, Any]]:
        """The journal, as `show --json` tells it."""
        return [o for o in self("show", run_id, "--json").objects if o["event"] == "entry"]


def until(holds: Callable[[], bool]) -> None:
    """Return once it holds."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def interrupt(process: subprocess.Popen[str], number: int = signal.SIGINT) -> None:
    """Send a signal to one process."""
    process.send_signal(number)


@pytest.fixture(scope="session")
def model_url() -> Iterator[str]:
    """A scripted model server."""
    with ModelServer(SCRIPT).in_thread() as server:
        yield server.base_url


@pytest.fixture(scope="session")
def kept_store() -> Iterator[str]:
    """An embedded store whose server stays up between commands."""
    folder = Path(tempfile.mkdtemp(prefix="fsm-cli-"))
    server = EmbeddedServer(folder)
    server.enter()
    yield f"embedded:{folder}"
    server.leave()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cli(tmp_path: Path, kept_store: str, model_url: str) -> Cli:
    """The command line, in a folder with the test's agent."""
    (tmp_path / "desk.py").write_text(AGENT)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("FSM_", "OPENAI_"))}
    env = clean | {
        "PYTHONPATH": str(CHECKOUT),
        "OPENAI_BASE_URL": model_url,
        "FSM_AGENT_MODEL": "test-model",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "NO_PROXY": "127.0.0.1",
    }
    return Cli(tmp_path, kept_store, env)
