"""prune, purge, export and verify: what is kept of runs, on a store of its own."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints.embedded import EmbeddedServer
from tests.integration.cli_kit import Cli, Done, cli, kept_store, model_url

__all__ = ["cli", "kept_store", "model_url"]  # fixtures


@pytest.fixture
def own(cli: Cli) -> Iterator[Cli]:
    """The command line on a store that no other test uses."""
    folder = Path(tempfile.mkdtemp(prefix="fsm-keep-"))
    server = EmbeddedServer(folder)
    server.enter()
    cli.store = f"embedded:{folder}"
    yield cli
    server.leave()
    shutil.rmtree(folder, ignore_errors=True)


def names(done: Done) -> list[str]:
    return [line.split()[0] for line in done.out.splitlines()]


def test_prune_removes_finished_runs_only_and_says_which(own: Cli) -> None:
    finished, waiting = own.run("plain").run_id, own.run("pay").run_id

    dry = own("prune", "--older-than", "0s", "--dry-run")
    old = own("prune", "--older-than", "1h")
    done = own("prune", "--older-than", "0s", "--json")

    assert names(dry) == [finished]
    assert "1 finished run(s) would be removed" in dry.err
    assert (old.out, "0 finished run(s) removed" in old.err) == ("", True)
    assert [(o["run_id"], o["is_dry_run"]) for o in done.objects] == [(finished, False)]
    assert [o["run_id"] for o in own("list", "--json").objects] == [waiting]
    assert own("show", finished).code == 2
    refused = own("prune", "--older-than", "soon")
    assert (refused.code, "30d" in refused.err) == (2, True)


def test_purge_leaves_no_trace_and_refuses_what_is_under_way(own: Cli) -> None:
    run_id = own.run("pay").run_id

    refused = own("purge", run_id)
    dry = own("purge", run_id, "--force", "--dry-run")
    done = own("purge", run_id, "--force")

    assert (refused.code, "is not finished (waiting)" in refused.err) == (2, True)
    assert dry.out.split() == done.out.split() == [run_id]
    assert own("list").out == ""
    again = own("purge", run_id)
    assert (again.code, "no run is named" in again.err) == (2, True)


def test_an_export_verifies_until_anything_in_it_is_changed(own: Cli, tmp_path: Path) -> None:
    first, second = own.run("look").run_id, own.run("plain").run_id
    file = tmp_path / "runs.jsonl"

    done = own("export", "--all", "--out", str(file))

    assert "2 run(s) exported" in done.err
    found = own("verify", str(file), "--json")
    assert found.code == 0
    assert {o["run_id"] for o in found.objects} == {first, second}
    assert own("verify", "-", given=file.read_text()).code == 0
    assert own("export", "--all", "-o", str(file)).code == 2  # never written over

    lines = file.read_text().splitlines()
    entry = next(n for n, line in enumerate(lines) if json.loads(line).get("seq") == 2)
    changed = json.loads(lines[entry])
    for damage, word in (
        ([*lines[:entry], *lines[entry + 1 :]], "stands where entry 2 belongs"),
        ([*lines[:entry], json.dumps(changed | {"at_ms": 1}), *lines[entry + 1 :]], "the facts of"),
        ([*lines[:entry], json.dumps(changed | {"body": "kA=="})], "do not match their hash"),
        ([json.dumps(json.loads(lines[0]) | {"ending": "no"}), *lines[1:]], "was changed"),
        ([lines[0].replace('"ending"', '"ending": "no", "ending"'), *lines[1:]], "twice"),
        (['{"event": ' + "[" * 100_000], "no line of an export"),
        (lines[:-1], "has no end"),
        (["nonsense"], "no line of an export"),
        ([], "nothing in it"),
        ([*lines, lines[1]], "belongs to no run"),
    ):
        bad = own("verify", "-", given="\n".join(damage))
        assert (bad.code, word in bad.err, "line " in bad.err) == (1, True, True), bad


def test_one_run_is_exported_to_stdout_and_an_unknown_one_is_not(own: Cli) -> None:
    run_id = own.run("plain").run_id

    done = own("export", run_id)

    kinds = [o["event"] for o in done.objects]
    assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("export", "end", {"entry"})
    assert done.objects[0]["run_id"] == run_id
    assert own("export", "nobody").code == 2
    assert own("export").code == own("export", run_id, "--all").code == 2


def test_runs_are_kept_as_long_as_the_environment_says(own: Cli) -> None:
    done = own("run", "--agent", "desk.py:agent", "plain", env={"FSM_AGENT_KEEP": "1s"})
    assert done.code == 0

    bad = own("run", "--agent", "desk.py:agent", "plain", env={"FSM_AGENT_KEEP": "long"})

    assert (bad.code, "FSM_AGENT_KEEP" in bad.err) == (2, True)
