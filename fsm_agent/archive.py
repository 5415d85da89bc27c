"""What a person does with runs that are over: prune, purge, and look at the whole of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from checkpoints.errors import CorruptEntry, RunNotFound
from checkpoints.model import CLOSED, Entry, Head, RunId
from checkpoints.store import Retention, Store
from fsm_agent.engine import threads
from fsm_agent.engine.resume import unfold
from fsm_agent.errors import CorruptRecord, UsageError
from fsm_agent.run import codec
from fsm_agent.run.delta import Delegated
from fsm_agent.run.event import EntryEvent
from fsm_agent.run.record import Run

_PAGE = 200


class Page(NamedTuple):
    """An entry as it is stored, with what it means."""

    entry: Entry
    event: EntryEvent


async def prunable(store: Store, *, before_ms: int) -> list[Head]:
    """Finished runs that ended before this time, but for those whose parent is under way."""
    found = await _retention(store).finished(before_ms=before_ms)
    return [head for head in found if not await _is_needed(store, head)]


async def _is_needed(store: Store, head: Head) -> bool:
    try:
        parent = codec.decode_snapshot(head.snapshot).parent
        return bool(parent) and (await store.head(RunId(parent))).status not in CLOSED
    except (CorruptRecord, RunNotFound):
        return False


async def prune(store: Store, heads: Sequence[Head], *, before_ms: int) -> AsyncIterator[Head]:
    """Remove these runs, as far as they still ended before this time; each one that is gone."""
    retention = _retention(store)
    for head in heads:
        if await retention.purge(head.run_id, ended_before_ms=before_ms):
            await _leave_thread(store, head)
            yield head


async def family(store: Store, run_id: str) -> list[str]:
    """The run and every run that worked for it, as far as their journals can be read."""
    found, left = [], [run_id]
    while left:
        each = left.pop()
        found.append(each)
        try:
            pages = await history(store, each)
        except (RunNotFound, CorruptEntry):
            continue
        deltas = [delta for page in pages for delta in page.event.record.deltas]
        left += [d.child for d in deltas if isinstance(d, Delegated) and d.child not in found]
    return found


async def purge(store: Store, run_id: str, *, is_forced: bool = False) -> bool:
    """Remove every trace of a run. False: there was none.

    Raises RunOpen for one that is not finished, unless `is_forced`.
    """
    head = await _head(store, run_id)
    is_gone = await _retention(store).purge(RunId(run_id), is_forced=is_forced)
    if is_gone and head:
        await _leave_thread(store, head)
    return is_gone


async def _head(store: Store, run_id: str) -> Head | None:
    with suppress(RunNotFound, CorruptEntry):
        return await store.head(RunId(run_id))
    return None


async def _leave_thread(store: Store, head: Head) -> None:
    """A thread's line is in another slot. If we die before this, whoever waits there finds out."""
    with suppress(CorruptRecord):
        if thread := codec.decode_snapshot(head.snapshot).thread:
            await threads.leave(store, thread, head.run_id)


async def history(store: Store, run_id: str) -> list[Page]:
    """A run's entries with their bytes. Raises RunNotFound or CorruptEntry."""
    entries = await store.journal(RunId(run_id))
    run = Run(run_id=run_id)
    return [
        Page(entry, EntryEvent(run_id, now.seq, now.state, record))
        for entry, (now, record) in zip(entries, unfold(run, entries), strict=True)
    ]


async def all_runs(store: Store) -> list[Head]:
    """Heads of every run, newest first."""
    limit = _PAGE
    while len(found := await store.runs(limit=limit)) >= limit:
        limit *= 4
    return list(found)


def _retention(store: Store) -> Retention:
    if not isinstance(store, Retention):
        raise UsageError("this store removes no runs.")
    return store
