"""What must hold of every simulated run, whatever befell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from checkpoints.errors import CheckpointError
from checkpoints.model import CLOSED, Entry, RunId
from checkpoints.store import Store
from fsm_agent.engine.resume import unfold
from fsm_agent.run.delta import AnyDelta, Began, Intended, ModelFailed, Replied, Ruled, Settled
from fsm_agent.run.record import Run

from .world import Plan, World, text_of

Acks = dict[tuple[str, int], bytes]  # run and seq → chain, as a worker was told


async def broken(
    store: Store, world: World, task: str, run_id: str, acks: Acks, *, is_probing_sure: bool
) -> list[str]:
    """What is wrong with a run at the end; empty if all is well."""
    try:
        entries = await store.journal(RunId(run_id))
        head = await store.head(RunId(run_id))
        run, deltas = _read(run_id, entries)
    except CheckpointError as error:
        return [f"{run_id}: the journal is not well formed: {error}"]
    if head.status not in CLOSED:
        return [f"{run_id}: did not end: {head.status} in {run.state}, entry {run.seq}"]
    plan = world.plans[task]
    found = [
        *_answer(run, plan, deltas),
        *_acknowledged(entries, run_id, acks),
        *_one_of_each(deltas),
        *_counted(run, deltas, world.asked[task]),
        *_effects(world, plan, deltas, run_id, is_probing_sure=is_probing_sure),
    ]
    return [f"{run_id}: {one}" for one in found]


def _read(run_id: str, entries: Sequence[Entry]) -> tuple[Run, list[AnyDelta]]:
    """The fold of the journal: every arrow is checked on the way, as the chain was before."""
    read = [*unfold(Run(run_id=run_id), entries)]
    return read[-1][0], [delta for _, record in read for delta in record.deltas]


def _answer(run: Run, plan: Plan, deltas: Sequence[AnyDelta]) -> Iterator[str]:
    """The answer is that of an undisturbed run. One thing may differ: where a machine paused, a
    harmless call has run out of its time, and the model was told so."""
    results = [d for d in deltas if isinstance(d, Settled)]
    said = {d.call_id: d.text for d in results}
    calls = [c for d in deltas if isinstance(d, Replied) for c in d.calls]
    late = {
        d.call_id for d in results if d.status == "timeout" and d.text.startswith(("look", "put"))
    }
    wanted = [text_of(name, number) for turn in plan for name, number in turn]
    for call, text in zip(calls, wanted, strict=False):
        if call.call_id not in late and said.get(call.call_id) != text:
            yield f"{call.call_id} came to {said.get(call.call_id)!r} and not to {text!r}"
    answer = run.answer.text if run.answer else f"none, but {run.failure}"
    told = "; ".join(said.get(call.call_id, "") for call in calls)
    if answer != told:
        yield f"the answer is {answer!r}, and the results are {told!r}"


def _acknowledged(entries: Sequence[Entry], run_id: str, acks: Acks) -> Iterator[str]:
    chains = {entry.seq: entry.chain for entry in entries}
    for (name, seq), chain in acks.items():
        if name == run_id and chains.get(seq) != chain:
            yield f"entry {seq} was acknowledged and is not in the journal"


def _one_of_each(deltas: Sequence[AnyDelta]) -> Iterator[str]:
    results = Counter(d.call_id for d in deltas if isinstance(d, Settled))
    rulings = Counter(d.ask_id for d in deltas if isinstance(d, Ruled))
    yield from (f"call {one} has {n} results" for one, n in results.items() if n > 1)
    yield from (f"request {one} has {n} decisions" for one, n in rulings.items() if n > 1)
    started = {d.call_id for d in deltas if isinstance(d, Intended)}
    yield from (f"call {one} has an intent and no result" for one in started - set(results))


def _counted(run: Run, deltas: Sequence[AnyDelta], asked: int) -> Iterator[str]:
    """Every token of every attempt is in the run's sum once, and no attempt went uncounted."""
    spent = reserve = 0
    for delta in deltas:
        match delta:
            case Began():
                spent, reserve = spent + reserve, delta.reserve_tokens
            case Replied(usage=usage):
                spent, reserve = spent + usage.prompt_tokens + usage.completion_tokens, 0
            case ModelFailed(is_billed=is_billed):
                spent, reserve = spent + (reserve if is_billed else 0), 0
    if run.spent_tokens != spent:
        yield f"{run.spent_tokens} tokens are counted as spent, and {spent} were"
    began = sum(isinstance(delta, Began) for delta in deltas)
    if asked > began:
        yield f"the model was asked {asked} times, and {began} attempts are on record"


def _effects(
    world: World,
    plan: Plan,
    deltas: Sequence[AnyDelta],
    run_id: str,
    *,
    is_probing_sure: bool,
) -> Iterator[str]:
    names = {c.call_id: c.name for d in deltas if isinstance(d, Replied) for c in d.calls}
    if Counter(names.values()) != Counter(name for turn in plan for name, _ in turn):
        yield "the calls on record are not those that the model wanted"
    for call_id, name in names.items():
        sent = world.sent(name, f"{run_id} {call_id}")
        keys = world.keys(name, f"{run_id} {call_id}")
        once = name in ("pay", "refund") or (name == "post" and is_probing_sure)
        if once and sent != 1:
            yield f"the effect of {name} {call_id} was sent {sent} times"
        if name in ("hold", "post") and not sent:
            yield f"the effect of {name} {call_id} is on record and never happened"
        if name in ("put", "hold") and keys > 1:
            yield f"{name} {call_id} was sent with {keys} keys"
