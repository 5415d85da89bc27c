"""The commands for forks, looking back and changed code, in real processes."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from checkpoints import open_store
from fsm_agent import Runtime
from tests.integration.cli_kit import AGENT, Cli, Done, cli, kept_store, model_url

__all__ = ["cli", "kept_store", "model_url"]  # fixtures


def renamed(cli: Cli, **changes: str) -> None:
    """Put changed code in the agent's place."""
    code = AGENT
    for old, new in changes.items():
        code = re.sub(rf"\b{old}\b", new, code)
    (cli.folder / "desk.py").write_text(code)


def with_policy(cli: Cli, policy: str, instructions: str = "Work.") -> None:
    whole = f'Agent("desk", {instructions!r}, on_change={policy!r}, '
    (cli.folder / "desk.py").write_text(AGENT.replace('Agent("desk", "Work.", ', whole))


def paying(cli: Cli) -> str:
    """A run that waits for a person's approval of `pay`."""
    done = cli.run("pay")
    assert done.code == 3, done
    return done.run_id


def standing(done: Done) -> dict[str, Any]:
    (found,) = [o for o in done.objects if o["event"] == "standing"]
    return found


async def everything(url: str) -> str:
    """A digest of all keys of the store with all that they hold, leases and clocks aside."""
    store: Any = await open_store(url)
    try:
        digest = hashlib.sha256()
        for key in sorted(await store._line.call("KEYS", "*")):
            if b"live" not in key:
                digest.update(key + (await store._line.call("DUMP", key) or b""))
        return digest.hexdigest()
    finally:
        await store.aclose()


# -- fork -----------------------------------------------------------------------------------------


def test_a_fork_warns_of_what_may_happen_again_and_goes_on_by_resume(cli: Cli) -> None:
    origin = paying(cli)
    cli("approve", origin)
    assert cli("resume", origin).code == 0

    fork = cli("fork", origin, "--at", "2", "--id", f"{origin}-b")

    assert (fork.code, fork.out) == (0, f"{origin}-b\n")
    assert f"forked from {origin} after entry 2" in fork.err
    assert "warning: after entry 2 that run started pay ×1." in fork.err
    assert "these effects may happen twice" in fork.err
    assert f"Go on: fsm-agent resume {origin}-b" in fork.err
    listed = next(h for h in cli("list", "--json").objects if h["run_id"] == f"{origin}-b")
    assert (listed["stands"], listed["needs"]) == ("waits for an operator", "operator")
    resumed = cli("resume", f"{origin}-b", "--agent", "desk.py:agent")
    assert resumed.code == 3, resumed
    assert f"forked from run {origin}" in cli("show", f"{origin}-b").out
    assert cli("show", origin).out.count("forked") == 0


def test_a_fork_with_words_at_the_last_possible_entry_and_json(cli: Cli) -> None:
    origin = cli.run("plain")
    assert origin.code == 0

    fork = cli("fork", origin.run_id, "--say", "pay", "--detach", "--json")

    (told,) = fork.objects
    assert (told["event"], told["origin"], told["seq"]) == ("forked", origin.run_id, 2)
    assert told["is_new"] is True
    worked = cli("worker", "--once", "--agent", "desk.py:agent")
    assert worked.code == 0, worked
    asked = cli("list", "--json").objects
    assert next(h for h in asked if h["run_id"] == told["run_id"])["status"] == "waiting"


def test_the_same_fork_twice_is_one_and_another_is_refused(cli: Cli) -> None:
    origin = cli.run("plain").run_id

    first = cli("fork", origin, "--at", "1", "--id", f"{origin}-c")
    again = cli("fork", origin, "--at", "1", "--id", f"{origin}-c")
    other = cli("fork", origin, "--at", "2", "--id", f"{origin}-c")

    assert (first.code, again.code, first.out) == (0, 0, again.out)
    assert "it was there already" in again.err
    assert (other.code, other.out) == (2, "")
    assert "exists already, and it is not this fork" in other.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--at", "3"], "a model call is under way there. Possible: 1-2."),
        (["--at", "4"], "that entry ended the run, and nothing can follow it. Possible: 1-2."),
        (["--at", "99"], "it has entries 1 to 4. Possible: 1-2."),
        (["--at", "0"], "0 is not in the range x>=1"),
        (["--at", "x"], "'x' is not a valid integer"),
        (["--id", "../x"], "'../x'"),
        (["--id", ""], "''"),
    ],
)
def test_a_fork_that_cannot_be_made_says_why(cli: Cli, arguments: list[str], says: str) -> None:
    origin = cli.run("plain").run_id

    done = cli("fork", origin, *arguments)

    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_a_fork_of_nobody_says_so(cli: Cli) -> None:
    for command in (["fork"], ["replay"], ["show", "--at", "1"]):
        done = cli(command[0], "r-nobody", *command[1:])
        assert (done.code, done.out) == (2, ""), command
        assert "'r-nobody'" in done.err


# -- looking back ---------------------------------------------------------------------------------


