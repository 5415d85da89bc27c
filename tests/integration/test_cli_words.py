"""What the command line says, in plain functions: hints, how a run stands, ends and failures."""

from __future__ import annotations

import errno
import io
import json
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from checkpoints.model import Head, RunId, Status
from fsm_agent.capabilities.load import load_agent
from fsm_agent.cli import failures, logs
from fsm_agent.cli.clean import wrapped
from fsm_agent.cli.hints import Hint, laid_out
from fsm_agent.cli.main import cli
from fsm_agent.cli.settings import Settings
from fsm_agent.cli.views.plain import JsonView
from fsm_agent.engine.decisions import result_of
from fsm_agent.errors import AgentNotFound, ProviderError
from fsm_agent.run.content import Call
from fsm_agent.run.delta import Answered, AnyDelta, Asked, Failed, Intended, ModelFailed
from fsm_agent.run.event import EntryEvent, LiveEvent
from fsm_agent.run.limits import Limits
from fsm_agent.run.record import OpenCall, Record
from fsm_agent.run.signal import Decided
from fsm_agent.run.state import State, Trigger
from fsm_agent.telling import checks
from fsm_agent.telling.early import early, turns
from fsm_agent.telling.stands import Stand, led, stand
from fsm_agent.telling.words import Story

NOW_MS = 1_000_000


