"""`chaos`: kill and freeze a fleet of our own, and count what is left."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.failures import CliError
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import current, json_only

if TYPE_CHECKING:
    from fsm_agent.testing.chaos import Report


@click.command("chaos")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.05, max=10_000),
    default=1.0,
    show_default=True,
    help="How long things go wrong.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=3, show_default=True)
@click.option("--runs", type=click.IntRange(1, 100_000), default=20, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of what goes wrong when.")
@json_only
def chaos_command(minutes: float, workers: int, runs: int, seed: int) -> int:
    """Kill and freeze a fleet's workers and its store, and count what is left.

    Real worker processes get SIGKILL, and SIGSTOP for longer than their lease; the store's server
    gets SIGKILL. Effects are counted in a file outside the store. The exit code is 0 only if every
    promise was kept and something went wrong. The folder with all logs is kept if not.
    """
    from fsm_agent.testing.chaos import Plan, play

    if current().is_store_given:
        raise CliError("chaos has a store of its own. Leave --store out.", failures.USAGE)
    plan = Plan(minutes=minutes, workers=workers, runs=runs, seed=seed)
    folder = Path(tempfile.mkdtemp(prefix="fsm-agent-chaos-"))
    try:
        report = process.run(lambda: play(plan, folder, say))
    except BaseException:
        say(f"what came of it so far is in {folder}")
        raise
    if current().is_json:
        put(asjson.line(_figures(report)))
    else:
        _print(report)
    if not report.is_kept:
        say(f"the store, the ledger and the logs are in {folder}")
        return failures.FAILED
    shutil.rmtree(folder, ignore_errors=True)
    return failures.DONE


def _figures(report: Report) -> dict[str, Any]:
    verdict = report.verdict
    return {
        "event": "chaos",
        "is_kept": report.is_kept,
        "minutes": report.plan.minutes,
        "workers": report.plan.workers,
        "runs": report.plan.runs,
        "seed": report.plan.seed,
        "done": report.done,
        "takeovers": verdict.takeovers,
        "in_doubt": verdict.in_doubt,
        "effects_sent": verdict.sent,
        "took_s": round(report.took_s, 1),
        "checks": {check.name: check.broken for check in verdict.checks},
    }


def _print(report: Report) -> None:
    plan, verdict = report.plan, report.verdict
    put(f"{plan.runs} runs, {plan.workers} workers, {plan.minutes:g} min, seed {plan.seed}")
    rows: list[tuple[str, object]] = [
        ("SIGKILL to a worker", report.done["kill"]),
        ("SIGSTOP longer than the lease, then SIGCONT", report.done["freeze"]),
        ("SIGKILL to the store's server", report.done["kill store"]),
        ("runs taken over from a dead or frozen worker", verdict.takeovers),
        ("calls in doubt that a person settled", verdict.in_doubt),
        ("effects sent, repeats under one key included", verdict.sent),
    ]
    rows += [
        (check.name, "kept" if check.is_kept else f"BROKEN by {len(check.broken)}")
        for check in verdict.checks
    ]
    for name, value in rows:
        put(f"  {name:58} {value}")
    for check in verdict.checks:
        for line in check.broken:
            put(f"    {check.name}: {line}")
    if not sum(report.done.values()):
        put("  nothing went wrong, so this proves nothing. Give it more --minutes.")
