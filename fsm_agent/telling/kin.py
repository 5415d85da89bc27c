"""The runs that a run works for, and those that work for it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from checkpoints.errors import BadRunId, RunNotFound, StoreDiverged
from checkpoints.model import Head, RunId
from checkpoints.store import Store
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.state import State

UNREADABLE = (RunNotFound, StoreDiverged, BadRunId)  # one relative must not hide all other runs
_NOTHING = codec.Snapshot("", "", State.OBSERVE, 0, 0, (), "")


def told_by(head: Head) -> codec.Snapshot:
    """What lists show of a run; nothing where it cannot be read."""
    with suppress(CorruptRecord):
        return codec.decode_snapshot(head.snapshot)
    return _NOTHING


class Kin:
    """Parents and children of runs, as the store has them; each head is read once."""

    def __init__(self, store: Store, heads: Collection[Head] = ()) -> None:
        self._store = store
        self._heads: dict[str, Head | None] = {head.run_id: head for head in heads}

    async def above(self, head: Head) -> tuple[Head, ...]:
        """The run that this one works for, the one that that works for, and so on."""
        found: list[Head] = []
        while (parent := await self._head(told_by(head).parent)) and parent not in found:
            found.append(parent)
            head = parent
        return tuple(found)

    async def below(self, head: Head) -> tuple[Head, ...]:
        """The unfinished runs that work for this one, and those that work for them."""
        found: list[Head] = []
        todo = [head]
        while todo:
            for child in told_by(todo.pop()).children:
                below = await self._head(child)
                if below and below not in found:
                    found.append(below)
                    todo.append(below)
        return tuple(found)

    async def _head(self, run_id: str) -> Head | None:
        if run_id and run_id not in self._heads:
            self._heads[run_id] = None
            with suppress(*UNREADABLE):
                self._heads[run_id] = await self._store.head(RunId(run_id))
        return self._heads.get(run_id)
