"""The demo, as a newcomer runs it: in a pipe, on a terminal, and cut short."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.integration.cli_kit import CHECKOUT, Cli, cli, interrupt, kept_store, model_url

__all__ = ["cli", "kept_store", "model_url"]  # fixtures


def test_the_demo_in_a_pipe_proves_what_it_says(cli: Cli) -> None:
    before = _examples()
    bare = {k: v for k, v in cli.env.items() if not k.startswith(("OPENAI_", "FSM_"))}
    cli.env = bare | {"TMPDIR": str(cli.folder)}

    began = time.monotonic()
    done = cli("demo")

    assert done.code == 0, done.out + done.err
    assert time.monotonic() - began < 60  # 15 s where nothing else runs
    assert "✖ SIGKILL" in done.out
    assert "died here: 1 call was under way (send_credit_note)" in done.out
    assert re.search(r"credit note \(keyed\)\s+sent 2 times\s+took effect 1", done.out)
    assert re.search(r"refund \(unsafe\)\s+sent 1 time\s+took effect 1", done.out)
    assert "✗" not in done.out
    assert _counts(cli.folder) == {"credit_note": (2, 1), "refund": (1, 1)}
    assert _examples() == before
    shown = next(line for line in done.out.splitlines() if "fsm-agent show" in line)
    assert cli(*shown.split()[1:]).code == 0


def test_the_demo_as_json_ends_with_its_verdict(cli: Cli) -> None:
    cli.env |= {"TMPDIR": str(cli.folder)}

    done = cli("demo", "--yes", "--json")
    verdict = done.objects[-1]

    assert done.code == 0
    assert verdict["is_so"] is True
    assert all(check["is_so"] for check in verdict["checks"])
    assert [e["took_effect"] for e in verdict["effects"]] == [1, 1]


def test_ctrl_c_ends_the_demo_and_its_worker(cli: Cli) -> None:
    cli.env |= {"TMPDIR": str(cli.folder)}
    demo = cli.start("demo")
    assert demo.stdout
    line = next(line for line in demo.stdout if "worker 1 is process" in line)
    pid = int(line.rsplit(" ", 1)[1])
    interrupt(demo)
    ended = cli.end(demo)

    assert ended.code == 130
    assert not Path(f"/proc/{pid}").exists()


def test_on_a_terminal_the_demo_asks_and_takes_a_no(cli: Cli) -> None:
    cli.env |= {"TMPDIR": str(cli.folder), "TERM": "xterm-256color", "COLUMNS": "100"}
    shown, code = _on_a_terminal(cli, ["demo"], {"[a] approve (Enter)": "r\n", "why?": "no\n"})

    assert code == 0, shown
    assert "issue_refund rejected by" in shown
    assert "A colleague looks at the refund again" in " ".join(shown.split())
    assert _counts(cli.folder) == {"credit_note": (2, 1)}


def test_on_a_terminal_a_run_asks_right_there(cli: Cli) -> None:
    cli.env |= {"TERM": "xterm-256color", "COLUMNS": "100", "FSM_AGENT_STORE": cli.store}
    shown, code = _on_a_terminal(
        cli, ["run", "--agent", "desk.py:agent", "pay"], {"[a] approve": "a\n"}
    )

    assert code == 0, shown
    assert "pay needs your approval" in shown
    assert shown.count("It is paid.") == 1
    assert (cli.folder / "paid.txt").read_text() == "100\n"


def test_skipping_on_a_terminal_leaves_the_run_waiting(cli: Cli) -> None:
    cli.env |= {"TERM": "xterm-256color", "COLUMNS": "100", "FSM_AGENT_STORE": cli.store}
    shown, code = _on_a_terminal(
        cli, ["run", "--agent", "desk.py:agent", "pay"], {"[a] approve": "s\n"}
    )

    assert code == 3, shown
    assert "fsm-agent approve" in shown
    assert not (cli.folder / "paid.txt").exists()


def _on_a_terminal(cli: Cli, arguments: list[str], answers: dict[str, str]) -> tuple[str, int]:
    """Run a command on a pseudo terminal and type each answer once its prompt is there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fsm_agent", *arguments],
        cwd=cli.folder,
        env=cli.env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown, left = b"", dict(answers)
    end = time.monotonic() + 60
    try:
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    got = os.read(ours, 65_536)
                except OSError:  # the other end is closed
                    break
                shown += got
            for prompt in [p for p in left if p.encode() in shown]:
                os.write(ours, left.pop(prompt).encode())
            if process.poll() is not None and not select.select([ours], [], [], 0.1)[0]:
                break
    finally:
        if process.poll() is None and time.monotonic() >= end:
            process.send_signal(signal.SIGKILL)
    code = process.wait(timeout=10)
    os.close(ours)
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", shown.decode(errors="replace")), code


def _counts(folder: Path) -> dict[str, tuple[int, int]]:
    """What was sent and what took effect, from the ledger itself."""
    (ledger,) = folder.glob("fsm-agent-demo-*/desk/ledger.jsonl")
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    return {
        what: (
            sum(entry["what"] == what for entry in entries),
            sum(entry["what"] == what and entry["took_effect"] for entry in entries),
        )
        for what in {entry["what"] for entry in entries}
    }


def _examples() -> list[str]:
    return sorted(
        str(path) for path in (CHECKOUT / "examples").rglob("*") if "__pycache__" not in str(path)
    )
