"""How a worker takes a run up: claim, load, drive, and what it leaves behind if it loses it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from checkpoints.chain import genesis
from checkpoints.errors import (
    CheckpointError,
    CorruptEntry,
    LeaseLost,
    NotDurable,
    StoreDiverged,
    StoreRegressed,
    StoreUsageError,
    ThreadBusy,
)
from checkpoints.model import Claim, Entry, RunId
from checkpoints.shield import landed
from checkpoints.steady import monotonic
from fsm_agent.capabilities.agent import Agent
from fsm_agent.context.tokens import tokens_of
from fsm_agent.context.window import Window
from fsm_agent.errors import BadAgent, CodeChanged, CorruptRecord, NewerRecord
from fsm_agent.run import codec, evidence
from fsm_agent.run.delta import Failed
from fsm_agent.run.evidence import Orphan
from fsm_agent.run.record import Record, Run, apply, message_size

from . import threads
from .deps import Deps
from .drive import drive
from .ending import end_now
from .outcome import Park
from .session import Session
from .versions import taken_up

# A run that only newer code can read stays due, for workers of that code; but not at once, or the
# one that cannot would be the next to look.
NEWER_AGAIN_MS = 30_000


async def work_on(
    run_id: RunId, agent: Agent, deps: Deps, *, owner: str
) -> tuple[Run, Park | None]:
    """Claim the run and drive it until it is over (None) or waits (Park). The run as it stands.

    Raises RunBusy, RunClosed or RunNotFound from the claim; LeaseLost if another worker took the
    run over, after an orphan report was filed; CorruptEntry or NewerRecord with nothing changed;
    CodeChanged where other code has to go on, or a person has to accept this one; and UsageError or
    ProviderError where a person must act first: the run was given back then, as it was.
    """
    term_ms = int(deps.settings.lease_s * 1000)
    since = monotonic()  # the heartbeat's clock, whatever the engine's is
    claim = await _claim(run_id, deps, owner=owner, term_ms=term_ms)
    try:
        session = await _load(claim, agent, deps)
    except NewerRecord:
        await _give_back(claim, deps, due_ms=claim.server_ms + NEWER_AGAIN_MS)
        raise
    except (CorruptRecord, StoreDiverged, CodeChanged):
        await _give_back(claim, deps)  # no worker can go on with these bytes, or none should
        raise
    except BaseException:
        # The wrong agent, a store that is away, a stop: another worker may do better at once.
        await asyncio.shield(_give_back(claim, deps, due_ms=claim.server_ms))
        raise
    return await _drive_held(session, claim, since, agent, deps)


async def _claim(run_id: RunId, deps: Deps, *, owner: str, term_ms: int) -> Claim:
    """Take the lease; a stop meanwhile gives it back, instead of leaving it to run out."""
    claiming = asyncio.ensure_future(
        deps.store.claim(run_id, owner=owner, nonce=deps.new_id(), term_ms=term_ms)
    )
    try:
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        if not claiming.cancelled():
            await asyncio.wait([claiming])
            if claiming.exception() is None:
                claim = claiming.result()
                await _give_back(claim, deps, due_ms=claim.server_ms)
        raise


async def _load(claim: Claim, agent: Agent, deps: Deps) -> Session:
    run, chain = await load(claim.lease.run_id, deps)
    if run.agent != agent.name:
        raise BadAgent(
            f"run {run.run_id!r} belongs to the agent {run.agent!r}, not to {agent.name!r}. "
            "Name the right agent with --agent."
        )
    # What is carried over from another run is said anew with each request.
    history_tokens = sum(tokens_of(message_size(message)) for message in run.history)
    window = Window(
        agent.context_tokens,
        agent.context,
        overhead_tokens=agent.overhead_tokens + history_tokens,
    )
    session = Session(run, claim, chain, deps, window, keep_s=agent.keep_s)
    if claim.head.mail:
        await session.read_mail()
    # Whoever cancels a run needs no particular code for it.
    if not session.cancel and (new := taken_up(run, agent, accepted_by=deps.accepted_by)):
        session.opens_with(new)
    return session


async def load(run_id: RunId, deps: Deps) -> tuple[Run, bytes]:
    """The run that its journal makes, and the chain hash of its last entry.

    Raises RunNotFound, or what `unfold` raises.
    """
    entries = await deps.store.journal(run_id)
    run = Run(run_id=run_id)
    for now, _ in unfold(run, entries):
        run = now
    return run, entries[-1].chain if entries else genesis(run_id)


def unfold(run: Run, entries: Sequence[Entry]) -> Iterator[tuple[Run, Record]]:
    """The run after each of the entries that follow it, and the entry's record.

    Raises CorruptEntry naming the entry that cannot be read, or that no arrow leads to; and
    NewerRecord naming one that only a newer version can read.
    """
    for entry in entries:
        try:
            record = codec.decode(entry.body)
            run = apply(run, record)
        except NewerRecord as error:
            raise NewerRecord(
                f"run {run.run_id!r}: entry {entry.seq} cannot be read here: {error}."
                " Nothing was changed"
            ) from error
        except (CorruptRecord, KeyError) as error:
            raise CorruptEntry(run.run_id, entry.seq, str(error)) from error
        yield run, record


async def _drive_held(
    session: Session, claim: Claim, since: float, agent: Agent, deps: Deps
) -> tuple[Run, Park | None]:
    try:
        async with (
            deps.heartbeat.held(
                session.lease, on_mail=session.announce_mail, since=since, mail=claim.head.mail
            ),
            session.reading_mail(),
        ):
            if claim.head.recoveries > deps.settings.max_recoveries:
                await _give_up(session, agent, deps, claim.head.recoveries)
            park = await _await_turn(session, agent, deps) or await drive(session, agent, deps)
    except LeaseLost:
        await _report_orphans(session, deps, "after the run was taken over")
        raise
    except StoreRegressed as error:
        lost = f"after the store had lost entries {error.stored_seq + 1} to {error.known_seq}"
        await _report_orphans(session, deps, lost)
        await _set_aside(claim, deps)
        raise
    except asyncio.CancelledError:
        # Whoever stopped us meant the process, not the run: let another worker go on at once.
        await landed(_leave(session, claim, deps))
        raise
    except NewerRecord:
        await _give_back(claim, deps, due_ms=session.now_ms() + NEWER_AGAIN_MS)
        raise
    except CheckpointError as error:
        if isinstance(error, NotDurable):
            # What was done is on record. Later, when the copies may have followed.
            wait_ms = int(deps.settings.unconfirmed_retry_s * 1000)
            with contextlib.suppress(CheckpointError):
                await deps.store.release(claim.lease, due_ms=session.now_ms() + wait_ms)
        if isinstance(error, StoreUsageError):  # such as an entry above the size cap
            await _give_back(claim, deps)
        raise
    except Exception:
        # What a person must mend: a wrong key, a tool that is gone, a bug of the host's. Not due,
        # as each further try would pay for the same failure.
        await _give_back(claim, deps)
        raise
    await threads.leave_if_over(deps.store, session.run)
    return session.run, park


async def _await_turn(session: Session, agent: Agent, deps: Deps) -> Park | None:
    """Park a run whose thread has another active one; end it if it was not to wait."""
    run = session.run
    if not run.filed.thread or run.is_over or session.cancel:
        return None
    try:
        turn = await threads.join(
            deps.store, session.lease.run_id, run.filed, by=run.requester or run.run_id
        )
    except ThreadBusy as busy:
        await end_now(session, agent, deps, threads.refusal(busy), "was refused")
        return None
    if turn.is_active:
        return None
    park = Park("sleeping", session.now_ms() + int(threads.LOOK_S * 1000))
    await session.flush(park)
    return park


async def _give_up(session: Session, agent: Agent, deps: Deps, recoveries: int) -> None:
    message = (
        f"{recoveries} workers died on the same step: {_step_of(session.run)}. "
        "Look at what that step does before starting it again."
    )
    await end_now(session, agent, deps, Failed("poison", message), "was given up")


def _step_of(run: Run) -> str:
    """Where a run stands, such that a person finds it: state, entry, and what was under way."""
    step = f"{run.state}, after entry {run.seq}"
    calls = [f"{c.call.name} ({c.call.call_id})" for c in run.calls if c.phase == "started"]
    if calls:
        return f"{step}, with {', '.join(calls)} under way"
    return f"{step}, in model call {run.attempts}" if run.has_attempt else step


async def _leave(session: Session, claim: Claim, deps: Deps) -> None:
    if session.unacknowledged():  # of calls that ended during the stop
        await _report_orphans(session, deps, "while the worker was being stopped")
    await _give_back(claim, deps, due_ms=claim.server_ms)


async def _give_back(claim: Claim, deps: Deps, *, due_ms: int | None = None) -> None:
    """Release the lease; a store that cannot be reached lets it run out by itself.

    Without a time no worker takes the run up by itself: somebody has to act first.
    """
    with contextlib.suppress(CheckpointError):
        await deps.store.release(claim.lease, due_ms=due_ms)


async def _set_aside(claim: Claim, deps: Deps) -> None:
    """Keep workers from a run of which entries were lost: they would repeat what those did.

    The grant of our lease may be among what was lost; the store's claim then does the same.
    """
    await _give_back(claim, deps)
    lease = claim.lease
    with contextlib.suppress(CheckpointError):
        again = await deps.store.claim(
            lease.run_id, owner=lease.owner, nonce=deps.new_id(), term_ms=lease.term_ms
        )
        await _give_back(again, deps, due_ms=again.server_ms)  # it has all that we know of


async def _report_orphans(session: Session, deps: Deps, when: str) -> None:
    """File what we saw of a run that is no longer ours: evidence for whoever settles it."""
    owner = session.lease.owner
    reports = [
        Orphan(owner, result.call_id, when, result.status, result.text[:500])
        for result in session.unacknowledged()
    ]
    reports += [Orphan(owner, call_id, when) for call_id in session.under_way()]
    for report in reports:
        with contextlib.suppress(CheckpointError):
            await deps.store.report_orphan(
                session.lease.run_id, evidence.encode(deps.clean(report))
            )
