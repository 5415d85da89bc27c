"""Chat in a terminal: each message a run, one conversation, and the agents of examples/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsm_agent.capabilities.load import load_agent
from fsm_agent.testing import Script, call, when
from fsm_agent.testing.model_server import ModelServer
from tests.integration.cli_kit import EXAMPLES, Cli, kept_store

__all__ = ["kept_store"]

AGENT = """
from fsm_agent import chat, tool

@tool(approval="always")
def pay(cents: int) -> str:
    "Pay."
    return f"paid {cents}"

agent = chat("talker", "Talk.", tools=[pay])
"""
SCRIPT = Script(
    when(tool="pay").then("It is paid.", label="FINISH"),
    when(user="pay").then(label="TOOL", tool_calls=[call("pay", cents=5)]),
    when(user="my name", anywhere="I am Mia").then("You are Mia.", label="FINISH"),
    when(user="my name").then("I do not know.", label="FINISH"),
    when(user="I am").then("Good to know.", label="FINISH"),
    when(user="ponder").then("One moment.\nI look it up, " + "x" * 100, label="PAUSE"),
    when(anywhere="ponder").then("Here it is.", label="FINISH"),
    when(anywhere="broken").then("no label"),
)


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    with ModelServer(SCRIPT).in_thread() as server:
        yield server.base_url


@pytest.fixture
def cli(tmp_path: Path, kept_store: str, model_url: str) -> Cli:
    (tmp_path / "talker.py").write_text(AGENT)
    base = Cli(tmp_path, kept_store)
    base.env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "OPENAI_BASE_URL": model_url,
        "FSM_AGENT_MODEL": "test-model",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "NO_PROXY": "127.0.0.1",
    }
    return base


def test_each_message_is_a_run_that_knows_what_was_said_before(cli: Cli) -> None:
    done = cli("chat", "--agent", "talker.py:agent", given="I am Mia\n\nWhat is my name?\n")

    assert (done.code, done.out) == (0, "Good to know.\nYou are Mia.\n")
    runs = set(re.findall(r"run (r-[2-9a-z]{16})", done.err))
    assert len(runs) == 2
    assert "--continue r-" in done.err


def test_a_chat_goes_on_where_another_one_ended(cli: Cli) -> None:
    first = cli("chat", "--agent", "talker.py:agent", given="I am Mia\n")
    last = re.findall(r"--continue (r-\S+)", first.err)[-1]

    alone = cli("chat", "--agent", "talker.py:agent", given="my name?\n")
    after = cli("chat", "--agent", "talker.py:agent", "--continue", last, given="my name?\n")

    assert alone.out == "I do not know.\n"
    assert after.out == "You are Mia.\n"


def test_a_run_that_waits_ends_the_chat_and_can_be_gone_on_with(cli: Cli) -> None:
    waiting = cli("chat", "--agent", "talker.py:agent", given="pay\nI am Mia\n")
    run_id = re.findall(r"run (r-[2-9a-z]{16})", waiting.err)[0]
    refused = cli("chat", "--agent", "talker.py:agent", "--continue", run_id, given="I am Mia\n")

    cli("approve", run_id)
    resumed = cli("resume", run_id)
    after = cli("chat", "--agent", "talker.py:agent", "--continue", run_id, given="I am Mia\n")

    assert waiting.code == 3
    assert "is not over" in refused.err
    assert resumed.out == "It is paid.\n"
    assert (after.code, after.out) == (0, "Good to know.\n")


def test_what_the_agent_says_on_the_way_is_for_the_person_in_full(cli: Cli) -> None:
    done = cli("chat", "--agent", "talker.py:agent", given="ponder\n")

    assert done.out == f"One moment.\nI look it up, {'x' * 100}\nHere it is.\n"


def test_a_message_that_fails_does_not_end_the_chat(cli: Cli) -> None:
    done = cli("chat", "--agent", "talker.py:agent", given="broken\nI am Mia\n")

    assert "not completed" in done.err
    assert done.out.endswith("Good to know.\n")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_nothing_said_is_nothing_done(cli: Cli, text: str) -> None:
    done = cli("chat", "--agent", "talker.py:agent", given=text)

    assert (done.code, done.out) == (0, "")
    assert "go on later" not in done.err


def test_a_run_that_is_not_there_cannot_be_continued(cli: Cli) -> None:
    done = cli("chat", "--agent", "talker.py:agent", "--continue", "r-none", given="hello\n")

    assert done.code != 0
    assert "r-none" in done.err


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("chat", [""]),
        ("plan", ["plan", "step", "answer"]),
        ("research", ["clarify", "outline", "research", "report"]),
    ],
)
def test_the_examples_are_agents(name: str, phases: list[str]) -> None:
    agent = load_agent(f"{EXAMPLES / name}.py:agent")

    assert [phase.name for phase in agent.capability.phases] == phases
