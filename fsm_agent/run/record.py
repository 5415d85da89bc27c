"""The one pure fold that makes a run from its journal, and the value that it makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from fsm_agent.errors import CorruptRecord

from .accounts import ceiling, fold_attempt, settled_call, spend_reserve
from .calls import counted, fold_detail, fold_fork, fold_result, fold_ruling, with_call
from .content import NoteMessage, UserMessage
from .conversation import (
    DRAFT_CHARS,
    KEPT_STEPS,
    fold_files,
    fold_reply,
    fold_signature,
    message_size,
    say,
)
from .delta import (
    OPERATOR_KINDS,
    Answered,
    AnyDelta,
    Asked,
    Assessed,
    Barred,
    Began,
    Carried,
    Charged,
    Commented,
    Consented,
    Created,
    Criticised,
    Cut,
    Delegated,
    Detailed,
    Enclosed,
    Entered,
    Failed,
    Filed,
    Finalising,
    Forked,
    Given,
    Hinted,
    Intended,
    Judged,
    ModelFailed,
    Nested,
    Noticed,
    Observed,
    Perceived,
    Planned,
    Proposed,
    Raised,
    Replied,
    Resumed,
    Revoked,
    Ruled,
    Settled,
    Signed,
    Stepped,
    Summarised,
    Versioned,
    Voted,
    Withheld,
)
from .state import State, Trigger, destination
from .value import CallPhase, OpenCall, PlanStep, Record, Run

__all__ = [
    "DRAFT_CHARS",
    "KEPT_SCORES",
    "KEPT_STEPS",
    "CallPhase",
    "OpenCall",
    "PlanStep",
    "Record",
    "Run",
    "apply",
    "fold",
    "message_size",
    "moved",
    "replay",
    "taken",
]

KEPT_SCORES = 16  # of turns


def apply(run: Run, record: Record) -> Run:
    """The run after a recorded transition. Raises CorruptRecord if no arrow leads there."""
    if (record.trigger is None) != (run.seq == 0):
        raise CorruptRecord(f"entry {run.seq + 1} is not where a run begins")
    state = destination(run.state, record.trigger) if record.trigger else run.state
    if state is None:
        raise CorruptRecord(
            f"entry {run.seq + 1} says {record.trigger!r}, which {run.state} does not allow"
        )
    return moved(taken(run, record), record, state)


def taken(run: Run, record: Record) -> Run:
    """The run with the record's deltas, still in the state it stood in: what guards look at."""
    calls = () if record.trigger is Trigger.CONTINUED else run.calls
    run = replace(run, seq=run.seq + 1, calls=calls)
    for delta in record.deltas:
        run = fold(run, delta, at_ms=record.at_ms)
    return run


def moved(run: Run, record: Record, state: State) -> Run:
    """The run in its new state."""
    return replace(run, state=state, updated_ms=record.at_ms)


def replay(run_id: str, records: Iterable[Record]) -> Run:
    """The run that its journal makes."""
    run = Run(run_id=run_id)
    for record in records:
        run = apply(run, record)
    return run


