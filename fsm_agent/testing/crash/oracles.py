"""Whether a disturbed run is right: five judges, who look at plain data and at nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from checkpoints.chain import genesis, verify
from checkpoints.errors import CorruptEntry
from checkpoints.model import Entry
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.content import Call, Usage
from fsm_agent.run.delta import (
    AnyDelta,
    Asked,
    Began,
    Criticised,
    Detailed,
    Failed,
    Intended,
    ModelFailed,
    Perceived,
    Proposed,
    Replied,
    Ruled,
    Settled,
    Summarised,
    Voted,
)
from fsm_agent.run.person import identity
from fsm_agent.run.record import Run, apply
from fsm_agent.testing.faults import Fault

from .case import Strike
from .evidence import Ending, Evidence, Journal, Outcome, Problem

_STOPS = frozenset({Fault.NOAUTH, Fault.NOPERM})  # waiting would change nothing
_GIVEN_UP = frozenset({"StoreUnavailable", "LeaseLost"})


def judged(outcome: Outcome, calm: Outcome, *, is_comparable: bool) -> tuple[Problem, ...]:
    """Everything that is wrong with `outcome`, measured at the undisturbed run.

    `is_comparable`: the agent gives the same answer twice when nobody disturbs it.
    """
    found = [Problem("ends", text) for text in ends(outcome)]
    evidence, whole = outcome.evidence, calm.evidence
    assert whole
    found += [Problem("effects", text) for text in effects(outcome, calm)]
    if evidence is None:
        return tuple(found)
    found += [Problem("journal", text) for each in evidence.journals for text in journal(each)]
    if any(problem.oracle == "journal" for problem in found):
        return tuple(found)  # what cannot be replayed cannot be counted
    found += [Problem("counted", text) for text in counted(evidence)]
    found += [Problem("answer", text) for text in answer(outcome, whole, is_comparable)]
    return tuple(found)


# -- 1: the same answer ---------------------------------------------------------------------------


def answer(outcome: Outcome, whole: Evidence, is_comparable: bool) -> Iterator[str]:
    """The undisturbed run's status and answer; another text is allowed where a person was asked
    what happened, since they answered in the tool's place."""
    is_, was = outcome.result, whole.result
    if is_.status != was.status:
        yield f"it is {is_.status} ({is_.reason}: {is_.message}), undisturbed {was.status}"
    elif not is_comparable or outcome.asked_in_doubt:
        return
    elif is_.answer != was.answer:
        yield f"its answer is {_short(is_.answer)}, undisturbed {_short(was.answer)}"
    elif is_.turns != was.turns:
        yield f"it took {is_.turns} turns, undisturbed {was.turns}"


def _short(text: str | None) -> str:
    return repr(text if text is None or len(text) <= 80 else text[:79] + "…")


# -- 2: effects, counted outside the store --------------------------------------------------------


def effects(outcome: Outcome, calm: Outcome) -> Iterator[str]:
    """Each effect as often as undisturbed, by what its tool's class promises."""
    ledger, before = outcome.ledger, calm.ledger
    assert calm.evidence
    classes = dict(calm.evidence.classes)
    if outcome.evidence:
        classes |= outcome.evidence.classes
    reruns = _reruns(outcome.evidence)
    for tool in dict.fromkeys((*before.tools(), *ledger.tools())):
        sent, expected = ledger.raw(tool), before.raw(tool)
        match classes.get(tool, "unsafe"):
            case "unsafe":
                allowed = before.starts(tool) + reruns[tool]
                if ledger.starts(tool) > allowed:
                    yield (
                        f"{tool} is unsafe and was started {_times(ledger.starts(tool))},"
                        f" where {_times(allowed)} was allowed"
                    )
                elif sent > expected:
                    yield f"{tool} is unsafe and took effect {_times(sent)}, not {expected}"
            case "probed" if sent > expected:
                yield f"{tool} is probed and took effect {_times(sent)}, not {expected}"
            case "keyed":
                sent, expected = ledger.by_key(tool), before.by_key(tool)
                if sent > expected:
                    yield f"{tool} was sent under {sent} different keys, undisturbed {expected}"
        if outcome.evidence and sent + ledger.cut_off(tool) < expected:
            yield f"{tool} took effect {_times(sent)}, undisturbed {_times(expected)}: it was lost"


def _reruns(evidence: Evidence | None) -> Counter[str]:
    """How often a person said 'it did not happen, run it', by tool."""
    found = evidence.called(Ruled) if evidence else ()
    return Counter(tool for tool, d in found if isinstance(d, Ruled) and d.verb == "rerun")


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


# -- 3: a well-formed journal ---------------------------------------------------------------------


def journal(found: Journal) -> Iterator[str]:
    """Dense, chained, a legal path to an end, and one result for each call and intent."""
    name = f"run {found.run_id}"
    try:
        entries = [Entry(seq, body, chain) for seq, chain, body in found.entries]
        verify(found.run_id, genesis(found.run_id), 0, entries)
        run = _replayed(found)
    except (CorruptEntry, CorruptRecord, KeyError) as error:
        yield f"{name}: {error}"
        return
    if not run.is_over:
        yield f"{name} ends in {run.state}, which is no end"
    deltas = list(found.deltas())
    asked = [call.call_id for d in deltas for call in _valid(d)]
    results = Counter(d.call_id for d in deltas if isinstance(d, Settled))
    for call_id, count in Counter(asked).items():
        if count != 1:
            yield f"{name}: call {call_id} was asked for {_times(count)}"
        if results[call_id] != 1:
            yield f"{name}: call {call_id} has {results[call_id]} results"
    for call_id in results.keys() - set(asked):
        yield f"{name}: there is a result for {call_id}, which nobody called"
    for delta in deltas:
        if isinstance(delta, Intended) and not results[delta.call_id]:
            yield f"{name}: the intent of {delta.call_id} has no result"


