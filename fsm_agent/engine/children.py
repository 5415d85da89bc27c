"""Child runs: the call of an agent's tool is worked on as a run of its own.

The child's id comes from the call's key, so a parent that is resumed finds the child that it had.
Only the parent's worker drives it: a decision on the child, or a worker that finds it due, tells
the parent, which then goes on with it. A child that no parent waits for is ended by whoever finds
it due.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from contextlib import suppress
from typing import Literal

import msgspec
import structlog

from checkpoints.errors import (
    CheckpointError,
    LeaseLost,
    NotDurable,
    RunBusy,
    RunClosed,
    RunNotFound,
    StoreRegressed,
    StoreUnavailable,
)
from checkpoints.model import CLOSED, RunId
from checkpoints.steady import monotonic
from checkpoints.store import Store
from fsm_agent.capabilities.agent import Agent
from fsm_agent.capabilities.delegate import AgentTool
from fsm_agent.errors import AgentError
from fsm_agent.run import codec
from fsm_agent.run.content import clean_text
from fsm_agent.run.delta import AnyDelta, Created, Delegated, Detailed, Filed, Nested, Versioned
from fsm_agent.run.limits import Limits
from fsm_agent.run.record import OpenCall, Record, Run, apply, replay
from fsm_agent.run.signal import CancelRequested, Stirred, encode, signal_id_of
from fsm_agent.tools.dispatch import Result
from fsm_agent.tools.results import show

from .deps import Deps
from .doubt import doubt_in
from .outcome import Park
from .session import Session, snapshot_of

log = structlog.get_logger(__name__)

LOOK_S = 0.1  # between two tries to claim a child that a dead worker still holds


class Waits(msgspec.Struct, frozen=True):
    """The child run has been given back: for a person, or until `wake_ms`."""

    status: Literal["waiting", "sleeping"]
    wake_ms: int | None = None


class Stuck(msgspec.Struct, frozen=True):
    """Somebody has to act before the child can go on; it is as it was."""

    error: AgentError


ChildEnd = Result | Waits | Stuck


def child_of(run: Run, call: OpenCall, tool: AgentTool, key: str, agent: Agent) -> Delegated:
    """The child run of a call that is about to start: the one it has, or a new one with its share.

    The tokens that are left are shared out among all such calls of the batch that have no child
    yet, so that their children together cannot spend more than the parent has.
    """
    if call.delegated:
        return call.delegated
    left = run.limits.tokens - run.spent_tokens - run.reserved_tokens - run.granted_tokens
    waiting = [c for c in run.calls if not c.delegated and not c.result and _is_child(c, agent)]
    grant = min(tool.agent.limits.tokens, int(left * tool.share / max(1, len(waiting))))
    most, micros = run.limits.micros, 0
    if most is not None:
        spare = most - run.spent_micros - run.reserved_micros - run.granted_micros
        micros = max(0, int(spare * tool.share / max(1, len(waiting))))
    return Delegated(call.call.call_id, f"c-{key[:40]}", max(0, grant), micros)


def _is_child(call: OpenCall, agent: Agent) -> bool:
    name = call.call.name
    return name in agent.registry and isinstance(agent.registry.get(name), AgentTool)


async def work_on_child(
    parent: Session, call_id: str, tool: AgentTool, task: str, deps: Deps
) -> ChildEnd:
    """Begin the child run if it is not there, and drive it until it is over or waits."""
    call = parent.run.call(call_id)
    assert call.delegated
    child = RunId(call.delegated.child)
    with suppress(NotDurable):  # it is there; what it does waits for its own confirmations
        await _create(parent.run, call.delegated, tool.agent, task, deps)
    try:
        run, park = await _drive(child, tool.agent, parent.lease.owner, deps)
    except RunClosed:
        run, park = await _read(child, deps), None
    except (RunBusy, LeaseLost):
        return Waits("sleeping", parent.now_ms() + int(deps.settings.lease_s * 1000))
    except AgentError as error:
        return Stuck(error)
    if park:
        return Waits(park.status, park.wake_ms)
    doubt = "" if run.answer else await doubt_in(child, deps)
    return _result(run, tool, doubt)


async def cancel_children(
    session: Session, agent: Agent, cancel: CancelRequested, deps: Deps
) -> tuple[Detailed, ...]:
    """End the child runs of all calls, before their parent ends; what those of open calls spent.

    First the signal, which stays where we cannot drive the child ourselves: whoever holds it, or
    takes it up later, ends it. A child that cannot be ended as it is stored keeps neither the
    others nor the parent from ending. Raises StoreUnavailable.
    """
    spent = []
    for call in session.run.calls:
        if not call.delegated:
            continue
        child = RunId(call.delegated.child)
        tool = agent.registry.get(call.call.name) if call.call.name in agent.registry else None
        try:
            if await tell(deps.store, child, cancel) and isinstance(tool, AgentTool):
                await _drive(child, tool.agent, session.lease.owner, deps)
        except StoreUnavailable:
            raise
        except (AgentError, CheckpointError) as error:
            log.warning("child.not_ended", run_id=child, parent=session.run.run_id, why=str(error))
        if call.result:
            continue  # what it has spent is on record
        with suppress(AgentError, CheckpointError):
            run = await _read(child, deps)
            detail = Detailed(
                call.call.call_id, spent_tokens=run.spent_tokens, spent_micros=run.spent_micros
            )
            spent.append(detail)
    return tuple(spent)


async def tell(store: Store, child: RunId, cancel: CancelRequested) -> bool:
    """Put a cancel request into a child's mailbox. False: it is over, or not there."""
    try:
        await store.signal(child, signal_id=signal_id_of(cancel), body=encode(cancel))
    except (RunClosed, RunNotFound, StoreRegressed):
        return False
    return True


