"""The journal of a run as rows to read, and what it adds up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fsm_agent.run.delta import Began, Intended, Resumed, Ruled
from fsm_agent.run.event import EntryEvent
from fsm_agent.run.record import replay
from fsm_agent.telling.words import Story, Tone, seconds


class Row(NamedTuple):
    """One line of a timeline. `seq` is empty for a mark that stands between entries."""

    seq: str
    at: str  # since the run began
    place: str
    text: str
    tone: Tone
    more: str


def rows_of(events: Sequence[EntryEvent]) -> list[Row]:
    """All that happened, in order. A worker's death stands before what the next one did."""
    story, rows = Story(), []
    began_ms = events[0].record.at_ms if events else 0
    for event in events:
        at = since(event.record.at_ms - began_ms)
        for line in story.tell(event):
            is_mark = line.place.startswith("✖")
            row = Row("" if is_mark else str(event.seq), "" if is_mark else at, *line[:4])
            rows.append(row)
    return rows


def since(ms: int) -> str:
    """A time in a run: '+1.24 s', '+3:07', '+2.5 h'."""
    if ms < 60_000:
        return f"+{ms / 1000:.2f}s"
    if ms < 3_600_000:
        return f"+{ms // 60_000}:{ms % 60_000 // 1000:02d}"
    return f"+{ms / 3_600_000:.1f}h"


def totals_of(events: Sequence[EntryEvent]) -> dict[str, int]:
    """What the run came to, by name; names that end in `_ms` are spans."""
    run = replay(events[0].run_id, [event.record for event in events])
    deltas = [delta for event in events for delta in event.record.deltas]
    workers = {delta.owner for delta in deltas if isinstance(delta, Resumed)}
    again = sum(isinstance(delta, Intended) and delta.attempt > 1 for delta in deltas)
    return {
        "entries": len(events),
        "turns": run.turns,
        "tokens": run.spent_tokens,
        "model_calls": sum(isinstance(delta, Began) for delta in deltas),
        "tool_calls": run.tool_calls,
        "sent_again": again,
        "decisions": sum(isinstance(delta, Ruled) for delta in deltas),
        "workers": len(workers),
        "takeovers": run.takeovers,
        "in_all_ms": run.updated_ms - run.created_ms,
        "of_that_waiting_ms": run.waited_ms,
    }


def totals_line(totals: Mapping[str, int]) -> str:
    """Totals on one line: 'turns 3, tokens 5,650, in all 14 s'."""
    parts = []
    for name, value in totals.items():
        words = name.removesuffix("_ms").replace("_", " ")
        parts.append(f"{words} {seconds(value) if name.endswith('_ms') else f'{value:,}'}")
    return ", ".join(parts)
