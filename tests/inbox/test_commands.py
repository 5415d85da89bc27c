"""`fsm-agent inbox` and `link`, as processes; and the reports that the inbox shows."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from fsm_agent.inbox import reports
from tests.inbox.conftest import Opener, Site
from tests.integration.cli_kit import Cli, cli, kept_store, model_url

__all__ = ["cli", "kept_store", "model_url"]  # fixtures


@contextmanager
def inbox(cli: Cli, *arguments: str) -> Iterator[tuple[httpx2.Client, dict[str, str]]]:
    """A running inbox: a client, and what it said when it was ready."""
    process = cli.start("inbox", "--port", "0", "--json", *arguments)
    try:
        assert process.stdout
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        told = json.loads(line)
        base = told["url"].partition("/inbox")[0]
        with httpx2.Client(base_url=base, trust_env=False, timeout=20) as client:
            yield client, told
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_inbox_lets_in_whoever_has_its_token_and_decides(cli: Cli) -> None:
    run_id = cli.run("pay").run_id

    with inbox(cli) as (client, told):
        token = told["url"].partition("#")[2]
        headers = {"Authorization": f"Bearer {token}"}
        assert client.get("/v1/approvals").status_code == 401
        listed = client.get(f"/v1/approvals?run_id={run_id}", headers=headers).json()
        (item,) = listed["approvals"]
        decided = client.post(
            f"/v1/approvals/{item['id']}/decision",
            json={"verb": "approve", "args_sha256": item["args_sha256"]},
            headers=headers,
        )
        assert decided.status_code == 200
        assert item["agent"] == "desk"
    resumed = cli("resume", run_id)

    assert resumed.code == 0
    assert (cli.folder / "paid.txt").read_text() == "100\n"


def test_people_of_a_file_are_added_with_a_token_that_is_shown_once(cli: Cli) -> None:
    added = cli("inbox", "--users", "users.json", "--add", "mia", "--role", "operator",
                "--group", "support", "--group", "leads")  # fmt: skip
    token = added.out.strip()

    kept = (cli.folder / "users.json").read_text()
    assert token not in kept
    assert '"groups": [' in kept
    assert (cli.folder / "users.json").stat().st_mode & 0o077 == 0
    with inbox(cli, "--users", "users.json", "--host", "0.0.0.0") as (client, told):
        assert told["auth"] == "users"
        port = client.base_url.port
        url = f"http://127.0.0.1:{port}/v1/runs"
        assert client.get(url).status_code == 401
        assert client.get(url, headers={"Authorization": f"Bearer {token}"}).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--users", "none.json"], "--add"),
        (["--add", "mia"], "--add needs --users"),
        (["--proxy-header", "X-Email"], "FSM_AGENT_PROXY_SECRET"),
        (["--users", "u", "--proxy-header", "X"], "give one of"),
    ],
)
def test_an_inbox_that_cannot_be_is_refused(cli: Cli, arguments: list[str], words: str) -> None:
    done = cli("inbox", *arguments)

    assert done.code == 2
    assert words in done.err


def test_a_port_in_use_is_said_so(cli: Cli) -> None:
    with inbox(cli) as (client, _):
        done = cli("inbox", "--port", str(port := client.base_url.port))

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"cannot listen on 127.0.0.1:{port}: " in done.err
    assert "in use" in done.err


def test_a_link_of_the_command_decides_once_in_a_running_inbox(cli: Cli) -> None:
    run_id = cli.run("pay").run_id
    ask_id = "a4-0"
    with inbox(cli) as (client, _):
        base = str(client.base_url).rstrip("/")
        made = cli("link", run_id, ask_id, "--for", "leo", "--verbs", "approve,reject",
                   "--expires", "2h", "--base-url", base)  # fmt: skip
        url = made.out.strip()
        assert client.get(url).status_code == 200
        pressed = client.post(url, data={"verb": "approve"})
        again = client.post(url, data={"verb": "reject"})

    assert made.code == 0
    assert (pressed.status_code, again.status_code) == (200, 409)
    audit = [o for o in cli("audit", run_id).objects if o["fact"]["kind"] == "attested"]
    assert cli("resume", run_id).code == 0
    audit = [o for o in cli("audit", run_id).objects if o["fact"]["kind"] == "attested"]
    assert [(o["fact"]["by"], o["fact"]["channel"]) for o in audit] == [("leo", "link")]


@pytest.mark.parametrize(
    "arguments",
    [["--for", " "], ["--for", "leo", "--expires", "5"], ["--for", "leo", "--expires", "1000d"],
     ["--for", "leo", "--verbs", "edit"], ["--for", "leo", "--verbs", "explode"], []],
)  # fmt: skip
def test_a_link_that_makes_no_sense_is_refused(cli: Cli, arguments: list[str]) -> None:
    run_id = cli.run("pay").run_id

    assert cli("link", run_id, "a4-0", *arguments).code == 2


def test_a_picture_needs_no_graphviz(cli: Cli) -> None:
    run_id = cli.run("plain").run_id

    done = cli("graph", run_id, "--svg", env={"PATH": str(cli.folder)})

    assert done.code == 0
    assert done.out.startswith("<svg ")
    assert 'class="state visited current final"' in done.out


REPORT = {
    "ok": False, "points": 3, "runs": 4, "effects": {"pay": 1}, "in_doubt": 1,
    "cases": [
        {"point": "commit#1:before", "fault": "kill", "ok": True},
        {"point": "commit#1:before", "fault": "lost_reply", "ok": True, "in_doubt": ["c4-0"]},
        {"point": "tool pay:after", "fault": "kill", "ok": False, "problems": ["effect doubled"],
         "replay": "fsm-agent crashtest x --replay 'tool pay:after=kill'"},
    ],
}  # fmt: skip


LINES = [  # as `fsm-agent crashtest --json` prints them
    {"event": "case", "case": "commit#1:before=kill", "colour": "green", "asked": [],
     "reasons": []},
    {"event": "case", "case": "commit#1:before=lost_reply", "colour": "amber", "asked": ["pay"],
     "reasons": []},
    {"event": "case", "case": "tool pay:after=kill", "colour": "red", "asked": [],
     "reasons": ["effect doubled"], "replay": "fsm-agent crashtest x --replay 'tool pay'"},
    {"event": "crashtest", "ok": False, "points": 3, "runs": 3, "failed": ["tool pay:after=kill"]},
]  # fmt: skip


@pytest.mark.parametrize("form", ["json", "jsonl"])
async def test_a_crash_report_is_a_grid(open_site: Opener, tmp_path: Path, form: str) -> None:
    if form == "json":
        (tmp_path / "r.json").write_text(json.dumps(REPORT))
    else:
        (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    site: Site = await open_site(reports=tmp_path)

    report = reports.read(tmp_path, f"r.{form}")
    listed = await site.get("/crash", "root", Accept="text/html")
    page = await site.get(f"/crash/r.{form}", "root", Accept="text/html")

    assert report.faults == ["kill", "lost_reply"]
    assert report.is_ok is False
    colours = {point: [cell and cell.colour for cell in cells] for point, cells in report.rows}
    assert colours == {"commit#1:before": ["green", "amber"], "tool pay:after": ["red", None]}
    assert f"/crash/r.{form}" in listed.text
    assert "effect doubled" in page.text
    assert "--replay" in page.text
