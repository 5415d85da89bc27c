"""What must hold once the dust has settled: looked up in the store and in the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checkpoints.errors import CheckpointError
from fsm_agent.errors import AgentError
from fsm_agent.run.delta import AnyDelta, Asked, Intended, Resumed, Ruled, Settled
from fsm_agent.runtime import Runtime

from .ledger import Effect, effects
from .script import ANSWER

RUNS_LISTED = 1_000_000


@dataclass
class Check:
    """A promise, and the runs that break it."""

    name: str
    broken: list[str] = field(default_factory=list)

    @property
    def is_kept(self) -> bool:
        return not self.broken


@dataclass
class Verdict:
    """All promises, and what the fleet went through to keep them."""

    checks: list[Check]
    takeovers: int = 0
    in_doubt: int = 0
    sent: int = 0  # effects, with repeats

    @property
    def is_kept(self) -> bool:
        return all(check.is_kept for check in self.checks)


async def judge(runtime: Runtime, run_ids: Sequence[str], ledger: Path) -> Verdict:
    """Look at every run that was started, and at every effect."""
    stored = Counter(head.run_id for head in await runtime.runs(limit=RUNS_LISTED))
    sent = effects(ledger)
    lost = Check("no run is lost", [run for run in run_ids if run not in stored])
    doubled = Check("no run is there twice or unasked", [r for r in stored if r not in run_ids])
    formed = Check("every journal is whole: chain, order, legal arrows")
    ended = Check("every run has ended with its answer")
    single = Check("one result a call, one decision a request, no open intent")
    verdict = Verdict([lost, doubled, formed, ended, single], sent=len(sent))
    for run_id in stored:
        try:
            history = await runtime.history(run_id)
            result = await runtime.result(run_id)
        except (CheckpointError, AgentError) as error:
            formed.broken.append(f"{run_id}: {error}")
            continue
        deltas = [delta for event in history for delta in event.record.deltas]
        if (result.status, result.answer) != ("done", ANSWER):
            ended.broken.append(f"{run_id}: {result.status} {result.reason} {result.answer!r}")
        single.broken += [f"{run_id}: {what}" for what in _not_single(deltas)]
        verdict.takeovers += sum(isinstance(d, Resumed) and d.is_takeover for d in deltas)
        verdict.in_doubt += sum(isinstance(d, Asked) and d.kind == "in_doubt" for d in deltas)
    verdict.checks += [
        _each("each unsafe effect happened once", run_ids, sent, ("pay", "refund"), _raw),
        _each("each keyed effect happened once by its key", run_ids, sent, ("hold",), _keys),
    ]
    return verdict


def _not_single(deltas: Sequence[AnyDelta]) -> Iterable[str]:
    results = Counter(d.call_id for d in deltas if isinstance(d, Settled))
    rulings = Counter(d.ask_id for d in deltas if isinstance(d, Ruled))
    started = {d.call_id for d in deltas if isinstance(d, Intended)}
    yield from (f"{n} results of {call}" for call, n in results.items() if n > 1)
    yield from (f"{n} decisions on {ask}" for ask, n in rulings.items() if n > 1)
    yield from (f"no result of {call}" for call in sorted(started - set(results)))


def _raw(sent: Sequence[Effect]) -> int:
    return len(sent)


def _keys(sent: Sequence[Effect]) -> int:
    return len({effect.key for effect in sent})


def _each(
    name: str,
    run_ids: Sequence[str],
    sent: Sequence[Effect],
    tools: tuple[str, ...],
    count: Callable[[Sequence[Effect]], int],
) -> Check:
    check = Check(name)
    for run_id in run_ids:
        for tool in tools:
            times = count([e for e in sent if (e.tool, e.run_id) == (tool, run_id)])
            if times != 1:
                check.broken.append(f"{run_id}: {tool} {times} times")
    return check
