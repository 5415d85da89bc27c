"""Workers and what they are given, on the command line: start, limit, cancel, worker."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from checkpoints.model import RunId
from fsm_agent import Runtime
from fsm_agent.cli.main import main
from fsm_agent.telling.stands import stands
from tests.conftest import finish, turns
from tests.integration.brokers import redis_broker
from tests.integration.cli_kit import Cli, cli, interrupt, kept_store, model_url, until

__all__ = ["cli", "kept_store", "model_url"]

AGENT = ("--agent", "desk.py:agent")


def looking_at(store: str) -> Any:
    """A runtime of this process: quicker than a command."""
    return Runtime.open(store, model=turns(finish()), is_live=False)


def status(cli: Cli, run_id: str) -> str:
    """How `list` tells that a run stands."""

    async def look() -> str:
        async with looking_at(cli.store) as runtime:
            head = await runtime.store.head(RunId(run_id))
            return (await stands(runtime, [head]))[run_id].words

    return asyncio.run(look())


def test_start_puts_a_run_on_record_and_prints_its_id_alone(cli: Cli) -> None:
    begun = cli("start", *AGENT, "look", "--tenant", "acme", "--priority", "5")
    again = cli("start", *AGENT, "look", "--run-id", "twice")
    repeat = cli("start", *AGENT, "look", "--run-id", "twice")
    clash = cli("start", *AGENT, "something else", "--run-id", "twice")
    shown = cli("show", begun.run_id)
    (head,) = [o for o in cli("list", "--json").objects if o["run_id"] == begun.run_id]
    listed = cli("list")

    assert begun.out == f"{begun.run_id}\n"
    assert (again.out, repeat.out, clash.code) == ("twice\n", "twice\n", 2)
    assert "filed: tenant acme, priority 5" in shown.out
    assert (head["tenant"], head["priority"], head["status"]) == ("acme", 5, "ready")
    assert "[tenant acme, priority 5]" in listed.out


def test_runs_of_a_thread_are_refused_queued_or_interrupt(cli: Cli) -> None:
    filing = ("--thread", "case 7")
    first = cli("start", *AGENT, "slow", *filing)
    refused = cli("start", *AGENT, "look", *filing)
    queued = cli("start", *AGENT, "look", *filing, "--on-busy", "queue")
    worker = cli.start("worker", *AGENT)
    until((cli.folder / "slow.txt").exists)
    until(lambda: status(cli, queued.run_id) == "queued")
    newest = cli("start", *AGENT, "look", *filing, "--on-busy", "interrupt")
    until(lambda: status(cli, queued.run_id) == "done")
    interrupt(worker, signal.SIGTERM)
    ended = cli.end(worker)

    assert refused.code == 2
    assert f"thread 'case 7' is busy with run '{first.run_id}'" in refused.err
    assert status(cli, first.run_id) == "cancelled"
    assert status(cli, newest.run_id) == "done"
    assert ended.code == 0


def test_resume_of_a_queued_run_says_whose_turn_it_is(cli: Cli) -> None:
    filing = ("--thread", "case 8")
    first = cli("start", *AGENT, "look", *filing)
    queued = cli("start", *AGENT, "look", *filing, "--on-busy", "queue")
    listed = cli("list").out.splitlines()
    waiting = cli.start("resume", queued.run_id)
    until(lambda: status(cli, queued.run_id) == "queued")
    cli("resume", first.run_id)
    ended = cli.end(waiting)

    assert ended.code == 0
    words = f"for its turn: run {first.run_id} of the thread case 8 is active"
    assert ended.err.count(words) == 1
    (row,) = [line for line in listed if line.startswith(queued.run_id)]
    assert f"(behind run {first.run_id} of its thread)" in row
    assert "fsm-agent resume" not in row


def test_limits_are_listed_set_replaced_and_taken_away(cli: Cli) -> None:
    cli("limit", "tenant:t1", "--at-once", "2")
    both = cli("limit", "tenant:t1", "--at-once", "3", "--per-minute", "60", "--json")
    listed = cli("limit")
    cli("limit", "tenant:t1", "--none")
    gone = cli("limit")

    assert {"event": "limit", "group": "tenant:t1", "at_once": 3, "per_minute": 60} in both.objects
    assert "tenant:t1  3 at once, 60 a minute" in listed.out
    assert "tenant:t1" not in gone.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["limit", "acme", "--at-once", "2"], "'acme' is no group"),
        (["limit", "tenant:", "--at-once", "2"], "'tenant:' is no group"),
        (["limit", "tenant:x"], "say what the limit is"),
        (["limit", "tenant:x", "--none", "--at-once", "1"], "say what the limit is"),
        (["limit", "--at-once", "1"], "name the group"),
        (["limit", "tenant:x", "--at-once", "0"], "--at-once"),
        (["start", *AGENT, "x", "--priority", "1000"], "--priority"),
        (["start", *AGENT, "x", "--on-busy", "perhaps"], "--on-busy"),
        (["start", *AGENT, "x", "--on-busy", "queue"], "Name one with thread=…, or --thread"),
        (["start", *AGENT, "x", "--tenant", "t" * 181], "is no tenant"),
        (["worker", *AGENT, "--runs", "0"], "--runs"),
        (["worker", *AGENT, "--broker", "kafka://x"], "is not the address of a message broker"),
        (["cancel", "nobody", "--later"], "no such option"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    cli: Cli,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # In this process: nothing of it depends on one of its own, and a dozen of them take long.
    monkeypatch.chdir(cli.folder)
    for name, value in (cli.env | {"FSM_AGENT_STORE": cli.store}).items():
        monkeypatch.setenv(name, value)

    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr()

    assert ended.value.code == 2
    assert words.lower() in told.err.lower()
    assert told.out == ""


def test_a_graceful_cancel_waits_and_now_does_not(cli: Cli) -> None:
    begun = cli("start", *AGENT, "slow")
    worker = cli.start("worker", *AGENT)
    until((cli.folder / "slow.txt").exists)

    first = cli("cancel", begun.run_id, "--graceful")
    is_still_running = status(cli, begun.run_id)  # its tool takes a minute
    second = cli("cancel", begun.run_id, "--now", "-m", "enough")
    until(lambda: status(cli, begun.run_id) == "cancelled")
    interrupt(worker, signal.SIGTERM)

    assert (first.code, second.code) == (0, 0)
    assert ("once what runs has ended" in first.err, "at once" in second.err) == (True, True)
    assert is_still_running == "running"
    assert "enough" in cli("show", begun.run_id).out
    assert cli.end(worker).code == 0


def test_a_worker_takes_many_runs_at_once_up_to_its_number(cli: Cli) -> None:
    run_ids = [cli("start", *AGENT, "slow").run_id for _ in range(3)]
    worker = cli.start("worker", *AGENT, "--runs", "2")

    def running() -> list[str]:
        return [run_id for run_id in run_ids if status(cli, run_id) == "running"]

    until(lambda: len(running()) == 2)
    interrupt(worker, signal.SIGINT)
    ended = cli.end(worker)

    assert ended.code == 0
    assert running() == []
    for run_id in run_ids:  # the store is kept for other tests
        asyncio.run(_cancel(cli.store, run_id))


async def _cancel(store: str, run_id: str) -> None:
    async with looking_at(store) as runtime:
        await runtime.cancel(run_id, by="test")


def test_a_worker_is_woken_by_a_broker(cli: Cli, tmp_path: Path) -> None:
    with redis_broker(tmp_path / "broker") as url:
        worker = cli.start("worker", *AGENT, "--broker", url)
        begun = cli("start", *AGENT, "plain")
        until(lambda: status(cli, begun.run_id) == "done")
        interrupt(worker, signal.SIGTERM)
        ended = cli.end(worker)

    assert ended.code == 0
    assert f"{begun.run_id}  done" in ended.out