def fold(run: Run, delta: AnyDelta, *, at_ms: int = 0) -> Run:
    """The run after `delta`, recorded at `at_ms`. Live and replayed, all goes through here."""
    match delta:
        # What every turn has comes first: the kinds are tried one after the other.
        case Began():
            return fold_attempt(run, delta)
        case Replied():
            return fold_reply(run, delta)
        case Intended():
            run = counted(run, delta.call_id)
            call = run.call(delta.call_id)
            run = replace(run, tool_calls=run.tool_calls + (call.starts == 0))
            since_ms = call.since_ms if call.intent else delta.at_ms
            return with_call(
                run,
                replace(
                    call,
                    intent=delta,
                    starts=delta.attempt,
                    since_ms=since_ms,
                    origin="",
                    asked="",
                ),
            )
        case Settled():
            return fold_result(run, delta)
        case Assessed():
            scores = (*run.scores[1 - KEPT_SCORES :], delta.score)
            return replace(run, scores=scores, low=delta.low)
        case Judged():
            return with_call(run, replace(run.call(delta.call_id), verdict=delta))
        case Created():
            return say(
                replace(
                    run,
                    agent=delta.agent,
                    task=delta.task,
                    limits=delta.limits,
                    requester=delta.requester,
                    fingerprint=delta.fingerprint,
                    created_ms=at_ms,
                    updated_ms=at_ms,
                ),
                UserMessage(delta.task),
            )
        case Nested():
            return replace(run, parent=delta.parent)
        case Carried():
            return replace(run, carried=delta)
        case Entered():
            # What was repeated in one phase is no loop in the next.
            run = replace(_afresh(run), phase=delta.phase)
            return say(run, NoteMessage(delta.note)) if delta.note else run
        case Planned():
            return _fold_plan(run, delta)
        case Stepped():
            return _fold_step(run, delta)
        case Raised():
            known = dict.fromkeys((*run.raised, *delta.questions))
            return replace(run, raised=tuple(known))
        case Versioned():
            return replace(run, versioned=delta)
        case Forked():
            return fold_fork(run, delta)
        case Filed():
            return replace(run, filed=delta)
        case Resumed():
            idle = max(0, delta.claimed_ms - run.updated_ms) if run.begun_ms else 0
            return replace(
                run,
                begun_ms=run.begun_ms or delta.claimed_ms,
                waited_ms=run.waited_ms + idle,
                takeovers=run.takeovers + delta.is_takeover,
            )
        case Observed():
            # What a person says is news: to look again at the same thing is no loop then.
            run = say(_afresh(run), UserMessage(delta.text))
            return replace(run, signals=(*run.signals, delta.signal_id))
        case Given():
            return replace(run, unread=delta.files)
        case Perceived():
            return fold_files(run, delta)
        case Noticed():
            run = replace(run, signals=(*run.signals, delta.signal_id))
            return say(run, NoteMessage(f"[event from {delta.source}]\n{delta.text}"))
        case Charged():
            return replace(run, spent_micros=run.spent_micros + delta.micros)
        case Signed():
            return fold_signature(run, delta)
        case Proposed():
            calls = (OpenCall(call, call.arguments, is_proposed=True) for call in delta.calls)
            return replace(run, calls=tuple(calls), step=run.seq)
        case ModelFailed():
            return replace(
                run,
                spent_tokens=run.spent_tokens + (run.reserved_tokens if delta.is_billed else 0),
                reserved_tokens=0,
                spent_micros=run.spent_micros + (run.reserved_micros if delta.is_billed else 0),
                reserved_micros=0,
                most_tokens=ceiling(run, delta),
                failures=run.failures + (delta.kind not in OPERATOR_KINDS),
                last=delta,
                wake_ms=delta.retry_at_ms,
            )
        case Asked():
            call = run.call(delta.call_id)
            return with_call(run, replace(call, ask=delta, asks=call.asks + 1, votes=()))
        case Voted():
            call = run.call(delta.call_id)
            return with_call(run, replace(call, votes=(*call.votes, delta)))
        case Commented():
            return run
        case Ruled():
            return fold_ruling(run, delta)
        case Consented():
            return replace(run, consents=(*run.consents, delta))
        case Revoked():
            kept = (each for each in run.consents if each.consent_id != delta.consent_id)
            return replace(run, consents=tuple(kept))
        case Withheld():
            return with_call(run, replace(run.call(delta.call_id), intent=None))
        case Delegated():
            return with_call(run, replace(run.call(delta.call_id), delegated=delta))
        case Detailed():
            return fold_detail(run, delta)
        case Enclosed():
            return with_call(run, replace(run.call(delta.call_id), files=delta.files))
        case Hinted():
            return say(run, NoteMessage(delta.text))
        case Finalising():
            return replace(run, final_turns_left=delta.turns, final_why=delta.why)
        case Answered():
            return replace(run, answer=delta)
        case Failed():
            return replace(spend_reserve(run), failure=delta)
        case Barred():
            return replace(run, barred=run.barred.union(delta.calls))
        case Criticised():
            return replace(settled_call(run, delta.usage), criticised=run.step)
        case Cut():
            return replace(run, cut=delta)
        case Summarised():
            return replace(settled_call(run, delta.usage), summary=delta)
        case _:
            assert_never(delta)  # a kind without a case fails the type check, not the run


def _afresh(run: Run) -> Run:
    """The run with nothing that its next turns would be held against."""
    return replace(run, steps=(), scores=(), low=0, barred=frozenset())


def _fold_plan(run: Run, planned: Planned) -> Run:
    new = tuple(map(PlanStep, planned.steps))
    if planned.is_more:
        return replace(run, plan=(*run.plan, *new))
    kept = (step for step in run.plan if step.status != "open")
    return replace(run, plan=(*kept, *new), plans=run.plans + 1)


def _fold_step(run: Run, stepped: Stepped) -> Run:
    if not 0 <= stepped.step < len(run.plan):
        raise CorruptRecord(f"step {stepped.step + 1} of a plan that has {len(run.plan)}")
    plan = list(run.plan)
    plan[stepped.step] = replace(plan[stepped.step], status=stepped.status)
    return replace(run, plan=tuple(plan))
