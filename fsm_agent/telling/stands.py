"""How a run stands, for a person: whose turn it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from checkpoints.errors import CheckpointError
from checkpoints.model import Head
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.delta import Answered, AnyDelta, Failed, Forked, ModelFailed
from fsm_agent.runtime import Runtime
from fsm_agent.telling.clean import one_line
from fsm_agent.telling.early import early
from fsm_agent.telling.times import clock


class Stand(NamedTuple):
    """In a few words, with what there is to say besides. `needs` is who must act."""

    words: str
    more: str = ""
    needs: str = ""  # 'person', 'worker', 'operator', or '': nobody


async def stands(runtime: Runtime, heads: Collection[Head]) -> dict[str, Stand]:
    """How each run stands, by its id."""
    now_ms = await runtime.store.now_ms()
    is_asked = any(head.status == "waiting" for head in heads)
    asks = await runtime.store.asks() if is_asked else ()
    undecided = {ask.run_id for ask in asks}
    threads = {thread for head in heads if head.status == "ready" and (thread := _thread(head))}
    active = {thread: await runtime.store.active_in(thread) for thread in threads}
    return {
        head.run_id: stand(
            head,
            await _last(runtime, head),
            now_ms=now_ms,
            is_undecided=head.run_id in undecided,
            active=active.get(_thread(head)) or "",
        )
        for head in heads
    }


def stand(
    head: Head, last: Collection[AnyDelta], *, now_ms: int, is_undecided: bool, active: str = ""
) -> Stand:
    """How a run stands: `last` is what its last entry says, `is_undecided` whether a request of
    it is open in the store, `active` the run whose turn it is in the thread of one that is ready.
    """
    is_due = head.due_ms is not None and head.due_ms <= now_ms
    match head.status:
        case "ready" if head.due_ms is None and not _children(head):
            return Stand("waits for an operator", "fsm-agent resume says why", "operator")
        case "ready" if active not in ("", head.run_id):
            return Stand("queued", f"behind run {active} of its thread")
        case "ready" if head.due_ms is not None and not is_due:
            return Stand("queued", "for a place, or behind another run of its thread")
        case "ready":
            return Stand("needs a worker", needs="worker")
        case "running" if head.lease_until_ms < now_ms:
            died = f"{one_line(head.owner, 40)} is gone since {clock(head.lease_until_ms)}"
            return Stand("worker died", died, "worker")
        case "running":
            return Stand("running", f"by {one_line(head.owner, 40)}")
        case "waiting" if is_due and is_undecided:
            return Stand("has news, needs a worker", needs="worker")
        case "waiting" if is_due:
            return Stand("decided, needs a worker", needs="worker")
        case "waiting" if head.due_ms is None and not is_undecided and not _children(head):
            return Stand("waits for an operator", "fsm-agent resume says why", "operator")
        case "waiting":
            return Stand("needs a person", needs="person")
        case "sleeping":
            return _sleeping(head, last, is_due=is_due)
        case "done":
            return _done(last)
        case "error":
            return _failed(last)


def _children(head: Head) -> tuple[str, ...]:
    """The runs that work for this one: it is not due while they go on."""
    try:
        return codec.decode_snapshot(head.snapshot).children
    except CorruptRecord:
        return ()


def _thread(head: Head) -> str:
    try:
        return codec.decode_snapshot(head.snapshot).thread
    except CorruptRecord:
        return ""


def _sleeping(head: Head, last: Collection[AnyDelta], *, is_due: bool) -> Stand:
    forked = next((delta for delta in last if isinstance(delta, Forked)), None)
    if forked and head.due_ms is None:
        origin = one_line(forked.origin, 64)
        return Stand(
            "waits for an operator", f"fork of {origin}, fsm-agent resume goes on", "operator"
        )
    failed = next((delta for delta in last if isinstance(delta, ModelFailed)), None)
    why = f"{failed.kind.replace('_', ' ')}: {one_line(failed.message, 80)}" if failed else ""
    if head.due_ms is None:
        return Stand("waits for an operator", why, "operator")
    if is_due:
        return Stand("slept, needs a worker", why, "worker")
    return Stand("sleeps", f"until {clock(head.due_ms)}  {why}".rstrip())


def _done(last: Collection[AnyDelta]) -> Stand:
    answered = next((delta for delta in last if isinstance(delta, Answered)), None)
    if answered is None or answered.is_completed:
        return Stand("done")
    return Stand("not completed", early(answered.why))


def _failed(last: Collection[AnyDelta]) -> Stand:
    failed = next((delta for delta in last if isinstance(delta, Failed)), None)
    if failed is None:
        return Stand("failed")
    message = one_line(failed.message, 60)
    if failed.reason == "cancelled":
        return Stand("cancelled", message)
    return Stand("failed", f"{failed.reason.replace('_', ' ')}: {message}")


async def _last(runtime: Runtime, head: Head) -> tuple[AnyDelta, ...]:
    """What the last entry of a run says, where that matters; nothing if it cannot be read."""
    if head.status not in ("sleeping", "done", "error"):
        return ()
    try:
        entries = await runtime.store.journal(head.run_id, after=head.seq - 1)
        return codec.decode(entries[-1].body).deltas if entries else ()
    except (CheckpointError, CorruptRecord):
        return ()
