"""Versions of runs and of code: fork a run, look back at any entry, check code before a deploy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

import msgspec

from checkpoints.errors import CheckpointError
from checkpoints.model import CLOSED, Head, RunId, Status
from fsm_agent.capabilities.agent import Agent
from fsm_agent.capabilities.delegate import AgentTool
from fsm_agent.engine.deps import Deps
from fsm_agent.engine.forking import Fork, fork, whole_steps
from fsm_agent.engine.obstacles import Obstacle, obstacles
from fsm_agent.engine.resume import load, unfold
from fsm_agent.engine.session import snapshot_of
from fsm_agent.errors import AgentError, CorruptRecord, UsageError
from fsm_agent.run import codec
from fsm_agent.run.content import clean_text
from fsm_agent.run.delta import Forked
from fsm_agent.run.record import Record, Run
from fsm_agent.run.state import State

ALL = 10**9  # runs
MAX_SAID_CHARS = 200_000


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its journal makes it, its hash chain verified."""

    run: Run
    chain: str  # hex, of the last entry that was folded
    last_seq: int  # of the journal
    differences: tuple[str, ...] = ()  # of the head from the journal; () if that was not reached


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a deploy of some agents would meet."""

    runs: int  # live ones of these agents
    requests: int  # that they wait for
    others: int  # live runs of other agents, which were not looked at
    obstacles: tuple[Obstacle, ...]


class Versions:
    """Forks, replays, and what other code would meet. All but `fork` only read."""

    _deps: Deps

    async def fork(
        self,
        run_id: str,
        *,
        at: int | None = None,
        new_id: str | None = None,
        say: str = "",
        by: str = "",
        is_due: bool = False,
    ) -> Fork:
        """Begin a new run with the entries 1 to `at` of this one, whatever became of it since.

        What is on record is not done again. Calls that were started and have no result are in doubt
        in the fork; requests, approvals and standing consents are the origin's and are asked anew;
        keys and child runs are new. `at` (default: the last one possible) must be a whole step.
        `say` is a further message of the user. `is_due` lets any worker take it up; otherwise it
        waits for `work`. The same call again is the same fork, if it names the same `new_id`.

        Raises UsageError for another `at`, naming those that are possible, or an id that is taken;
        RunNotFound, BadRunId, or CorruptEntry.
        """
        say = clean_text(say)
        if say and not 0 < len(say.strip()) <= MAX_SAID_CHARS:
            raise UsageError(
                f"a message has 1 to {MAX_SAID_CHARS} characters that are not blank, "
                f"this one has {len(say.strip())}."
            )
        history = await self._history(run_id)
        steps = whole_steps(run for run, _ in history)
        forked = Forked(
            origin=run_id,
            at_seq=steps[-1] if at is None else at,
            at_ms=await self._deps.store.now_ms(),
            by=clean_text(by),
            say=say,
        )
        named = f"r-{self._deps.new_id()[:16]}" if new_id is None else new_id
        return await fork(self._deps.store, history, forked, named, is_due=is_due)

    async def replay(self, run_id: str, *, at: int | None = None) -> Replayed:
        """Fold the run's journal up to entry `at` (default: all of it), and compare the head.

        Raises RunNotFound, CorruptEntry naming the entry that was changed, or UsageError for an
        entry that is not there.
        """
        head = await self._deps.store.head(RunId(run_id))
        entries = await self._deps.store.journal(RunId(run_id))
        seq = len(entries) if at is None else at
        if not 1 <= seq <= len(entries):
            raise UsageError(
                f"run {run_id!r} has no entry {seq}: its entries are 1 to {len(entries)}."
            )
        run, at_head = Run(run_id=run_id), None
        for now, _ in unfold(run, entries[:seq]):
            run = now
            at_head = run if run.seq == head.seq else at_head
        return Replayed(
            run=run,
            chain=entries[seq - 1].chain.hex(),
            last_seq=len(entries),
            differences=tuple(_differences(head, at_head)) if at_head else (),
        )

    async def check_deploy(self, agents: Agent | Iterable[Agent]) -> Checked:
        """Which live runs and open requests the code of an agent, or of several, cannot serve."""
        known = _with_children([agents] if isinstance(agents, Agent) else agents)
        found: list[Obstacle] = []
        runs = requests = others = 0
        for head in await self._live():
            name = _agent_of(head)
            if name is not None and name not in known:
                others += 1
                continue
            runs += 1
            try:
                run, _ = await load(head.run_id, self._deps)
            except (AgentError, CheckpointError) as error:
                found.append(_unreadable(head, name, error))
                continue
            requests += len(run.open_asks)
            if run.agent in known:
                found += obstacles(run, known[run.agent])
        return Checked(runs=runs, requests=requests, others=others, obstacles=tuple(found))

    async def _history(self, run_id: str) -> Sequence[tuple[Run, Record]]:
        entries = await self._deps.store.journal(RunId(run_id))
        return list(unfold(Run(run_id=run_id), entries))

    async def _live(self) -> Iterable[Head]:
        statuses = [status for status in get_args(Status) if status not in CLOSED]
        found = [await self._deps.store.runs(status=each, limit=ALL) for each in statuses]
        return {head.run_id: head for heads in found for head in heads}.values()


def _differences(head: Head, run: Run) -> Iterator[str]:
    """In what a head differs from the run that its journal makes, in words."""
    ending = {State.DONE: "done", State.ERROR: "error"}.get(run.state)
    if ending != (head.status if head.status in CLOSED else None):
        yield f"its status is {head.status!r}, and the journal ends in {run.state}"
    try:
        told = codec.decode_snapshot(head.snapshot)
    except CorruptRecord as error:
        yield f"its snapshot cannot be read ({error})"
        return
    made = snapshot_of(run)
    for name in made.__struct_fields__:
        says, is_so = getattr(told, name), getattr(made, name)
        if says != is_so:
            yield f"its {name} is {says!r}, and the journal makes it {is_so!r}"


def _with_children(agents: Iterable[Agent]) -> Mapping[str, Agent]:
    """The agents by name, with those that work for them as tools."""
    known: dict[str, Agent] = {}
    todo = list(agents)
    while todo:
        agent = todo.pop(0)
        if agent.name in known:
            continue
        known[agent.name] = agent
        todo += [tool.agent for tool in agent.registry if isinstance(tool, AgentTool)]
    return known


def _agent_of(head: Head) -> str | None:
    """The agent of a run; None where its head cannot be read."""
    try:
        return codec.decode_snapshot(head.snapshot).agent
    except CorruptRecord:
        return None


def _unreadable(head: Head, agent: str | None, error: Exception) -> Obstacle:
    return Obstacle(
        run_id=head.run_id,
        agent=agent or "",
        kind="unreadable",
        reason=str(error).rstrip("."),
        seq=head.seq,
    )
