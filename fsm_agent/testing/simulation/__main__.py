"""`python -m fsm_agent.testing.simulation`: many seeds, or one again with everything it did."""

from __future__ import annotations

import json
import time
from collections import Counter

import click

from .simulate import Outcome, simulate
from .weather import Fault


@click.command()
@click.option("--seeds", default=500, type=click.IntRange(min=1), show_default=True, metavar="N")
@click.option("--from", "first", default=0, metavar="N", help="The first seed.  [default: 0]")
@click.option("--seed", type=int, help="Run only this one, and print its trace.")
@click.option("--json", "is_json", is_flag=True, help="Print the figures as JSON.")
def main(seeds: int, first: int, seed: int | None, is_json: bool) -> None:
    """Run the engine through seeds of simulated faults; 1 if any of them breaks a promise."""
    if seed is not None:
        outcome = simulate(seed)
        for line in outcome.trace:
            click.echo(line)
        _tell_broken(outcome)
        raise SystemExit(bool(outcome.broken))
    began = time.perf_counter()
    failed, total, faults = 0, Outcome(seed=first), Counter[Fault]()
    for number in range(first, first + seeds):
        outcome = simulate(number)
        failed += bool(outcome.broken)
        _tell_broken(outcome)
        total.runs += outcome.runs
        total.takeovers += outcome.takeovers
        total.virtual_s += outcome.virtual_s
        faults += outcome.faults
    figures = {
        "seeds": seeds,
        "runs": total.runs,
        "failed_seeds": failed,
        "claims_after_the_first": total.takeovers,
        "virtual_s": round(total.virtual_s),
        "took_s": round(time.perf_counter() - began, 1),
        "faults": {str(name): faults[name] for name in Fault},
    }
    _tell(figures, is_json)
    raise SystemExit(bool(failed))


def _tell_broken(outcome: Outcome) -> None:
    if outcome.broken:
        click.echo(f"seed {outcome.seed} breaks a promise. Replay: {outcome.replay}", err=True)
        for line in outcome.broken:
            click.echo(f"  {line}", err=True)


def _tell(figures: dict[str, object], is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        shown = " ".join(f"{k} {n}" for k, n in value.items()) if isinstance(value, dict) else value
        click.echo(f"{name.replace('_', ' '):24}{shown}")


if __name__ == "__main__":
    main()
