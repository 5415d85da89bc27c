"""The commands, each in real processes on an embedded store."""

from __future__ import annotations

import json
import shlex
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.cli_kit import EXAMPLES, Cli, cli, interrupt, kept_store, model_url, until

__all__ = ["cli", "kept_store", "model_url"]  # fixtures


def test_run_puts_the_answer_on_stdout_and_talk_on_stderr(cli: Cli) -> None:
    done = cli.run("look at it")

    assert done.code == 0
    assert done.out == "I have seen it.\n"
    assert "desk, budget 40 turns" in done.err
    assert "  think     wants look" in done.err
    assert "  act       look" in done.err


def test_json_prints_one_object_a_line_before_or_after_the_command(cli: Cli) -> None:
    before = cli("--json", "run", "--agent", "desk.py:agent", "look")
    after = cli.run("look", "--json")

    for done in (before, after):
        kinds = [each["event"] for each in done.objects]
        assert done.code == 0
        assert kinds[-1] == "result"
        assert {"entry", "live"} <= set(kinds)
        assert done.objects[-1]["answer"] == "I have seen it."


def test_the_store_may_be_named_before_or_after_the_command(cli: Cli, kept_store: str) -> None:
    run_id = cli.run("plain").run_id
    cli.store = "redis://localhost:1"

    before = cli("--store", kept_store, "show", run_id)
    after = cli("show", run_id, "--store", kept_store)

    assert (before.code, after.code) == (0, 0)
    assert before.out == after.out


def test_the_task_may_come_from_stdin_and_limits_go_on_record(cli: Cli) -> None:
    done = cli("run", "--agent", "desk.py:agent", "--max-turns", "7", "-", given="plain\n")

    created = cli.entries(done.run_id)[0]["facts"][0]

    assert done.code == 0
    assert created["limits"]["turns"] == 7


def test_the_same_run_id_again_is_the_same_run(cli: Cli) -> None:
    first = cli.run("plain", "--run-id", "again-1")
    second = cli.run("plain", "--run-id", "again-1")
    other = cli.run("look", "--run-id", "again-1")

    assert (first.code, second.code) == (0, 0)
    assert second.out == first.out
    assert other.code == 2
    assert "began with another input" in other.err
    assert len(cli.entries("again-1")) == len(cli.entries("again-1"))


def test_an_answer_that_is_not_completed_is_a_failure_that_says_so(cli: Cli) -> None:
    done = cli.run("gibberish")

    assert done.code == 1
    assert done.out.startswith("no label at all\n")
    assert "warning: the answer is not completed" in done.err


def test_a_failed_run_has_exit_code_1_and_says_why(cli: Cli) -> None:
    done = cli.run("look", "--max-tokens", "10")

    assert done.code == 1
    assert "failed (tokens)" in done.err


def test_text_of_the_model_cannot_command_the_terminal(cli: Cli) -> None:
    done = cli.run("escape")
    shown = cli("show", done.run_id)

    assert done.out == "ABCD\n"
    assert not {"\x1b", "\u202e", "\x07"} & set(done.err + shown.out + shown.err)


def test_a_tool_that_does_not_exist_is_told_to_the_model(cli: Cli) -> None:
    done = cli.run("ghost")

    assert done.code == 0
    assert "no tool is named 'ghost'" in done.err


# -- detached runs and workers ---------------------------------------------------------------------


def test_a_detached_run_is_done_by_a_worker(cli: Cli) -> None:
    begun = cli.run("look", "--detach")
    status = cli("list", "--json", "-n", "1").objects[0]["status"]
    worked = cli("worker", "--once", "--agent", "desk.py:agent")

    assert begun.code == 0
    assert begun.out.strip() == begun.run_id
    assert status == "ready"
    assert worked.code == 0
    assert f"{begun.run_id}  done" in worked.out


def test_a_worker_without_agents_uses_the_remembered_ones_and_stops_on_sigterm(cli: Cli) -> None:
    worker = cli.start("worker", "--agent", "desk.py:agent")
    begun = cli.run("look", "--detach")
    assert worker.stdout
    line = worker.stdout.readline()
    interrupt(worker, signal.SIGTERM)
    ended = cli.end(worker)

    assert line.startswith(f"{begun.run_id}  done")
    assert ended.code == 0
    assert "given back" in ended.err


def test_sigterm_gives_a_run_back_so_that_another_goes_on_at_once(cli: Cli) -> None:
    begun = cli.run("slow", "--detach")
    worker = cli.start("worker", "--agent", "desk.py:agent")
    until((cli.folder / "slow.txt").exists)
    interrupt(worker, signal.SIGTERM)
    ended = cli.end(worker)
    (head,) = [h for h in cli("list", "--json").objects if h["run_id"] == begun.run_id]
    cli("cancel", begun.run_id)
    cancelled = cli("resume", begun.run_id)

    assert ended.code == 0
    assert head["status"] == "ready"
    assert head["owner"] is None
    assert cancelled.code == 1
    assert "cancelled" in cancelled.err