def test_a_run_is_shown_as_it_stood_at_any_entry(cli: Cli) -> None:
    run_id = paying(cli)
    cli("reject", run_id, "-m", "no")
    cli("resume", run_id)

    early = cli("show", run_id, "--at", "2")
    waits = cli("show", run_id, "--at", "5")
    told = standing(cli("show", run_id, "--at", "5", "--json"))
    whole = standing(cli("replay", run_id, "--json"))

    assert "after entry 2 of" in early.out
    assert "state      THINK" in early.out
    assert "call       c4-0 pay waits for a person (request a4-0)" in waits.out
    assert "turns 1 of 40" in waits.out
    assert (told["seq"], told["state"]) == (5, "ACT")
    assert told["calls"][0] | {"arguments": ""} == {
        "call_id": "c4-0", "tool": "pay", "arguments": "", "phase": "waiting", "starts": 0,
        "ask_id": "a4-0", "status": None,
    }  # fmt: skip
    assert [message["role"] for message in told["messages"]] == ["user", "assistant"]
    assert whole["state"] == "DONE"
    assert whole["answer"] == "Not paid."
    assert told["budgets"]["turns"] == {"used": 1, "limit": 40}


def test_a_replay_compares_the_head_and_reading_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    cli.store = f"embedded:{tmp_path / 'own'}"
    run_id = paying(cli)
    begun = asyncio.run(everything(cli.store))

    replayed = cli("replay", run_id)
    looked = [cli("show", run_id, "--at", "3"), cli("replay", run_id, "--at", "3")]
    renamed(cli, pay="buy")
    checked = cli("check-deploy", "desk.py:agent")

    assert replayed.code == 0, replayed
    assert "the hash chain of 5 entries is whole, the head says the same" in replayed.err
    assert [done.code for done in looked] == [0, 0]
    assert checked.code == 1
    assert asyncio.run(everything(cli.store)) == begun

    async def lie() -> None:
        store: Any = await open_store(cli.store)
        await store._line.call("HSET", store._of(run_id).head, "s", "done")
        await store.aclose()

    asyncio.run(lie())
    differs = cli("replay", run_id)
    assert differs.code == 1
    assert "the head of run" in differs.err
    assert "its status is 'done', and the journal ends in ACT" in differs.err


def test_no_entry_there_is_said_with_those_that_are(cli: Cli) -> None:
    run_id = cli.run("plain").run_id

    done = cli("show", run_id, "--at", "5")

    assert (done.code, done.out) == (2, "")
    assert "has no entry 5: its entries are 1 to 4" in done.err


# -- other code -----------------------------------------------------------------------------------


def test_code_that_cannot_serve_a_run_is_found_before_the_deploy(cli: Cli) -> None:
    run_id = paying(cli)
    assert cli("check-deploy", "desk.py:agent").err.count("cannot be served") == 1

    renamed(cli, pay="buy")
    done = cli("check-deploy", "desk.py:agent")
    told = cli("check-deploy", "desk.py:agent", "desk.py:other", "--json")

    (line,) = [line for line in done.out.splitlines() if line.startswith(run_id)]
    assert "waits for a person (request a4-0), and there is no tool pay any more" in line
    assert (done.code, told.code) == (1, 1)
    *found, total = told.objects
    (mine,) = [o for o in found if o["run_id"] == run_id]
    assert (mine["event"], mine["kind"], mine["ask_id"]) == ("obstacle", "tool_gone", "a4-0")
    assert total["event"] == "checked"
    assert total["cannot_be_served"] >= 1
    assert cli("check-deploy").code == 2
    assert cli("check-deploy", "nothing.py:agent").code == 2


def test_a_call_of_a_tool_that_is_gone_parks_and_a_person_accepts_it_by_name(cli: Cli) -> None:
    run_id = paying(cli)
    cli("approve", run_id)
    renamed(cli, pay="buy")

    parked = cli("resume", run_id)
    listed = next(h for h in cli("list", "--json").objects if h["run_id"] == run_id)
    accepted = cli("resume", run_id, "--accept-changes")

    assert parked.code == 2
    assert "stands at call c4-0 of pay, which was approved" in parked.err
    assert "resume --accept-changes" in parked.err
    assert (listed["stands"], listed["needs"]) == ("waits for an operator", "operator")
    assert (accepted.code, accepted.out) == (0, "It is paid.\n"), accepted
    assert not (cli.folder / "paid.txt").exists()
    entries = [f for e in cli.entries(run_id) for f in e["facts"] if f["kind"] == "versioned"]
    assert entries[-1]["by"]
    shown = cli("show", run_id).out
    assert "other code: tool pay is gone; tool buy is new" in shown
    assert "the code as it is now, accepted by" in shown


def test_a_policy_to_park_names_what_changed_and_the_old_code_goes_on(cli: Cli) -> None:
    with_policy(cli, "park")
    run_id = paying(cli)
    cli("approve", run_id)
    with_policy(cli, "park", "Do something else.")

    parked = cli("resume", run_id)
    worked = cli("worker", "--once", "--agent", "desk.py:agent")
    with_policy(cli, "park")
    done = cli("resume", run_id)

    assert parked.code == 2
    assert "the code of its agent 'desk' is another one now: the instructions have" in parked.err
    assert worked.code == 0
    assert (done.code, done.out) == (0, "It is paid.\n")


async def test_a_warning_goes_on_and_says_what_changed(cli: Cli) -> None:
    run_id = paying(cli)
    cli("approve", run_id)
    with_policy(cli, "warn", "Do something else.")

    done = cli("resume", run_id)

    assert (done.code, done.out) == (0, "It is paid.\n")
    assert "other code: the instructions have changed" in done.err + cli("show", run_id).out
    async with Runtime.open(cli.store) as runtime:
        assert (await runtime.result(run_id)).status == "done"
