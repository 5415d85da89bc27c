"""A report as one page: a grid of points and faults, and each case that is not green."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from html import escape

from fsm_agent.testing.faults import CRASHES, Fault

from .case import Strike
from .evidence import Outcome
from .report import Colour, Report, colour_of, reasons
from .table import places, verdict

_SIGNS: dict[Colour, str] = {"green": "✓", "amber": "?", "red": "✗"}
_WORDS: dict[Colour, str] = {
    "green": "as undisturbed",
    "amber": "a person was asked",
    "red": "wrong",
}
_STYLE = """
:root { color-scheme: light dark; --page: #fbfaf7; --card: #fff; --ink: #1d1f23; --soft: #666b74;
  --line: #e4e1d9; --green: #1f7a4d; --green-bg: #dcf1e5; --amber: #8a5a00; --amber-bg: #fbe8bf;
  --red: #b3261e; --red-bg: #f9d9d6; }
@media (prefers-color-scheme: dark) { :root { --page: #14161a; --card: #1c1f25; --ink: #e8e6e1;
  --soft: #9aa0ab; --line: #2e323a; --green: #7fd8a8; --green-bg: #173426; --amber: #f0c36a;
  --amber-bg: #3a2d0f; --red: #ff9d94; --red-bg: #43191a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 3rem 1.5rem 5rem; }
h1 { font-size: 1.6rem; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 1.05rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: .85rem; font-weight: 500; color: var(--soft); margin: 1.5rem 0 .5rem; }
.task { color: var(--soft); margin: .25rem 0 1.5rem; }
.verdict { display: inline-block; padding: .5rem .9rem; border-radius: .5rem; font-weight: 600; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .75rem;
  overflow: auto; max-height: 85vh; width: fit-content; max-width: 100%; }
.cases { width: auto; }
table { border-collapse: separate; border-spacing: 0; font-size: .85rem; width: max-content; }
th, td { padding: .3rem .6rem; text-align: left; border-bottom: 1px solid var(--line); }
tr:last-child > * { border-bottom: 0; }
thead th { position: sticky; top: 0; background: var(--card); color: var(--soft);
  font-weight: 500; z-index: 1; }
.grid thead th { writing-mode: vertical-rl; transform: rotate(180deg); padding: .6rem .3rem;
  text-align: left; }
.grid thead th:first-child { writing-mode: horizontal-tb; transform: none;
  vertical-align: bottom; }
.grid tbody th { position: sticky; left: 0; background: var(--card); font-weight: 400;
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; white-space: nowrap; }
.grid td { text-align: center; padding: .2rem; min-width: 2.1rem; }
.cell { display: block; border-radius: .35rem; padding: .15rem 0; font-weight: 600; }
.green { color: var(--green); background: var(--green-bg); }
.amber { color: var(--amber); background: var(--amber-bg); }
.red { color: var(--red); background: var(--red-bg); }
.none { color: var(--line); }
.key { color: var(--soft); font-size: .85rem; margin: .75rem 0; }
.key .cell { display: inline-block; width: 1.6rem; text-align: center; margin: 0 .35rem 0 1rem; }
.key .cell:first-child { margin-left: 0; }
details { border-bottom: 1px solid var(--line); padding: .6rem .9rem; }
details:last-child { border-bottom: 0; }
summary { cursor: pointer; font-family: ui-monospace, Menlo, Consolas, monospace;
  font-size: .85rem; overflow-wrap: anywhere; }
summary .cell { display: inline-block; width: 1.6rem; text-align: center; margin-right: .6rem; }
details p { margin: .5rem 0 .25rem; overflow-wrap: anywhere; }
pre { margin: .5rem 0 .25rem; padding: .6rem .8rem; background: var(--page);
  border: 1px solid var(--line); border-radius: .4rem; overflow-x: auto; font-size: .8rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
"""


def page(report: Report, *, agent: str, task: str, took_s: float) -> str:
    """One self-contained page."""
    colour: Colour = "green" if report.is_ok else "red"
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Crash test of {escape(agent)}</title><style>{_STYLE}</style></head>",
            f"<body><main><h1>Crash test of {escape(agent)}</h1>",
            f'<p class="task">{escape(task)} · {escape(places(report))}</p>',
            f'<p class="verdict {colour}">{escape(verdict(report, took_s))}</p>',
            *_effects(report),
            *_grids(report),
            *_pairs(report),
            *_details(report),
            "</main></body></html>\n",
        )
    )


def _effects(report: Report) -> Iterator[str]:
    yield "<h2>Effects, counted outside the store</h2><div class='card'><table><thead><tr>"
    yield "".join(
        f"<th>{name}</th>"
        for name in ("tool", "effect", "undisturbed", "at least", "at most", "sent at most")
    )
    yield "</tr></thead><tbody>"
    for row in report.effects():
        yield f"<tr><th>{escape(row.tool)}</th><td>{escape(row.effect)}</td>"
        yield "".join(f'<td class="number">{number}</td>' for number in row[2:])
        yield "</tr>"
    yield "</tbody></table></div>"


def _grids(report: Report) -> Iterator[str]:
    singles = [o.case.strikes[0] for o in report.outcomes if len(o.case.strikes) == 1]
    yield "<h2>Where it was struck, and by what</h2>"
    yield _key()
    for heading, lasts, is_kill in (
        ("A process is killed", False, True),
        ("One request to the store meets a fault", False, False),
        ("Every request meets it from then on, until another process takes over", True, False),
    ):
        chosen = [s for s in singles if s.lasts == lasts and s.is_kill == is_kill]
        if not chosen:
            continue
        faults = sorted({strike.fault for strike in chosen}, key=list(Fault).index)
        found = {o.case.strikes[0]: o for o in report.outcomes if len(o.case.strikes) == 1}
        points = dict.fromkeys(strike.point for strike in chosen)
        rows = ((p, [found.get(Strike(p, fault, lasts)) for fault in faults]) for p in points)
        yield f"<h3>{heading}</h3>"
        yield from _table("point", [_column(fault) for fault in faults], rows)


def _pairs(report: Report) -> Iterator[str]:
    pairs = {
        (str(o.case.strikes[0].kill_at), str(o.case.strikes[1].kill_at)): o
        for o in report.outcomes
        if len(o.case.strikes) > 1
    }
    if not pairs:
        return
    names = sorted({second for _, second in pairs}, key=_place_in(report.points))
    firsts = sorted({first for first, _ in pairs}, key=_place_in(report.points))
    yield "<h2>Killed there, and the process that took over killed here</h2>"
    rows = ((first, [pairs.get((first, name)) for name in names]) for first in firsts)
    yield from _table("first kill", names, rows)


def _place_in(points: list[str]) -> Callable[[str], tuple[int, str]]:
    return lambda point: (points.index(point) if point in points else len(points), point)


def _table(
    corner: str, names: list[str], rows: Iterable[tuple[str, list[Outcome | None]]]
) -> Iterator[str]:
    yield f'<div class="card"><table class="grid"><thead><tr><th>{corner}</th>'
    yield "".join(f"<th>{escape(name)}</th>" for name in names)
    yield "</tr></thead><tbody>"
    for name, outcomes in rows:
        cells = "".join(f"<td>{_cell(outcome)}</td>" for outcome in outcomes)
        yield f"<tr><th>{escape(name)}</th>{cells}</tr>"
    yield "</tbody></table></div>"


def _column(fault: Fault) -> str:
    return f"kill {fault.value.partition('_')[2]}" if fault in CRASHES else fault.value


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return '<span class="none">·</span>'
    colour = colour_of(outcome)
    words = "; ".join((str(outcome.case), *(reasons(outcome) or [_WORDS[colour]])))
    return f'<span class="cell {colour}" title="{escape(words)}">{_SIGNS[colour]}</span>'


def _key() -> str:
    cells = "".join(
        f'<span class="cell {colour}">{_SIGNS[colour]}</span>{_WORDS[colour]}' for colour in _SIGNS
    )
    return f'<p class="key">{cells}</p>'


def _details(report: Report) -> Iterator[str]:
    found = [(colour_of(outcome), outcome) for outcome in report.outcomes]
    shown = [o for c, o in found if c == "red"] + [o for c, o in found if c == "amber"]
    if not shown:
        return
    yield "<h2>Every case that is not green</h2><div class='card cases'>"
    for outcome in shown:
        colour = colour_of(outcome)
        yield f"<details{' open' if colour == 'red' else ''}><summary>"
        yield f'<span class="cell {colour}">{_SIGNS[colour]}</span>{escape(str(outcome.case))}'
        yield "</summary>"
        yield from (f"<p>{escape(text)}</p>" for text in reasons(outcome))
        yield f"<pre>{escape(report.replay_line(outcome.case, report.seed))}</pre></details>"
    yield "</div>"
