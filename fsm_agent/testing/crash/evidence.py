"""What a run leaves behind, as plain data: journals, requests, the ledger, how processes ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec

from checkpoints.model import RunId
from checkpoints.store import Store
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.content import EffectClass
from fsm_agent.run.delta import (
    AnyDelta,
    Asked,
    Delegated,
    Intended,
    Proposed,
    Replied,
    Resumed,
    Settled,
)
from fsm_agent.runtime import Result

from .case import Case
from .ledger import Counts, Entry, Ledger


class Journal(msgspec.Struct, frozen=True):
    """The entries of one run: seq, chain, body."""

    run_id: str
    entries: tuple[tuple[int, bytes, bytes], ...]

    def deltas(self) -> Iterator[AnyDelta]:
        """Every fact up to the first entry that cannot be read, which is for a judge to name."""
        for _, _, body in self.entries:
            try:
                record = codec.decode(body)
            except CorruptRecord:
                return
            yield from record.deltas


class AskSeen(msgspec.Struct, frozen=True):
    """A request as the store keeps it."""

    run_id: str
    ask_id: str
    verb: str = ""  # '': nobody decided it


class Evidence(msgspec.Struct, frozen=True, dict=True):
    """What the store holds of a run, and of the runs that work for it."""

    result: Result
    journals: tuple[Journal, ...]
    asks: tuple[AskSeen, ...]

    @cached_property
    def deltas(self) -> tuple[AnyDelta, ...]:
        return tuple(delta for journal in self.journals for delta in journal.deltas())

    @cached_property
    def tool_of(self) -> dict[tuple[str, str], str]:
        """The tool of each call, by run and call id."""
        return {
            (journal.run_id, call.call_id): call.name
            for journal in self.journals
            for delta in journal.deltas()
            if isinstance(delta, (Replied, Proposed))
            for call in delta.calls
        }

    def called(self, kind: type[AnyDelta]) -> Iterator[tuple[str, AnyDelta]]:
        """Every delta of a kind that names a call, with the tool of that call."""
        for journal in self.journals:
            for delta in journal.deltas():
                if isinstance(delta, kind):
                    call_id: str = getattr(delta, "call_id", "")
                    yield self.tool_of.get((journal.run_id, call_id), "?"), delta

    @cached_property
    def classes(self) -> dict[str, EffectClass]:
        """The effect class of each tool that was started."""
        return {t: d.effect for t, d in self.called(Intended) if isinstance(d, Intended)}


class Ending(msgspec.Struct, frozen=True):
    """How one process ended."""

    how: Literal["done", "killed", "cancelled", "failed", "timed out"]
    kind: str = ""  # of `failed`: the error's class
    error: str = ""


class Problem(msgspec.Struct, frozen=True):
    """Something that must not be."""

    oracle: Literal["answer", "effects", "journal", "counted", "ends"]
    text: str


class Outcome(msgspec.Struct, frozen=True, dict=True):
    """What came of one case."""

    case: Case
    folder: str
    is_reached: bool  # every strike fell
    is_passed: bool  # the processes passed every point that was to be struck
    endings: tuple[Ending, ...]
    evidence: Evidence | None = None
    traces: tuple[tuple[str, ...], ...] = ()  # points of each process
    wires: tuple[str, ...] = ()  # requests of the first process
    problems: tuple[Problem, ...] = ()
    took_s: float = 0.0
    entries: tuple[Entry, ...] | None = None  # of the ledger, where its file is gone

    @property
    def ledger(self) -> Counts:
        """What the tools did in all of the case's processes."""
        if self.entries is not None:
            return Counts(self.entries)
        return Ledger(Path(self.folder) / "ledger").counts()

    @property
    def result(self) -> Result:
        """How the run ended. Raises AssertionError if it did not."""
        assert self.evidence, f"{self.case}: {self.last_words}"
        return self.evidence.result

    @property
    def last_words(self) -> str:
        last = self.endings[-1]
        return f"the last process {last.how}" + (
            f": {last.kind}: {last.error}" if last.kind else ""
        )

    @property
    def killed_at(self) -> str | None:
        return self.case.strikes[0].kill_at if self.case.strikes and self.is_reached else None

    @cached_property
    def asked_in_doubt(self) -> tuple[str, ...]:
        """The tools about which a person was asked what became of a call."""
        if not self.evidence:
            return ()
        found = self.evidence.called(Asked)
        return tuple(t for t, d in found if isinstance(d, Asked) and d.kind == "in_doubt")

    @property
    def takeovers(self) -> int:
        deltas = self.evidence.deltas if self.evidence else ()
        return sum(isinstance(delta, Resumed) and delta.is_takeover for delta in deltas)

    @property
    def calls(self) -> Counter[str]:
        """Results on record per call."""
        deltas = self.evidence.deltas if self.evidence else ()
        return Counter(delta.call_id for delta in deltas if isinstance(delta, Settled))

    @property
    def starts(self) -> Counter[str]:
        """Intents on record per tool."""
        found = self.evidence.called(Intended) if self.evidence else ()
        return Counter(tool for tool, _ in found)


async def collect(store: Store, result: Result) -> Evidence:
    """Read what the store holds. Raises CorruptEntry where a journal is not what was written."""
    journals: list[Journal] = []
    asks: list[AskSeen] = []
    todo = [result.run_id]
    while todo:
        run_id = RunId(todo.pop(0))
        entries = await store.journal(run_id)
        journal = Journal(run_id, tuple((e.seq, e.chain, e.body) for e in entries))
        journals.append(journal)
        todo += [d.child for d in _unique(journal) if d.child not in todo]
        for record in await store.asks(run_id, is_open=False):
            verb = record.ruling.verb if record.ruling else ""
            asks.append(AskSeen(run_id, record.ask.ask_id, verb))
    return Evidence(result, tuple(journals), tuple(asks))


def _unique(journal: Journal) -> Sequence[Delegated]:
    found = [delta for delta in journal.deltas() if isinstance(delta, Delegated)]
    return list({each.child: each for each in found}.values())
