"""A run's journal as its page shows it: words, what each entry changed, where it can be forked."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import msgspec

from fsm_agent.engine.forking import effects_of, whole_steps
from fsm_agent.run import codec
from fsm_agent.run.delta import Intended
from fsm_agent.run.event import EntryEvent
from fsm_agent.run.record import Run, apply
from fsm_agent.run.state import State
from fsm_agent.telling.clean import cleaned
from fsm_agent.telling.plain import plain
from fsm_agent.telling.words import Line, Story

Change = tuple[str, str, str]  # what, before, after; '' where it was not there


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a journal."""

    seq: int
    at_ms: int
    since_ms: int  # since the entry before
    state: State
    trigger: str
    lines: Sequence[Line]
    size_bytes: int
    facts: str  # JSON, to be looked at
    changes: Sequence[Change]  # of the run's state
    is_whole: bool  # a run may be forked here
    again: Sequence[str]  # tools whose effects came later, and may come again in a fork


def entries_of(run_id: str, events: Sequence[EntryEvent]) -> list[Entry]:
    """The whole journal: `events` are all of it."""
    story, found, before_ms = Story(), [], events[0].record.at_ms if events else 0
    runs = list(_folded(run_id, events))
    whole = frozenset(whole_steps(runs))
    again = _again(events, runs)
    for at, event in enumerate(events):
        record = event.record
        facts = [plain(delta) for delta in record.deltas]
        found.append(
            Entry(
                seq=event.seq,
                at_ms=record.at_ms,
                since_ms=max(0, record.at_ms - before_ms),
                state=event.state,
                trigger=record.trigger.value if record.trigger else "created",
                lines=story.tell(event),
                size_bytes=len(codec.encode(record)),
                facts=msgspec.json.format(msgspec.json.encode(facts)).decode(),
                changes=changes_of(runs[at - 1] if at else Run(run_id=run_id), runs[at]),
                is_whole=event.seq in whole,
                again=again[at],
            )
        )
        before_ms = record.at_ms
    return found


def _folded(run_id: str, events: Sequence[EntryEvent]) -> Iterator[Run]:
    run = Run(run_id=run_id)
    for event in events:
        run = apply(run, event.record)
        yield run


def _again(events: Sequence[EntryEvent], runs: Sequence[Run]) -> list[Sequence[str]]:
    """For each entry the tools that had an effect after it, which a fork at it may repeat. A call
    that is under way there is left out: in the fork it is in doubt, and a person is asked."""
    effects = frozenset(effects_of(event.record for event in events))
    later: dict[str, str] = {}  # tool by call
    found: list[Sequence[str]] = []
    for event, run in zip(reversed(events), reversed(runs), strict=True):
        under_way = {call.call.call_id for call in run.calls if call.phase == "started"}
        found.append(sorted({name for each, name in later.items() if each not in under_way}))
        names = {call.call.call_id: call.call.name for call in run.calls}
        for fact in event.record.deltas:
            if isinstance(fact, Intended) and fact.call_id in effects:
                later[fact.call_id] = names.get(fact.call_id, fact.call_id)
    return found[::-1]


def changes_of(before: Run, after: Run) -> list[Change]:
    """What an entry changed of a run, by the fold: its state, its budgets, its calls, its plan."""
    old, new = _view(before) if before.seq else {}, _view(after)
    return [
        (name, old.get(name, ""), new.get(name, ""))
        for name in dict.fromkeys((*old, *new))
        if old.get(name, "") != new.get(name, "")
    ]


def _view(run: Run) -> dict[str, str]:
    limits = run.limits
    found = {
        "state": run.state.value,
        "phase": run.phase,
        "turns": f"{run.turns} of {limits.turns}",
        "tokens": f"{run.spent_tokens:,} of {limits.tokens:,}",
        "reserved tokens": f"{run.reserved_tokens:,}" if run.reserved_tokens else "",
        "money": f"{run.spent_micros / 1_000_000:.6f}" if run.spent_micros else "",
        "tool calls": f"{run.tool_calls} of {limits.tool_calls}",
        "model attempts": f"{run.attempts}",
        "repairs in a row": f"{run.repairs}" if run.repairs else "",
        "takeovers": f"{run.takeovers}" if run.takeovers else "",
        "messages": f"{len(run.messages)}",
        "consents": f"{len(run.consents)}" if run.consents else "",
        "last turns": f"{run.final_turns_left} left" if run.final_turns_left is not None else "",
    }
    for call in run.calls:
        status = f", {call.result.status}" if call.result else ""
        approved = ", approved" if call.is_approved and not call.result else ""
        found[f"call {call.call.call_id} {call.call.name}"] = f"{call.phase}{status}{approved}"
    for number, step in enumerate(run.plan, 1):
        found[f"plan {number}"] = f"{step.text} ({step.status})"
    return found


def crash_test_of(agent_path: str, task: str) -> str:
    """A line for a shell that crash-tests an agent with a run's task."""
    return f"fsm-agent crashtest {shlex.quote(agent_path)} --task {shlex.quote(cleaned(task))}"
