"""`python -m fsm_agent.testing.explorer`: every variant, to its end."""

from __future__ import annotations

import json

import click

from .search import Finding, explore
from .variants import VARIANTS, Variant


@click.command()
@click.option("--only", metavar="WORDS", default="", help="Variants whose name has these words.")
@click.option(
    "--max-states",
    type=click.IntRange(min=1),
    default=5_000_000,
    show_default=True,
    help="Go no further in a variant than this.",
)
@click.option("--way", "shows_way", is_flag=True, help="Print how each broken promise is broken.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object a line.")
def main(only: str, max_states: int, shows_way: bool, is_json: bool) -> None:
    """Explore the lease and commit protocol, and what it is without each of its checks.

    The exit code is 1 if the protocol breaks a promise, or if a mutant does not.
    """
    is_expected = True
    if not is_json:
        click.echo(f"{'variant':42} {'states':>8} {'depth':>5} {'s':>6}  result")
    for variant in VARIANTS:
        if only in variant.name:
            finding = explore(variant.rules, variant.bounds, max_states=max_states)
            is_expected &= finding.broken == variant.broken
            _tell(variant, finding, shows_way=shows_way, is_json=is_json)
    raise SystemExit(not is_expected)


def _tell(variant: Variant, finding: Finding, *, shows_way: bool, is_json: bool) -> None:
    if is_json:
        told = {
            "variant": variant.name,
            "states": finding.states,
            "depth": finding.depth,
            "took_s": round(finding.took_s, 1),
            "broken": finding.broken,
            "expected": variant.broken,
            "is_exhaustive": finding.is_exhaustive,
            "way": finding.way,
        }
        click.echo(json.dumps(told))
        return
    row = f"{variant.name:42} {finding.states:8,} {finding.depth:5} {finding.took_s:6.1f}"
    click.echo(f"{row}  {finding.result}")
    if finding.broken != variant.broken:
        click.echo(f"  NOT AS EXPECTED: {variant.broken or 'safe'}")
    if shows_way or finding.broken != variant.broken:
        for number, words in enumerate(finding.way, 1):
            click.echo(f"  {number:3}  {words}")


if __name__ == "__main__":
    main()
