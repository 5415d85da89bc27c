"""The commands around a request, in real processes; and the worked example, in two of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from fsm_agent import Agent, Result, Runtime, ask_user, tool
from fsm_agent import ask as asking_people
from fsm_agent.cli.asking import commands_for
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.run.content import AssistantMessage
from tests.conftest import ScriptedModel, ask, finish, turns
from tests.integration.cli_kit import EXAMPLES, Cli, cli, kept_store, model_url, until

__all__ = ["cli", "kept_store", "model_url"]  # fixtures

HIDDEN = {"to": "mia\u202egro.elpmaxe@\u200bx", "note": "a" + " " * 40 + "b"}


@tool(approval=asking_people(expires_s=3600, quorum=2, not_requester=True))
async def transfer(to: str, note: str = "") -> str:
    """Move money."""
    return "moved"


@tool(approval=lambda args: args["to"] != "me" and "not to me")
async def send(to: str) -> str:
    """Send."""
    return "sent"


AGENT = Agent("teller", tools=[transfer, send, ask_user])


def waiting(store: str, model: ScriptedModel) -> str:
    """A run that waits for people, begun by 'ann'."""

    async def begin() -> str:
        async with Runtime.open(store, model=model) as runtime:
            result = await runtime.run(AGENT, "Go.", requester="ann")
            assert result.status == "waiting"
            return result.run_id

    return asyncio.run(begin())


def work(store: str, model: ScriptedModel, run_id: str) -> str:
    async def go_on() -> str:
        async with Runtime.open(store, model=model) as runtime:
            return (await runtime.work(run_id, AGENT)).status

    return asyncio.run(go_on())


def test_a_request_shows_its_terms_and_what_nobody_could_see(cli: Cli, kept_store: str) -> None:
    model = turns(ask(("transfer", HIDDEN)), finish())
    run_id = waiting(kept_store, model)
    commented = cli("comment", run_id, "a4-0", "Which account?", "--by", "zoe")
    claimed = cli("claim", run_id, "a4-0", "--by", "zoe")
    refused = cli("approve", run_id, "--by", "Ann ")
    first = cli("approve", run_id, "--by", "leo", "-m", "fine", "--json")
    second = cli("approve", run_id, "--by", "mia")

    assert (commented.code, claimed.code) == (0, 0), commented
    assert refused.code == 2
    assert "somebody else has to" in refused.err
    for mark in ("⟦U+202E⟧", "⟦U+200B⟧", "⟦40 spaces⟧"):
        assert mark in first.err
    for words in (
        "needs   2 people, 0 so far", "not by  ann", "then it is refused",
        "claimed by zoe", "said    zoe: Which account?",
    ):  # fmt: skip
        assert words in refused.err, refused.err
    assert first.objects[0]["missing"] == 1
    assert "needs 1 more person" in first.err
    assert "approved by leo" in second.err
    assert "needs 1 more" not in second.err
    assert work(kept_store, model, run_id) == "done"

    audit = cli("audit", run_id).objects
    decided = [row for row in audit if row["fact"]["kind"] in ("voted", "attested")]
    assert [row["fact"]["by"] for row in decided] == ["leo", "mia"]
    assert {row["fact"]["auth"] for row in decided} == {"claimed"}
    assert all(len(bytes.fromhex(row["chain"])) >= 16 for row in audit)
    told = cli("explain", run_id, "a4-0").out
    assert "rule always asks: transfer always needs approval" in told
    assert "needs 2 people" in told
    assert "approved by leo (cli, claimed): fine (one of several)" in told
    assert cli("explain", run_id, "c9-9").code == 2


def test_requests_of_two_runs_under_one_id_are_named_by_run_and_hash(
    cli: Cli, kept_store: str
) -> None:
    helper = Agent("helper", "Help.", tools=[send])
    boss = Agent("boss", "Lead.", tools=[send, helper.as_tool()])

    def reply(request: StepRequest) -> Reply:
        if request.instructions.startswith("Help."):
            return ask(("send", {"to": "below"}))
        return ask(("send", {"to": "above"}), ("helper", {"task": "Send it."}))

    async def begin() -> tuple[Any, Any]:
        async with Runtime.open(kept_store, model=ScriptedModel(reply)) as runtime:
            run_id = (await runtime.run(boss, "Go.")).run_id
            found = await runtime.requests(run_id)
            own, below = sorted(found, key=lambda request: request.run_id != run_id)
            return own, below

    own, below = asyncio.run(begin())
    with click.Context(click.Command("x")):
        offered = [str(hint) for hint in commands_for([own, below])]
    unnamed = cli("approve", own.run_id)
    unclear = cli("approve", own.run_id, own.ask_id)
    noted = cli("comment", own.run_id, own.ask_id, "Which?")
    hashed = cli("comment", own.run_id, own.ask_id, "Why?", "--hash", own.digest[:8])
    by_run = cli("approve", below.run_id, "--json")
    by_hash = cli("reject", own.run_id, own.ask_id, "-m", "no", "--hash", own.digest[:8], "--json")

    assert all("--hash" in each for each in offered), offered
    for refused in (unnamed, unclear, noted):
        assert refused.code == 2, refused
        for request in (own, below):
            assert request.run_id in refused.err
            assert request.digest[:8] in refused.err
    assert hashed.code == 0, hashed
    assert (by_run.objects[0]["run_id"], by_run.code) == (below.run_id, 0)
    assert (by_hash.objects[0]["run_id"], by_hash.code) == (own.run_id, 0)


def test_no_command_is_offered_that_a_request_for_several_people_would_refuse(
    kept_store: str,
) -> None:
    model = turns(ask(("transfer", HIDDEN), ("send", {"to": "leo"})), finish())
    run_id = waiting(kept_store, model)

    async def offered() -> list[str]:
        async with Runtime.open(kept_store, model=model) as runtime:
            with click.Context(click.Command("list")):
                return [hint.command for hint in commands_for(await runtime.requests(run_id))]

    verbs = [command.split()[1:4] for command in asyncio.run(offered())]
    assert [verb for verb, _, ask_id in verbs if ask_id == "a4-0"] == [
        "approve",
        "reject",
        "answer",
    ]
    assert ["edit", run_id, "a4-1"] in verbs


def test_a_consent_is_given_listed_used_explained_and_taken_back(cli: Cli, kept_store: str) -> None:
    model = turns(*[ask(("send", {"to": name})) for name in ("mia", "leo", "zoe")], finish())
    run_id = waiting(kept_store, model)
    assert "no standing consents" in cli("consent", run_id).err

    cli("approve", run_id, "--always")
    given = cli("consent", run_id, "--tool", "transfer", "--by", "mia", "-m", "busy")
    (consent_id, *_) = given.out.split()
    listed = cli("consent", run_id, "--json").objects
    cli("consent", run_id, "--revoke", consent_id)
    unknown = cli("consent", run_id, "--revoke", consent_id)

    assert "transfer, by mia: busy  (not taken up yet)" in given.out
    assert [(each["tool"], each["by"]) for each in listed] == [("transfer", "mia")]
    assert unknown.code == 2
    assert work(kept_store, model, run_id) == "done"
    (held,) = cli("consent", run_id, "--json").objects
    assert (held["tool"], held["rule"]) == ("send", "<lambda>")
    shown = cli("show", run_id).out
    assert "agrees to later calls of send" in shown
    assert "agreed to all such calls of this run" in shown


# -- the worked example ---------------------------------------------------------------------------


class Terminals:
    """The two terminals of examples/approvals.py, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("FSM_", "OPENAI_"))}
        self._env = clean | {
            "FSM_AGENT_STORE": "embedded:.approvals",
            "APPROVALS_DEADLINE_S": "6",
            "PYTHONPATH": str(EXAMPLES.parent),
            "XDG_STATE_HOME": str(folder),
            "NO_PROXY": "127.0.0.1",
        }
        self._log = open(folder / "log", "a")  # noqa: SIM115
        self.first = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(EXAMPLES / "approvals.py")],
            cwd=self._folder, env=self._env, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    @property
    def said(self) -> str:
        return (self._folder / "log").read_text()

    def type(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "fsm_agent", *words],
            cwd=self._folder, env=self._env, capture_output=True, text=True, timeout=60,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, done.stderr + done.stdout
        return done

    def close(self) -> None:
        if self.first.poll() is None:
            self.first.kill()
        self.first.wait()
        self._log.close()


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    both = Terminals(tmp_path)
    yield both
    both.close()