def test_a_hint_that_is_too_long_is_broken_where_a_shell_puts_it_together_again() -> None:
    command = "fsm-agent settle r-2345678923456789 a13-1 --store 'embedded:/a folder/b' --rerun"

    lines = laid_out(Hint(command, "it did not: run it now"), 50)
    read = subprocess.run(
        ["sh", "-c", "\n".join(lines).replace("fsm-agent", "printf '%s\\n'")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert lines[0] == "# it did not: run it now"
    assert max(map(len, lines)) <= 50
    assert read.stdout.splitlines() == shlex.split(command)[1:]


def test_a_hint_that_fits_is_one_line_with_its_words_in_a_comment() -> None:
    (line,) = laid_out(Hint("fsm-agent list", "what is there"), 80)

    assert shlex.split(line, comments=True) == ["fsm-agent", "list"]


@pytest.mark.parametrize(
    ("status", "due_ms", "lease_ms", "last", "is_undecided", "words", "needs"),
    [
        ("ready", 1, 0, (), False, "needs a worker", "worker"),
        ("ready", NOW_MS + 1, 0, (), False, "queued", ""),
        ("ready", None, 0, (), True, "needs a person", "person"),
        ("running", None, NOW_MS + 1, (), False, "running", ""),
        ("running", None, NOW_MS - 1, (), False, "worker died", "worker"),
        ("waiting", None, 0, (), True, "needs a person", "person"),
        ("waiting", NOW_MS + 1, 0, (), True, "needs a person", "person"),
        ("waiting", NOW_MS, 0, (), False, "decided, needs a worker", "worker"),
        ("waiting", NOW_MS, 0, (), True, "has news, needs a worker", "worker"),
        ("sleeping", None, 0, (), False, "waits for an operator", "operator"),
        ("sleeping", NOW_MS + 1, 0, (), False, "sleeps", ""),
        ("sleeping", NOW_MS, 0, (), False, "slept, needs a worker", "worker"),
        ("done", None, 0, (Answered("x"),), False, "done", ""),
        ("done", None, 0, (Answered("x", False, "turns"),), False, "not completed", ""),
        ("error", None, 0, (Failed("cancelled", "by mia"),), False, "cancelled", ""),
        ("error", None, 0, (Failed("tokens", "all spent"),), False, "failed", ""),
    ],
)
def test_a_list_says_whose_turn_it_is(
    status: Status,
    due_ms: int | None,
    lease_ms: int,
    last: tuple[AnyDelta, ...],
    is_undecided: bool,
    words: str,
    needs: str,
) -> None:
    head = _head(status, due_ms, lease_ms)

    found = stand(head, last, now_ms=NOW_MS, is_undecided=is_undecided)

    assert (found.words, found.needs) == (words, needs)


def test_a_child_is_pointed_to_the_run_whose_worker_drives_it() -> None:
    parent, top = _head("waiting", None, 0), _head("waiting", None, 0, "r-top")
    at_work, over = _head("running", None, NOW_MS + 1), _head("error", None, 0)
    for needs, resume, more in [
        ("worker", "r-top", "of its own; the worker of run r-1 drives it"),
        (
            "operator",
            "r-top",
            "of its own; the worker of run r-1 drives it: fsm-agent resume r-top",
        ),
        ("person", "", "of its own"),
        ("", "", "of its own"),
    ]:
        alone = Stand("stands so", "of its own", needs)

        assert led(alone, (), now_ms=NOW_MS) == alone
        found = led(alone, (parent, top), now_ms=NOW_MS)
        assert (found.words, found.needs, found.resume, found.more) == (
            "stands so", needs, resume, more,
        )  # fmt: skip

    due = Stand("needs a worker", needs="worker")
    assert led(due, (at_work, top), now_ms=NOW_MS).needs == ""
    assert led(due, (over, top), now_ms=NOW_MS).words == "left behind"


def test_a_run_that_sleeps_says_until_when_and_why() -> None:
    failed = ModelFailed("rate_limited", "slow down", is_billed=False)

    found = stand(_head("sleeping", NOW_MS + 1, 0), (failed,), now_ms=NOW_MS, is_undecided=False)

    assert found.more.startswith("until ")
    assert found.more.endswith("rate limited: slow down")


def _head(status: Status, due_ms: int | None, lease_ms: int, run_id: str = "r-1") -> Head:
    return Head(
        run_id=RunId(run_id), seq=3, chain=b"", status=status, snapshot=b"", due_ms=due_ms,
        token=1, owner="w", lease_until_ms=lease_ms, recoveries=0, mail=0, created_ms=1,
        updated_ms=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("turns", "finished early: the limit on turns was reached"),
        ("wall_time", "finished early: the limit on working time was reached"),
        ("repairs", "rescued: 3 replies in a row broke the protocol"),
        ("loop", "finished early: it did the same again and again"),
        ("", "finished early"),
    ],
)
def test_an_early_end_names_its_real_reason(reason: str, words: str) -> None:
    assert early(reason, Limits()) == words


def test_one_turn_is_one_turn() -> None:
    assert (turns(1), turns(2)) == ("1 turn", "2 turns")


@pytest.mark.parametrize(("also", "is_told"), [((), True), ((Failed("model", "no"),), False)])
def test_a_failure_that_ends_the_run_promises_no_other_try(
    also: tuple[AnyDelta, ...], is_told: bool
) -> None:
    failed = ModelFailed("bad_request", "no", is_billed=False, retry_at_ms=NOW_MS + 400)
    record = Record(Trigger.FAILED if also else Trigger.REPLIED, NOW_MS, (failed, *also))

    lines = Story().tell(EntryEvent("r-1", 4, State.ERROR, record))

    assert ("again in" in lines[0].text) is is_told


def test_progress_that_is_heard_before_its_call_has_started_is_printed_after_it() -> None:
    out = io.StringIO()
    view = JsonView(out)
    started = Intended("c1-0", "keyed", "k", 1, NOW_MS, NOW_MS)
    record = Record(Trigger.PROGRESSED, NOW_MS, (started,))

    view.hear(LiveEvent("r-1", "progress", "half", 1, "c1-0"))
    view.hear(EntryEvent("r-1", 5, State.ACT, record))
    view.hear(LiveEvent("r-1", "progress", "whole", 1, "c1-0"))

    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [each.get("text") for each in told] == [None, "half", "whole"]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("too much", "A person refused this call: too much. It did not run."),
        ("Why?", "A person refused this call: Why? It did not run."),
        ("", "A person refused this call. It did not run."),
    ],
)
def test_a_refusal_is_told_in_whole_sentences(reason: str, text: str) -> None:
    call = OpenCall(Call("c1-0", "pay", "{}"), "{}")
    asked = Asked("a1-1", "c1-0", "approval", "d", "pay always needs approval")

    told = result_of(call, asked, Decided("a1-1", "reject", "mia", reason))

    assert told
    assert told.text == text


@dataclass
class _Case:
    url: str
    is_hinted: bool