def _valid(delta: AnyDelta) -> tuple[Call, ...]:
    """The calls that a fact asks for."""
    if isinstance(delta, Proposed):
        return delta.calls
    return delta.calls if isinstance(delta, Replied) and delta.violation is None else ()


def _replayed(found: Journal) -> Run:
    run = Run(run_id=found.run_id)
    for _, _, body in found.entries:
        run = apply(run, codec.decode(body))
    return run


# -- 4: nothing lost or counted twice -------------------------------------------------------------


def counted(evidence: Evidence) -> Iterator[str]:
    """Every decision, budget unit and request, once."""
    for each in evidence.journals:
        deltas = list(each.deltas())
        yield from _decisions(each, deltas, evidence)
        yield from _requests(each, deltas, evidence)
        yield from _budget(each, deltas)


def _decisions(each: Journal, deltas: list[AnyDelta], evidence: Evidence) -> Iterator[str]:
    taken = Counter(d.ask_id for d in deltas if isinstance(d, Ruled))
    made = {ask.ask_id for ask in evidence.asks if ask.run_id == each.run_id and ask.verb}
    for ask_id in sorted(made | taken.keys()):
        if taken[ask_id] != 1 or ask_id not in made:
            yield (
                f"run {each.run_id}: the decision on {ask_id} was taken up {_times(taken[ask_id])}"
                f" and is {'' if ask_id in made else 'not '}in the store"
            )
    votes = Counter((d.ask_id, identity(d.by)) for d in deltas if isinstance(d, Voted))
    for (ask_id, by), count in votes.items():
        if count > 1:
            yield f"run {each.run_id}: the vote of {by} on {ask_id} counts {_times(count)}"


def _requests(each: Journal, deltas: list[AnyDelta], evidence: Evidence) -> Iterator[str]:
    asked = [d for d in deltas if isinstance(d, Asked)]
    approvals = Counter(d.call_id for d in asked if d.kind == "approval")
    for call_id, count in approvals.items():
        if count > 1:
            yield f"run {each.run_id}: {call_id} was put up for approval {_times(count)}"
    ids = Counter(d.ask_id for d in asked)
    for ask in evidence.asks:
        if ask.run_id != each.run_id:
            continue
        if not ask.verb:
            yield f"run {each.run_id} is over, and request {ask.ask_id} is still open"
        if ids[ask.ask_id] != 1:
            yield f"run {each.run_id}: request {ask.ask_id} is on record {_times(ids[ask.ask_id])}"


def _budget(each: Journal, deltas: list[AnyDelta]) -> Iterator[str]:
    run = _replayed(each)
    spent = _spent(deltas)
    if spent != run.spent_tokens:
        yield f"run {each.run_id}: {run.spent_tokens} tokens are counted, {spent} were spent"
    started = {d.call_id for d in deltas if isinstance(d, Intended)}
    if len(started) != run.tool_calls:
        yield f"run {each.run_id}: {run.tool_calls} calls are counted, {len(started)} started"
    attempts = [d.attempt for d in deltas if isinstance(d, Began)]
    if attempts != list(range(1, len(attempts) + 1)):
        yield f"run {each.run_id}: its model calls are numbered {attempts}"


def _spent(deltas: list[AnyDelta]) -> int:
    """Tokens by the journal's single facts: what was billed, and the reserve where nobody knows."""
    total = reserve = 0
    for delta in deltas:
        match delta:
            case Began():
                total, reserve = total + reserve, delta.reserve_tokens
            case Replied() | Summarised() | Criticised():
                total, reserve = total + delta.usage.total_tokens, 0
            case Perceived(usage=Usage() as usage):
                total, reserve = total + usage.total_tokens, 0
            case ModelFailed():
                total, reserve = total + (reserve if delta.is_billed else 0), 0
            case Detailed():
                total += delta.spent_tokens
            case Failed():
                total, reserve = total + reserve, 0
    return total


# -- 5: it ends, and each process as it should ----------------------------------------------------


def ends(outcome: Outcome) -> Iterator[str]:
    """Processes die where they were struck, survive what they should, and the last one ends it."""
    strikes = outcome.case.strikes
    if outcome.endings[-1].how != "done":
        yield outcome.last_words
    for number, ending in enumerate(outcome.endings[:-1], 1):
        if outcome.is_reached and not _may_end_so(strikes[number - 1], ending):
            yield (
                f"process {number}, struck by {strikes[number - 1]},"
                f" {ending.how}: {ending.kind}: {ending.error}"
            )


def _may_end_so(strike: Strike, ending: Ending) -> bool:
    if strike.is_kill or strike.fault is Fault.LATE_REQUEST:
        return ending.how == "killed"
    if strike.fault is Fault.CANCELLED_AWAIT:
        return ending.how == "cancelled"
    is_refused = strike.lasts or strike.fault in _STOPS
    return ending.how == "failed" and is_refused and ending.kind in _GIVEN_UP
