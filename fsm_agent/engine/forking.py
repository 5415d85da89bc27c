"""A new run from the entries of another one: what may be taken over, and what becomes of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from checkpoints.errors import EntryTooLarge, RunExists, RunNotFound, StoreRegressed
from checkpoints.model import RunId
from checkpoints.store import Store
from fsm_agent.errors import UsageError
from fsm_agent.run import codec
from fsm_agent.run.delta import (
    AnyDelta,
    Delegated,
    Enclosed,
    Forked,
    Given,
    Intended,
    Perceived,
    Settled,
)
from fsm_agent.run.record import Record, Run, replay

from .session import snapshot_of


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was made from another one, and what is to be known of it before it goes on.

    Effects up to `seq` are history and are not started again. What the fork does from there
    happens anew, under keys of its own. Tools are named once for each call.
    """

    run_id: str
    origin: str
    seq: int
    is_new: bool  # False: a repeat; it was there already
    done: tuple[str, ...] = ()  # effects up to `seq`, which are not started again
    may_happen_again: tuple[str, ...] = ()  # effects that the origin started after `seq`
    in_doubt: tuple[str, ...] = ()  # started at `seq`, with no result: a person is asked
    asked_again: tuple[str, ...] = ()  # waited for a person, or were approved and not started


def whole_steps(states: Iterable[Run]) -> list[int]:
    """The seqs at which a run may be forked: it is not over, and no model call is under way."""
    return [run.seq for run in states if not run.is_over and not run.has_attempt]


async def fork(
    store: Store,
    history: Sequence[tuple[Run, Record]],
    forked: Forked,
    run_id: str,
    *,
    is_due: bool,
) -> Fork:
    """Store the fork under `run_id`, in one step. The same fork again is the same run.

    Its blobs are there before it is: a worker may claim it at once. `history` is the origin's, with
    the run after each record. Raises UsageError for a seq that is no whole step, naming those that
    are, or for an id that began in another way.
    """
    _check(forked, history)
    kept = [record for _, record in history[: forked.at_seq]]
    last = kept[-1]
    kept[-1] = Record(last.trigger, last.at_ms, (*last.deltas, forked))
    begun = replay(run_id, kept)
    first, *rest = map(codec.encode, kept)
    origin, new = RunId(forked.origin), RunId(run_id)
    is_there = await _is_there(store, new)
    if not is_there:  # else it may be another run, whose blobs are not ours to add to
        await _copy_blobs(store, origin, new, kept)
    try:
        is_new = await store.create(
            new,
            op=_op_of(forked),
            body=first,
            snapshot=codec.encode_snapshot(snapshot_of(begun)),
            following=rest,
            is_due=is_due,
        )
    except RunExists:
        raise UsageError(
            f"a run named {run_id!r} exists already, and it is not this fork. Use another id."
        ) from None
    if is_there:
        await _copy_blobs(store, origin, new, kept)  # made by a version that created it first
    return _told(begun, forked, history, is_new=is_new)


def _check(forked: Forked, history: Sequence[tuple[Run, Record]]) -> None:
    steps = whole_steps(run for run, _ in history)
    if forked.at_seq in steps:
        return
    at = next((run for run, _ in history if run.seq == forked.at_seq), None)
    if at is None:
        why = f"it has entries 1 to {len(history)}"
    elif at.is_over:
        why = "that entry ended the run, and nothing can follow it"
    else:
        why = "a model call is under way there"
    raise UsageError(
        f"run {forked.origin!r} cannot be forked at entry {forked.at_seq}: {why}."
        f" Possible: {spans(steps)}."
    )


def spans(numbers: Iterable[int]) -> str:
    """Ascending numbers in words: '1-4, 6, 9-12'."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in found) or "none"


def _op_of(forked: Forked) -> str:
    """Equal for the same fork, whoever makes it and whenever."""
    same = msgspec.structs.replace(forked, at_ms=0, by="")
    return hashlib.sha256(msgspec.msgpack.encode(same)).hexdigest()[:32]


async def _is_there(store: Store, run_id: RunId) -> bool:
    try:
        await store.head(run_id)
    except (RunNotFound, StoreRegressed):
        return False
    return True


async def _copy_blobs(store: Store, origin: RunId, run_id: RunId, kept: Iterable[Record]) -> None:
    digests = (d for record in kept for delta in record.deltas for d in _digests(delta))
    for digest in dict.fromkeys(digests):
        data = await store.get_blob(origin, digest)
        if data is not None:
            with suppress(EntryTooLarge):  # a lower cap than once: what the model saw is there
                await store.put_blob(run_id, data)


def _digests(delta: AnyDelta) -> Iterator[str]:
    """The blobs that a fact speaks of."""
    match delta:
        case Settled(blob=digest) if digest:
            yield digest
        case Given(files=files) | Enclosed(files=files):
            yield from (file.digest for file in files)
        case Perceived(parts=parts):
            for part in parts:
                yield part.file.digest
                yield from (picture.digest for picture in part.pictures)


def _told(
    begun: Run, forked: Forked, history: Sequence[tuple[Run, Record]], *, is_new: bool
) -> Fork:
    at, _ = history[forked.at_seq - 1]
    names = {c.call.call_id: c.call.name for run, _ in history for c in run.calls}
    before = effects_of(record for _, record in history[: forked.at_seq])
    after = effects_of(record for _, record in history[forked.at_seq :])
    in_doubt = [c.call.call_id for c in begun.calls if c.phase == "started" and not c.asked]
    asked = [c.call.call_id for c in at.calls if not c.result and (c.ask or c.is_approved)]
    is_open = {c.call.call_id for c in at.calls if not c.result}

    def tools(call_ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(names[call_id] for call_id in call_ids)

    return Fork(
        run_id=begun.run_id,
        origin=forked.origin,
        seq=forked.at_seq,
        is_new=is_new,
        done=tools(call_id for call_id in before if call_id not in is_open),
        may_happen_again=tools(call_id for call_id in after if call_id not in in_doubt),
        in_doubt=tools(in_doubt),
        asked_again=tools(call_id for call_id in asked if call_id not in in_doubt),
    )


def effects_of(records: Iterable[Record]) -> list[str]:
    """The calls that were started and may have changed something outside, each once."""
    deltas = [delta for record in records for delta in record.deltas]
    children = {delta.call_id for delta in deltas if isinstance(delta, Delegated)}
    found = (
        delta.call_id
        for delta in deltas
        if isinstance(delta, Intended)
        and (delta.effect not in ("read", "idempotent") or delta.call_id in children)
    )
    return list(dict.fromkeys(found))
