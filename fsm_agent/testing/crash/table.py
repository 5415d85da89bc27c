"""A report in lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .evidence import Outcome
from .report import Effects, Report, colour_of, reasons

MAX_LISTED = 10


def lines(report: Report, *, took_s: float) -> Iterator[str]:
    """The tables of a report, what is wrong with it, and one last line with the verdict."""
    yield from _laid_out(("where", "runs", "as undisturbed", "asked", "wrong"), _rows(report))
    yield ""
    head = ("tool", "effect", "undisturbed", "took effect", "sent at most")
    yield from _laid_out(head, map(_effect_row, report.effects()))
    yield ""
    if report.in_doubt:
        tools = sorted({tool for outcome in report.in_doubt for tool in outcome.asked_in_doubt})
        yield (
            f"asked: in {_count(len(report.in_doubt), 'run')} nobody could know whether"
            f" {' and '.join(tools)} had taken effect, so a person was asked."
        )
    if report.uncalled:
        yield f"warning: this task never calls {', '.join(report.uncalled)}, which stays untested."
    if not report.is_comparable:
        yield "warning: two undisturbed runs gave different answers, so answers are not compared."
    if report.unsteady:
        yield (
            f"note: {_count(len(report.unsteady), 'case')} never came to their point, as parallel"
            f" calls may end together or apart: {', '.join(map(str, report.unsteady[:3]))}."
        )
    if report.skipped:
        yield f"warning: the budget was used up before {_count(len(report.skipped), 'case')}."
    yield from _failures(report)
    yield verdict(report, took_s)


def verdict(report: Report, took_s: float) -> str:
    """What came of it in a sentence."""
    runs = f"{_count(len(report.outcomes), 'run')} over {places(report)} in {took_s:.0f} s"
    if report.is_ok:
        return f"ok: {runs}, each ends as undisturbed, and no effect is doubled or lost."
    if report.failed:
        return f"failed: {len(report.failed)} of {runs}."
    why = "the budget was too small" if report.skipped_singles else "each run takes another way"
    return f"failed: {why}. {runs}."


def places(report: Report) -> str:
    """'46 points and 22 requests to the store'."""
    found = [_count(len(report.points), "point")] if report.points else []
    if report.wires:
        found.append(_count(len(report.wires), "request") + " to the store")
    return " and ".join(found) or "no point"


def _failures(report: Report) -> Iterator[str]:
    for outcome in report.failed[:MAX_LISTED]:
        yield f"wrong: {outcome.case}"
        for text in reasons(outcome):
            yield f"  {text}"
        yield f"  {report.replay_line(outcome.case, report.seed)}"
    if len(report.failed) > MAX_LISTED:
        yield f"and {len(report.failed) - MAX_LISTED} more."


def group_of(outcome: Outcome) -> str:
    """The row of a case: what it struck, without its number."""
    strikes = outcome.case.strikes
    name = strikes[0].point.partition("#")[0]
    return f"{name}, then again" if len(strikes) > 1 else name


def _rows(report: Report) -> list[tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for outcome in report.outcomes:
        groups.setdefault(group_of(outcome), []).append(colour_of(outcome))
    return [
        (name, str(len(found)), *(_or_dash(found.count(c)) for c in ("green", "amber", "red")))
        for name, found in groups.items()
    ]


def _effect_row(row: Effects) -> tuple[str, ...]:
    took = str(row.most) if row.least == row.most else f"{row.least} to {row.most}"
    again = " (same key)" if row.effect == "keyed" and row.most_sent > row.most else ""
    return row.tool, row.effect, str(row.expected), took, f"{row.most_sent}{again}"


def _laid_out(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Columns: the first two kinds of words to the left, numbers to the right."""
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    words = [all(not row[i][:1].isdigit() and row[i] != "–" for row in table[1:])
             for i in range(len(head))]  # fmt: skip
    for row in table:
        cells = [
            cell.ljust(width) if is_word else cell.rjust(width)
            for cell, width, is_word in zip(row, widths, words, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _or_dash(count: int) -> str:
    return str(count) if count else "–"


def _count(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