# -- looking ---------------------------------------------------------------------------------------


def test_list_filters_by_status(cli: Cli) -> None:
    waiting = cli.run("pay").run_id
    done = cli.run("plain").run_id

    shown = cli("list", "--status", "waiting", "-n", "500").out

    assert waiting in shown
    assert done not in shown


def test_show_tells_the_story_and_the_totals(cli: Cli) -> None:
    run_id = cli.run("pay").run_id
    cli("approve", run_id, "--by", "mia")
    cli("resume", run_id)

    shown = cli("show", run_id)
    *entries, result = cli("show", run_id, "--json").objects

    assert shown.code == 0
    for words in ("wants pay", "needs a person's approval", "approved by mia", "unsafe", "hash "):
        assert words in shown.out
    assert "It is paid." in shown.out
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert result["totals"]["decisions"] == 1


def test_watch_shows_a_run_from_another_process(cli: Cli) -> None:
    run_id = cli.run("pay").run_id
    watch = cli.start("watch", run_id)
    assert watch.stdout
    assert watch.stderr
    seen = watch.stderr.readline()
    cli("approve", run_id)
    cli("resume", run_id)
    ended = cli.end(watch)

    assert f"fsm-agent approve {run_id}" in seen
    assert ended.code == 0
    assert "It is paid." in ended.out


def test_graph_lights_the_way_of_a_run(cli: Cli) -> None:
    run_id = cli.run("plain").run_id

    mermaid = cli("graph", run_id)
    dot = cli("graph", run_id, "--format", "dot")
    written = cli("graph", "-o", "machine.dot")

    assert mermaid.out.startswith("stateDiagram-v2")
    assert "class DONE current" in mermaid.out
    assert dot.out.startswith("digraph")
    assert written.code == 0
    assert (cli.folder / "machine.dot").read_text().startswith("digraph")


def test_png_without_graphviz_says_how_to_get_it(cli: Cli) -> None:
    done = cli("graph", "--format", "png", env={"PATH": str(cli.folder)})

    assert done.code == 1
    assert "apt-get install graphviz" in done.err


def test_doctor_says_what_holds_and_fails_on_red(cli: Cli) -> None:
    good = cli("doctor")
    told = cli("doctor", "--json").objects
    bad = cli("doctor", "--store", "redis://localhost:1")

    assert good.code == 0
    assert "append-only file" in good.out
    assert told[-1] == {"event": "doctor", "level": "green"}
    assert bad.code == 1
    assert "red     store" in bad.out


# -- deciding --------------------------------------------------------------------------------------


def test_a_run_that_waits_ends_with_3_and_the_commands_to_paste(cli: Cli) -> None:
    waiting = cli.run("pay")
    command = next(line for line in waiting.err.splitlines() if "fsm-agent approve" in line)
    pasted = cli(*shlex.split(command, comments=True)[1:])
    resumed = cli("resume", waiting.run_id)

    assert waiting.code == 3
    assert waiting.out == ""
    assert "cents: 100" in waiting.err
    assert pasted.code == 0
    assert f"fsm-agent resume {waiting.run_id}" in pasted.err
    assert resumed.code == 0
    assert (cli.folder / "paid.txt").read_text() == "100\n"


def test_reject_tells_the_model_and_pays_nothing(cli: Cli) -> None:
    run_id = cli.run("pay").run_id
    rejected = cli("reject", run_id, "-m", "too much")
    resumed = cli("resume", run_id)

    assert rejected.code == 0
    assert resumed.out == "Not paid.\n"
    assert "too much" in cli("show", run_id).out
    assert not (cli.folder / "paid.txt").exists()


def test_edit_runs_with_the_new_arguments(cli: Cli) -> None:
    run_id = cli.run("pay").run_id
    (cli.folder / "new.json").write_text('{"cents": 7}')
    wrong = cli("edit", run_id, "--args", '{"cents": "seven"}')
    edited = cli("edit", run_id, "--args", "@new.json")
    cli("resume", run_id)

    assert wrong.code == 2
    assert "cents" in wrong.err
    assert edited.code == 0
    assert (cli.folder / "paid.txt").read_text() == "7\n"


def test_answer_goes_to_the_model(cli: Cli) -> None:
    waiting = cli.run("question")
    answered = cli("answer", waiting.run_id, "the second")
    resumed = cli("resume", waiting.run_id)

    assert waiting.code == 3
    assert "Which one?" in waiting.err
    assert answered.code == 0
    assert resumed.out == "You said it.\n"


