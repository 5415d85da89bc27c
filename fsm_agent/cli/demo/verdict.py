"""Whether the demo showed what it says it shows: looked up in journal and ledger, not assumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsm_agent.run.delta import Intended, Replied, Resumed, Ruled, Settled
from fsm_agent.run.event import EntryEvent
from fsm_agent.runtime import Result

from .stage import Sending


class Check(NamedTuple):
    """One thing that must be so."""

    is_so: bool
    words: str  # as it should be
    found: str  # as it is


class Effect(NamedTuple):
    """One kind of effect, counted in the ledger."""

    name: str
    sent: int
    took_effect: int
    keys: tuple[str, ...]
    expected: int  # how often it has to take effect


def cut_off(events: Sequence[EntryEvent], tool: str) -> Intended | None:
    """The intent of the call of `tool` that has no result in this journal, if there is one."""
    deltas = [delta for event in events for delta in event.record.deltas]
    settled = {delta.call_id for delta in deltas if isinstance(delta, Settled)}
    calls = [call for d in deltas if isinstance(d, Replied) for call in d.calls]
    named = {call.call_id for call in calls if call.name == tool}
    open_intents = [
        delta
        for delta in deltas
        if isinstance(delta, Intended) and delta.call_id in named - settled
    ]
    return open_intents[-1] if open_intents else None


def count(name: str, sendings: Sequence[Sending], *, expected: int) -> Effect:
    """How often an effect was sent, and how often it took place."""
    keys = tuple(dict.fromkeys(sending.key for sending in sendings))
    took = sum(sending.took_effect for sending in sendings)
    return Effect(name, len(sendings), took, keys, expected)


def was_refused(events: Sequence[EntryEvent]) -> bool:
    """Whether a person refused the refund."""
    deltas = [delta for event in events for delta in event.record.deltas]
    return any(isinstance(d, Ruled) and d.verb in ("reject", "answer") for d in deltas)


def checks(
    result: Result,
    events: Sequence[EntryEvent],
    *,
    killed_code: int | None,
    cut: Intended | None,
    effects: Sequence[Effect],
) -> list[Check]:
    """Everything that has to hold for the demo to be true."""
    deltas = [delta for event in events for delta in event.record.deltas]
    takeovers = [d for d in deltas if isinstance(d, Resumed) and d.is_takeover]
    owners = {delta.owner for delta in deltas if isinstance(delta, Resumed)}
    found = [
        Check(killed_code == -9, "worker 1 was ended by SIGKILL", f"its code is {killed_code}"),
        Check(
            cut is not None,
            "the SIGKILL fell while send_credit_note ran",
            "its result was on record already" if cut is None else f"entry of call {cut.call_id}",
        ),
        Check(len(takeovers) == 1, "another process took over", f"{len(takeovers)} takeovers"),
        Check(len(owners) == 3, "three processes worked on it", f"{len(owners)} did"),
    ]
    if cut is not None:
        intents = [d for d in deltas if isinstance(d, Intended) and d.call_id == cut.call_id]
        keys = {intent.key for intent in intents}
        is_same = len(intents) == 2 and keys == set(effects[0].keys)
        found.append(Check(is_same, "it was sent again with the same key", f"{len(keys)} keys"))
    for effect in effects:
        words = f"{effect.name}: took effect {_times(effect.expected)}"
        is_so = effect.took_effect == effect.expected
        found.append(Check(is_so, words, f"took effect {_times(effect.took_effect)}"))
    done = result.status == "done" and result.is_completed
    found.append(Check(done, "the run is done", f"it is {result.status}: {result.message}"))
    return found


def _times(number: int) -> str:
    return {0: "never", 1: "once"}.get(number, f"{number} times")
