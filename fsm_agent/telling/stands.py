"""How a run stands, for a person: whose turn it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from checkpoints.errors import CheckpointError
from checkpoints.model import CLOSED, Head
from checkpoints.store import Store
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.delta import Answered, AnyDelta, Failed, Forked, ModelFailed
from fsm_agent.runtime import Runtime
from fsm_agent.telling.clean import one_line
from fsm_agent.telling.early import early
from fsm_agent.telling.kin import Kin, told_by
from fsm_agent.telling.times import clock

_SAYS_WHY = "fsm-agent resume says why"


class Stand(NamedTuple):
    """In a few words, with what there is to say besides. `needs` is who must act."""

    words: str
    more: str = ""
    needs: str = ""  # 'person', 'worker', 'operator', or '': nobody
    asks: tuple[str, ...] = ()  # that a person must decide, here or in runs that work for this one
    resume: str = ""  # what to go on with instead: the run at the top of those it works for


async def stands(runtime: Runtime, heads: Collection[Head]) -> dict[str, Stand]:
    """How each run stands, by its id."""
    store = runtime.store
    now_ms = await store.now_ms()
    kin = Kin(store, heads)
    asks = await _asks(store, kin, heads)
    parked = [head for head in heads if head.status in ("ready", "sleeping")]
    threads = {thread for head in parked if (thread := told_by(head).thread)}
    active = {thread: await store.active_in(thread) for thread in threads}
    found: dict[str, Stand] = {}
    for head in heads:
        alone = stand(
            head,
            await _last(runtime, head),
            now_ms=now_ms,
            is_undecided=bool(asks[head.run_id]),
            active=active.get(told_by(head).thread) or "",
        )
        if alone.needs == "person":
            alone = alone._replace(asks=asks[head.run_id])
        found[head.run_id] = led(alone, await kin.above(head), now_ms=now_ms)
    return found


async def _asks(store: Store, kin: Kin, heads: Collection[Head]) -> dict[str, tuple[str, ...]]:
    """The open requests of each run and of those that work for it, by its id."""
    waiting = [head for head in heads if head.status in ("ready", "waiting")]
    below = {head.run_id: await kin.below(head) for head in waiting}
    is_asked = any(head.status == "waiting" or below[head.run_id] for head in waiting)
    records = await store.asks() if is_asked else ()
    found: dict[str, tuple[str, ...]] = {}
    for head in heads:
        family = {head.run_id, *(child.run_id for child in below.get(head.run_id, ()))}
        found[head.run_id] = tuple(r.ask.ask_id for r in records if r.run_id in family)
    return found


def led(stand: Stand, above: Sequence[Head], *, now_ms: int) -> Stand:
    """How a child run stands, where there is something to do: only its parent's worker drives it.

    `above` are the run that it works for, the one that that works for, and so on.
    """
    if not above or stand.needs not in ("worker", "operator"):
        return stand
    over = next((head for head in above if head.status in CLOSED), None)
    if over:
        return Stand("left behind", f"run {over.run_id}, for which it worked, is over")
    parent, top = above[0], above[-1]
    drives = f"the worker of run {parent.run_id} drives it"
    if stand.needs == "operator":
        why = "" if stand.more == _SAYS_WHY else f"{stand.more}; "
        more = f"{why}{drives}: fsm-agent resume {top.run_id}"
        return stand._replace(more=more, resume=top.run_id)
    if parent.lease_until_ms > now_ms:
        return Stand("queued", drives)
    more = f"{stand.more}; {drives}" if stand.more else drives
    return stand._replace(more=more, resume=top.run_id)


def stand(
    head: Head, last: Collection[AnyDelta], *, now_ms: int, is_undecided: bool, active: str = ""
) -> Stand:
    """How a run stands: `last` is what its last entry says, `is_undecided` whether a request of
    it, or of one that works for it, is open in the store, `active` the run whose turn it is in the
    thread of one that may wait for its own.
    """
    is_due = head.due_ms is not None and head.due_ms <= now_ms
    has_children = bool(told_by(head).children)
    match head.status:
        case "ready" if head.due_ms is None and is_undecided:
            return Stand("needs a person", needs="person")  # as earlier versions gave it back
        case "ready" if head.due_ms is None and not has_children:
            return Stand("waits for an operator", _SAYS_WHY, "operator")
        case "ready" | "sleeping" if head.due_ms is not None and active not in ("", head.run_id):
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
        case "waiting" if has_children and not is_undecided:
            return Stand("has news, needs a worker", needs="worker")  # nobody told it yet
        case "waiting" if head.due_ms is None and not is_undecided:
            return Stand("waits for an operator", _SAYS_WHY, "operator")
        case "waiting":
            return Stand("needs a person", needs="person")
        case "sleeping":
            return _sleeping(head, last, is_due=is_due)
        case "done":
            return _done(last)
        case "error":
            return _failed(last)


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