def test_the_hash_must_be_that_of_what_is_asked(cli: Cli) -> None:
    run_id = cli.run("pay").run_id
    digest = cli("show", run_id, "--json").objects
    asked = [f for e in digest if e["event"] == "entry" for f in e["facts"]][-1]["digest"]

    wrong = cli("approve", run_id, "--hash", "0000")
    short = cli("approve", run_id, "--hash", asked[:3])
    right = cli("approve", run_id, "--hash", asked[:4], "--json")

    assert wrong.code == 1
    assert f"is {asked[:8]}, not 0000" in wrong.err
    assert short.code == 2
    assert right.code == 0
    assert right.objects[0]["verb"] == "approve"


def test_of_two_approvers_at_once_one_wins_and_the_other_learns_who(cli: Cli) -> None:
    run_id = cli.run("pay").run_id
    with ThreadPoolExecutor() as pool:
        names = ("mia", "tom")
        both = list(pool.map(lambda by: cli("approve", run_id, "--by", by), names))
    winner = names[[done.code for done in both].index(0)]
    loser = next(done for done in both if done.code)
    late = cli("reject", run_id, "-m", "no")

    assert sorted(done.code for done in both) == [0, 1]
    for refused in (loser, late):
        line = refused.err.splitlines()[-1]
        assert f"already decided: 'approve' by {winner} at " in line
    assert late.code == 1


def test_with_several_requests_one_must_be_named(cli: Cli) -> None:
    run_id = cli.run("pay twice").run_id
    unclear = cli("approve", run_id)
    asks = [r["ask_id"] for r in cli("resume", run_id, "--json").objects if r["event"] == "request"]
    first = cli("approve", run_id, asks[0])
    second = cli("reject", run_id, "-m", "one is enough")
    resumed = cli("resume", run_id)

    assert unclear.code == 2
    assert asks[0] in unclear.err
    assert asks[1] in unclear.err
    assert f"still open in this run: {asks[1]}" in first.err
    assert second.code == 0
    assert resumed.code == 0
    assert (cli.folder / "paid.txt").read_text() == "1\n"


def test_what_is_in_doubt_is_settled_by_a_person(cli: Cli) -> None:
    begun = cli.start("run", "--agent", "desk.py:agent", "risky", "--lease", "1")
    until((cli.folder / "risky.txt").exists)
    begun.kill()
    killed = cli.end(begun)
    resumed = cli("resume", killed.run_id, "--wait")
    locked = cli("settle", killed.run_id, "--rerun")
    settled = cli("settle", killed.run_id, "--happened", "it was done")
    ended = cli("resume", killed.run_id)
    story = cli("show", killed.run_id).out

    assert resumed.code == 3
    assert "fsm-agent settle" in resumed.err
    assert locked.code == 1
    assert "locked for another" in locked.err
    assert settled.code == 0
    assert ended.code == 0
    assert (cli.folder / "risky.txt").read_text() == "done\n"
    assert "died here: 1 call was under way (risky)" in story


def test_say_reaches_the_run_and_cancel_ends_it(cli: Cli) -> None:
    run_id = cli.run("pay").run_id
    said = cli("say", run_id, "hurry")
    cancelled = cli("cancel", run_id, "-m", "enough")
    again = cli("cancel", run_id)
    ended = cli("resume", run_id)
    after = cli("say", run_id, "more")

    assert (said.code, cancelled.code, again.code) == (0, 0, 0)
    assert "already" in again.out
    assert ended.code == 1
    assert "enough" in ended.err
    assert after.code == 1
    assert "has ended" in after.err


# -- resuming --------------------------------------------------------------------------------------


def test_a_run_that_is_held_names_its_holder_and_wait_takes_over(cli: Cli) -> None:
    begun = cli.start("run", "--agent", "desk.py:agent", "risky", "--lease", "1")
    until((cli.folder / "risky.txt").exists)
    (head,) = [h for h in cli("list", "--json").objects if h["title"] == "risky"
               and h["status"] == "running"]  # fmt: skip
    busy = cli("resume", head["run_id"])
    begun.kill()
    cli.end(begun)
    taken = cli("resume", head["run_id"], "--wait")

    assert busy.code == 1
    assert f"held by worker '{head['owner']}'" in busy.err
    assert "until " in busy.err
    assert taken.code == 3
    assert "took the run over" in taken.err