async def let_go(session: Session, deps: Deps, *, heard: Collection[str]) -> None:
    """Have those child runs ended whose calls got a result without them, such as a person's word.

    Before their parent goes on: from then on it knows nothing of them. Calls that were `heard` have
    the child's own result. Raises StoreUnavailable.
    """
    cancel = CancelRequested(session.run.run_id, "its call has a result without it")
    calls = [
        c for c in session.run.calls if c.delegated and c.result and c.call.call_id not in heard
    ]
    if calls and session.has_staged:
        await session.flush()  # results that are there must not wait for what a child's server says
    for call in calls:
        assert call.delegated
        child = RunId(call.delegated.child)
        try:
            if (await deps.store.head(child)).status not in CLOSED:
                await tell(deps.store, child, cancel)
        except StoreUnavailable:
            raise
        except CheckpointError as error:
            log.warning("child.not_ended", run_id=child, parent=session.run.run_id, why=str(error))


async def is_abandoned(store: Store, child: RunId, parent: str) -> bool:
    """Whether no parent waits for a child run: it is over, gone, or has gone on without it.

    Raises CorruptRecord for a parent whose snapshot cannot be read.
    """
    try:
        head = await store.head(RunId(parent))
    except (RunNotFound, StoreRegressed):
        return True
    # The parent names its child before it begins it, so one that is not named was let go.
    return head.status in CLOSED or child not in codec.decode_snapshot(head.snapshot).children


async def abandon(store: Store, child: RunId, parent: str) -> None:
    """Have a child run that is abandoned ended by whoever takes it up."""
    await tell(store, child, CancelRequested(parent, "that run does not wait for it any more"))


async def rouse(store: Store, parent: str, child: str, occasion: str) -> None:
    """Tell a parent that its child can go on. Any number of times, for the same occasion once."""
    with suppress(RunClosed, RunNotFound, StoreRegressed):
        signal_id = f"stirred:{child}:{occasion}"
        await store.signal(RunId(parent), signal_id=signal_id, body=encode(Stirred(child)))


async def _create(parent: Run, delegated: Delegated, agent: Agent, task: str, deps: Deps) -> None:
    limits: Limits = msgspec.structs.replace(agent.limits, tokens=delegated.grant_tokens)
    if parent.limits.micros is not None:
        own, granted = agent.limits.money, delegated.grant_micros / 1_000_000
        limits = msgspec.structs.replace(
            limits, money=min(granted, granted if own is None else own)
        )
    created = Created(agent.name, clean_text(task), limits, parent.requester, agent.fingerprint())
    nested = Nested(parent.run_id, delegated.call_id)
    filed = Filed(parent.filed.tenant, parent.filed.priority)
    facts: tuple[AnyDelta, ...] = (created, nested, Versioned(agent.parts()))
    facts = facts if filed == Filed() else (*facts, filed)
    record = Record(None, deps.clock.wall_ms(), facts)
    run = apply(Run(run_id=delegated.child), record)
    await deps.store.create(
        RunId(delegated.child),
        op=hashlib.sha256(f"{parent.run_id} {delegated.call_id}".encode()).hexdigest()[:32],
        body=codec.encode(record),
        snapshot=codec.encode_snapshot(snapshot_of(run)),
        is_needed=True,
    )


async def _drive(child: RunId, agent: Agent, owner: str, deps: Deps) -> tuple[Run, Park | None]:
    """Drive the child. Where a worker that died with ours still holds it, wait for its lease."""
    end = monotonic() + 2 * deps.settings.lease_s
    while True:
        try:
            return await deps.work_on(child, agent, deps, owner=owner)
        except RunBusy:
            if monotonic() > end:
                raise
        await deps.clock.sleep(LOOK_S)


async def _read(run_id: RunId, deps: Deps) -> Run:
    entries = await deps.store.journal(run_id)
    return replay(run_id, [codec.decode(entry.body) for entry in entries])


def _result(run: Run, tool: AgentTool, doubt: str) -> Result:
    took_ms = max(0, run.updated_ms - run.created_ms)
    if run.answer is None:
        why = f"{run.failure.reason}: {run.failure.message}" if run.failure else "no reason given"
        text = f"{tool.agent.name} (run {run.run_id}) did not finish. {why}"
        text = f"{text} {doubt}" if doubt else text
        return Result(
            status="in_doubt" if doubt else "error", text=text, took_ms=took_ms,
            spent_tokens=run.spent_tokens, spent_micros=run.spent_micros,
            sources=run.sources, raised=run.raised,
        )  # fmt: skip
    shown = show(run.answer.text, tool.max_output_chars)
    return Result(
        status="success" if run.answer.is_completed else "partial",
        text=shown.text,
        full=shown.full,
        took_ms=took_ms,
        spent_tokens=run.spent_tokens,
        spent_micros=run.spent_micros,
        sources=run.sources,
        raised=run.raised,
    )