def test_the_worked_example_ends_when_people_and_time_have_decided(terminals: Terminals) -> None:
    until(lambda: "waits for 3 decisions" in terminals.said)
    by_tool = requests_of(terminals)

    why = terminals.type("explain", "r-approvals", by_tool["refund"])
    terminals.type("reject", "r-approvals", by_tool["refund"], "-m", "enough")
    own = terminals.type("approve", "r-approvals", by_tool["delete_account"], code=2)
    one = terminals.type("approve", "r-approvals", by_tool["delete_account"], "--by", "mia")
    terminals.first.send_signal(signal.SIGKILL)  # it may die at any time
    terminals.first.wait()
    terminals.type("approve", "r-approvals", by_tool["delete_account"], "--by", "leo")
    terminals.first = terminals.start()
    until(lambda: "All five calls have their result." in terminals.said)

    assert "120 EUR in all would be paid back" in why.stdout
    assert "somebody else has to" in own.stderr
    assert "needs 1 more person" in one.stderr
    shown = json.loads(terminals.type("show", "r-approvals", "--json").stdout.splitlines()[-1])
    assert shown["status"] == "done"
    settled = {
        row["fact"]["call_id"]: row["fact"]["status"]
        for row in map(json.loads, terminals.type("audit", "r-approvals").stdout.splitlines())
        if row["fact"]["kind"] == "settled"
    }
    assert [settled[each] for each in sorted(settled)] == [
        "success", "success", "denied", "success", "expired",
    ]  # fmt: skip

    assert terminals.first.wait() == 0  # and once more, when all is over
    terminals.first = terminals.start()
    assert terminals.first.wait() == 0
    assert "run r-approvals is over" in terminals.said