def test_ctrl_c_gives_the_run_back_and_says_how_to_go_on(cli: Cli) -> None:
    begun = cli.start("run", "--agent", "desk.py:agent", "slow")
    until((cli.folder / "slow.txt").exists)
    interrupt(begun)
    stopped = cli.end(begun)
    (head,) = [h for h in cli("list", "--json").objects if h["run_id"] == stopped.run_id]
    other = cli.start("resume", stopped.run_id)
    (cli.folder / "slow.txt").unlink()
    until((cli.folder / "slow.txt").exists)
    interrupt(other)

    assert stopped.code == 130
    assert f"fsm-agent resume {stopped.run_id}" in stopped.err
    assert head["status"] == "ready"
    assert cli.end(other).code == 130


def test_resume_of_a_run_that_is_done_gives_its_answer(cli: Cli) -> None:
    run_id = cli.run("plain").run_id

    again = cli("resume", run_id, env={"OPENAI_BASE_URL": ""})

    assert again.code == 0
    assert again.out == "The plain answer.\n"


def test_the_path_of_an_agent_is_remembered_here_and_not_in_the_store(cli: Cli) -> None:
    run_id = cli.run("pay").run_id
    file = Path(cli.store.removeprefix("embedded:")) / "agents.json"
    mode = stat.S_IMODE(file.stat().st_mode)
    journal = cli("show", run_id, "--json").out
    kept = json.loads(file.read_text())

    assert mode == 0o600
    assert kept["runs"][run_id]["path"] == f"{cli.folder / 'desk.py'}:agent"
    assert str(cli.folder) not in journal


def test_an_unknown_origin_asks_for_the_agent(cli: Cli) -> None:
    run_id = cli.run("pay").run_id
    file = Path(cli.store.removeprefix("embedded:")) / "agents.json"
    before = file.read_text()
    try:
        file.unlink()
        unknown = cli("resume", run_id)
        file.write_text(before)
        file.chmod(0o666)
        unsafe = cli("resume", run_id)
    finally:
        file.write_text(before)
        file.chmod(0o600)
    wrong = cli("resume", run_id, "--agent", "desk.py:other")

    assert unknown.code == 2
    assert "--agent" in unknown.err
    assert unsafe.code == 2
    assert "can be written by others" in unsafe.err
    assert wrong.code == 2
    assert "belongs to the agent 'desk'" in wrong.err


# -- the example -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["../secret.txt", "/etc/passwd", "link.txt", "sub/../../secret.txt"]
)
def test_repo_report_reads_nothing_outside_its_folder(path: str, tmp_path: Path) -> None:
    from fsm_agent.capabilities.load import load_agent

    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "repo"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    agent = load_agent(f"{EXAMPLES}/repo_report.py:agent")
    read = agent.registry.get("read_file")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSM_REPORT_DIR", str(folder))
        with pytest.raises(PermissionError):
            read(path)


def test_repo_report_lists_searches_and_writes(tmp_path: Path) -> None:
    from fsm_agent import ToolContext
    from fsm_agent.capabilities.load import load_agent

    (tmp_path / "a.py").write_text("def f():\n    return 42\n")
    (tmp_path / "mine.md").write_text("# mine\n")
    registry = load_agent(f"{EXAMPLES}/repo_report.py:agent").registry
    context = ToolContext(run_id="r", call_id="c", idempotency_key="k")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSM_REPORT_DIR", str(tmp_path))
        listed = registry.get("list_files")()
        found = registry.get("search_text")("RETURN", context=context)
        read = registry.get("read_file")("a.py", 2)
        write = registry.get("write_report")
        write("first")
        write("second")
        with pytest.raises(FileExistsError):
            write("x", "mine.md")

    assert "a.py" in listed
    assert found == "a.py:2: return 42"
    assert read == "    2      return 42"
    assert (tmp_path / "REPORT.md").read_text().endswith("second\n")


def test_help_is_quick_and_imports_no_heavy_library(cli: Cli) -> None:
    code = (
        "import sys\n"
        "from fsm_agent.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([n for n in ('openai', 'redis', 'rich.live', 'transitions.extensions')"
        " if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=cli.env, capture_output=True, text=True, check=True
    )

    assert done.stderr.strip() == "[]"
    assert "approve" in done.stdout


def test_files_go_with_a_task_and_a_message(cli: Cli) -> None:
    (cli.folder / "letter.txt").write_text("Dear desk, seven are missing.")
    run = cli.run("pay", "--file", "letter.txt")
    run_id = run.run_id
    said = cli("say", run_id, "and this", "--file", "letter.txt")
    missing = cli.run("plain", "--file", "gone.txt")

    story = cli("show", run_id).out
    (given,) = [f for f in cli.entries(run_id)[0]["facts"] if f["kind"] == "given"]
    assert (run.code, said.code) == (3, 0), run.err
    assert "with letter.txt" in story
    assert "reads letter.txt (text/plain): 29 characters" in story
    assert given["files"][0]["size_bytes"] == 29
    assert missing.code == 2
    assert "'gone.txt' is no file" in missing.err
