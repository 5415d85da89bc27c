"""Threads: of their runs one at a time is active, and each asks before it is driven.

The thread's line and a run are in different partitions, so nothing changes both in one step. What
makes up for a crash between two steps: a run exists before it joins, joining again is harmless, and
a run that waits is due again after `LOOK_S`, when whoever finds it looks whether the active one is
over. See docs/decisions.
"""

from __future__ import annotations

from contextlib import suppress

from checkpoints.errors import CheckpointError, RunBusy, RunClosed, RunNotFound, ThreadBusy
from checkpoints.model import CLOSED, RunId
from checkpoints.schedule import Turn
from checkpoints.store import Store
from fsm_agent.capabilities.agent import Agent
from fsm_agent.run.delta import Failed, Filed
from fsm_agent.run.record import Run
from fsm_agent.run.signal import CancelRequested, encode, signal_id_of

from .deps import Deps

LOOK_S = 5.0  # until a run that waits looks again by itself: only a crash makes it wait so long


async def active_in(store: Store, thread: str) -> RunId | None:
    """The run that is active in a thread. One that is over is taken out of the line first."""
    while active := await store.active_in(thread):
        with suppress(RunNotFound):
            if (await store.head(active)).status not in CLOSED:
                return active
        await leave(store, thread, active)
    return None


async def join(store: Store, run_id: RunId, filed: Filed, *, by: str = "") -> Turn:
    """Ask for a run's turn, and tell those whom it interrupts. Raises ThreadBusy."""
    if await active_in(store, filed.thread) == run_id:
        return Turn(True, run_id)
    turn = await store.join_thread(filed.thread, run_id, filed.on_busy)
    cancel = CancelRequested(by, f"run {run_id} of the same thread interrupts it")
    for other in turn.interrupts:
        with suppress(RunClosed, RunNotFound):
            await store.signal(other, signal_id=signal_id_of(cancel), body=encode(cancel))
    return turn


async def refuse_if_busy(store: Store, run_id: RunId, filed: Filed) -> None:
    """Refuse a run that would be refused, before it leaves a trace. Raises ThreadBusy."""
    active = await active_in(store, filed.thread)
    if filed.on_busy != "reject" or active in (None, run_id):
        return
    try:
        await store.head(run_id)  # the repeat of a start finds its own run
    except RunNotFound:
        raise ThreadBusy(filed.thread, str(active)) from None


async def enter(run: Run, agent: Agent, deps: Deps, *, owner: str) -> None:
    """Join a run that was just created or found again. Raises ThreadBusy once it has ended so."""
    store, run_id = deps.store, RunId(run.run_id)
    if (await store.head(run_id)).status in CLOSED:
        return
    try:
        await join(store, run_id, run.filed, by=run.requester or run.run_id)
    except ThreadBusy:
        with suppress(RunBusy, RunClosed):  # a worker was faster, and does the same
            await deps.work_on(run_id, agent, deps, owner=owner)
        raise
    if (await store.head(run_id)).status in CLOSED:
        await leave(store, run.filed.thread, run_id)  # meanwhile: it must not block its thread


async def leave(store: Store, thread: str, run_id: RunId) -> None:
    """Take a run that is over out of its thread, and wake the one whose turn it is then."""
    if active := await store.leave_thread(thread, run_id):
        await store.wake(active)


async def leave_if_over(store: Store, run: Run) -> None:
    """The same at the end of a drive. A store that is away is made up for by who waits."""
    if run.filed.thread and run.is_over:
        with suppress(CheckpointError):
            await leave(store, run.filed.thread, RunId(run.run_id))


def refusal(busy: ThreadBusy) -> Failed:
    """How a run ends that was not to wait."""
    return Failed("rejected", str(busy))