def requests_of(terminals: Terminals) -> dict[str, Any]:
    """Tool to request id, from what the first terminal printed."""
    lines = [line for line in terminals.said.splitlines() if "fsm-agent explain" in line]
    return {line.split("# ")[1]: line.split()[3] for line in lines}


def test_what_a_child_run_asks_is_shown_and_decided_with_its_parent(
    cli: Cli, kept_store: str
) -> None:
    parent = Agent("chief", tools=[AGENT.as_tool()])

    def answer(request: StepRequest) -> Reply:
        is_child = any(spec.name == "send" for spec in request.tools)
        if any(isinstance(message, AssistantMessage) for message in request.messages):
            return finish()
        return ask(("send", {"to": "mia"})) if is_child else ask(("teller", {"task": "Send."}))

    async def go(run_id: str | None) -> Result:
        async with Runtime.open(kept_store, model=ScriptedModel(answer)) as runtime:
            run_id = run_id or await runtime.start(parent, "Go.", requester="ann")
            return await runtime.work(run_id, parent)

    waits = asyncio.run(go(None))
    listed = {row["run_id"]: row for row in cli("list", "--json").objects}
    refused = cli("approve", waits.run_id, "a9-9")
    done = cli("approve", waits.run_id, "--json")
    (child,) = waits.children
    (row,) = [line for line in cli("list").out.splitlines() if line.startswith(child)]
    resumed = cli("resume", child)

    assert (waits.status, len(waits.children)) == ("waiting", 1)
    for run_id in (waits.run_id, child):
        assert (listed[run_id]["status"], listed[run_id]["needs"]) == ("waiting", "person")
        assert listed[run_id]["asks"] == list(waits.asks)
    way_on = f"fsm-agent resume {waits.run_id}"
    assert way_on in row
    assert f"the worker of run {waits.run_id} drives it" in row
    assert (resumed.code, way_on in resumed.err) == (2, True)
    assert waits.asks[0] in refused.err
    assert (done.code, done.objects[0]["ask_id"]) == (0, waits.asks[0]), done
    assert asyncio.run(go(waits.run_id)).status == "done"
    assert "approved by" in cli("show", *waits.children).out