@pytest.mark.parametrize(
    "case",
    [
        _Case("http://localhost:8000", True),
        _Case("http://localhost:8000/v1", False),
        _Case("https://host/v1beta/openai", False),
        _Case("", False),
    ],
)
def test_a_404_without_v1_in_the_url_says_so(case: _Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", case.url)
    error = ProviderError("not_found", "x answered 404: no", is_retryable=False, status=404)

    line = failures.trouble_of(error).line

    assert (f"OPENAI_BASE_URL={case.url}/v1" in line) is case.is_hinted


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.EIO, errno.EPERM]
)
@pytest.mark.parametrize("filename", [None, "/some/file"])
def test_a_failure_of_the_machine_is_one_line_that_says_what_to_do(
    number: int, filename: str | None
) -> None:
    line = failures.trouble_of(OSError(number, "It Failed", filename)).line

    assert "it failed. " in line
    assert "should not happen" not in line


def test_a_store_that_keeps_nothing_breaks_the_promise_in_red() -> None:
    promise = checks._promise({"appendonly": "no"})
    unknown = checks._promise({})

    assert promise.level == "red"
    assert promise.words.startswith("broken if the server dies")
    assert unknown.level == "yellow"


def test_an_agent_file_that_fails_names_the_line_of_the_fault(tmp_path: Path) -> None:
    (tmp_path / "broken_helper.py").write_text("import json\n\njson.loads('{')\n")
    (tmp_path / "bad.py").write_text("import broken_helper\n")

    with pytest.raises(AgentNotFound) as caught:
        load_agent(f"{tmp_path / 'bad.py'}:agent")

    assert f"({tmp_path / 'broken_helper.py'}, line 3)" in str(caught.value)


def test_a_long_text_breaks_between_words() -> None:
    assert wrapped("one two three-four five\nsix", 20) == ["one two three-four", "five", "six"]


def test_a_command_to_paste_never_repeats_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSM_AGENT_STORE", "embedded:here")

    shown = [
        Settings(store).store_option
        for store in (
            "embedded:here",
            "redis://h/1",
            "unix:///a b",
            "redis://u:s3@h",
            "redis://u@h",
        )
    ]

    kept = ' --store "$FSM_AGENT_STORE_WITH_PASSWORD"'
    assert shown == [
        "",
        " --store redis://h/1",
        " --store 'unix:///a b'",
        kept,
        " --store redis://u@h",
    ]


def test_a_command_to_paste_means_no_other_store_whatever_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, other = "redis://:s3@h/0", "redis://:s4@other/0"

    for variables in ({}, {"FSM_AGENT_STORE_WITH_PASSWORD": other}):
        monkeypatch.setenv("FSM_AGENT_STORE", other)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        shown = Settings(here).store_option
        pasted = subprocess.run(
            ["sh", "-c", f"printf %s {shown.removeprefix(' --store ')}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert pasted == ""
    monkeypatch.setenv("FSM_AGENT_STORE_WITH_PASSWORD", here)
    assert Settings(here).store_option == ' --store "$FSM_AGENT_STORE_WITH_PASSWORD"'
    quoted = Settings("unix:///a $b'c").store_option
    assert shlex.split(quoted) == ["--store", "unix:///a $b'c"]
    lines = laid_out(Hint(f"fsm-agent list{quoted}"), 20)
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == [
        "fsm-agent", "list", "--store", "unix:///a $b'c",
    ]  # fmt: skip


def test_an_empty_store_is_refused_with_what_to_put_there() -> None:
    done = CliRunner().invoke(cli, ["list", "--store", ""])

    assert done.exit_code == 2
    assert "put the whole address" in " ".join(done.output.split())


def test_a_second_signal_says_what_is_left() -> None:
    main = (
        "import asyncio\n"
        "from fsm_agent.cli import process\n"
        "async def main():\n"
        "    print('begun', flush=True)\n"
        "    try:\n"
        "        await asyncio.sleep(60)\n"
        "    finally:\n"
        "        print('giving back', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "process.run(main)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", main], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for words in ("begun", "giving back"):
            assert process.stdout.readline().strip() == words
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "stopped at once" in said
    assert "Traceback" not in said


def test_a_level_of_the_log_that_is_none_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FSM_AGENT_LOG", "loud")

    logs.set_up()

    assert "FSM_AGENT_LOG is 'loud'. It is one of debug, info" in capsys.readouterr().err


def test_a_log_that_nobody_reads_any_more_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up()
    structlog.get_logger("x").warning("some.event", word="one")
    assert "some.event: word one" in capsys.readouterr().err
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    structlog.get_logger("x").warning("some.event", word="two")
