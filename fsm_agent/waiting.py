"""What waits for a person: the requests of runs, and which one is meant."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from checkpoints.errors import AskNotFound, BadRunId, RunClosed, RunNotFound, StoreDiverged
from checkpoints.model import CLOSED, AskRecord, Comment, Ruling, RunId, Vote
from fsm_agent.engine.deps import Deps
from fsm_agent.errors import CorruptRecord, UsageError
from fsm_agent.run import codec, evidence, signal
from fsm_agent.run.evidence import Orphan
from fsm_agent.run.signal import Question


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a run asks a person, as it stands in the store."""

    run_id: str
    ask_id: str
    question: Question
    digest: str  # of tool and arguments: a decision counts for exactly these
    opened_ms: int
    unlock_ms: int = 0
    ruling: Ruling | None = None
    expires_ms: int = 0  # 0: never
    votes: tuple[Vote, ...] = ()  # of the people whom `question.quorum` needs
    comments: tuple[Comment, ...] = ()
    claimed_by: str = ""  # who looks at it; keeps nobody else from deciding
    claimed_ms: int = 0
    evidence: tuple[Orphan, ...] = ()  # of one in doubt: what fenced workers saw of the call


class Waiting:
    """The requests of runs."""

    _deps: Deps

    async def requests(
        self, run_id: str | None = None, *, is_open: bool = True
    ) -> Sequence[Request]:
        """What waits for a person, oldest first: of one run and the runs that work for it, or of
        all. Decide each under its own `run_id` and `digest`: runs that work for each other may
        use the same ask ids."""
        asked = RunId(run_id) if run_id is not None else None
        records = [*await self._deps.store.asks(asked, is_open=is_open)]
        if asked is not None:
            for child in await self._children_of(asked):
                records += await self._deps.store.asks(child, is_open=is_open)
            records.sort(key=lambda record: record.opened_ms)
        return [await self._with_evidence(_request(record)) for record in records]

    async def _with_evidence(self, request: Request) -> Request:
        if request.question.kind != "in_doubt":
            return request
        call_id = request.question.call_id
        seen = tuple(o for o in await self.orphans(request.run_id) if o.call_id == call_id)
        return msgspec.structs.replace(request, evidence=seen)

    async def orphans(self, run_id: str) -> Sequence[Orphan]:
        """What workers saw of the run after they had lost it, oldest first. Never state."""
        found = await self._deps.store.orphans(RunId(run_id))
        return [evidence.decode(body) for body in found]

    async def _children_of(self, run_id: RunId) -> list[RunId]:
        """The unfinished runs that work for this one, and those that work for them."""
        found: list[RunId] = []
        todo = [run_id]
        while todo:
            with suppress(RunNotFound, StoreDiverged, BadRunId, CorruptRecord):
                head = await self._deps.store.head(todo.pop())
                children = map(RunId, codec.decode_snapshot(head.snapshot).children)
                new = [child for child in children if child not in found]
                found += new
                todo += new
        return found

    async def request(self, run_id: str, ask_id: str, *, digest: str | None = None) -> Request:
        """One request of a run, or of a run that works for it, open or decided.

        `digest`, or how it begins, tells apart the requests of several runs under one id. Raises
        AskNotFound, RunClosed or RunNotFound; UsageError where it is not clear which is meant.
        """
        return await self._meant(run_id, ask_id, digest, may_repeat=False)

    async def _meant(
        self, run_id: str, ask_id: str, digest: str | None, *, may_repeat: bool
    ) -> Request:
        everything = await self.requests(run_id, is_open=False)
        named = [request for request in everything if request.ask_id == ask_id]
        found = meant(named, run_id, digest or "", may_repeat=may_repeat)
        if len(found) > 1:
            raise UsageError(
                f"several runs ask {ask_id!r}. Name one, with its digest where it is above"
                f" another: {', '.join(map(_told_apart, found))}."
            )
        if found:
            return found[0]
        head = await self._deps.store.head(RunId(run_id))  # an unknown run is the better answer
        if head.status in CLOSED:
            raise RunClosed(run_id, head.status)
        still_open = [r.ask_id for r in everything if r.ruling is None]
        raise AskNotFound(run_id, ask_id, still_open)


def meant(
    named: Sequence[Request], run_id: str, digest: str, *, may_repeat: bool = False
) -> Sequence[Request]:
    """Of requests under one id, those that may be meant by a run, and by how a digest begins.

    An id is a place in a journal, so a run and those that work for it may ask under the same one
    at a time. A word without a digest must not fall on what its speaker never saw, so the run
    alone is enough only while no other one waits. One that `may_repeat` may have been recorded
    with what is decided: the store knows.
    """
    own = [r for r in named if r.run_id == run_id]
    if digest:
        fitting = [r for r in named if r.digest.startswith(digest)] or own
        still_open = [r for r in fitting if r.ruling is None]
        return [r for r in fitting if r in own] or still_open or fitting or named
    if own and may_repeat and own[0].ruling:
        return own
    return named if any(r.ruling is None for r in named if r not in own) else own or named


def _told_apart(request: Request) -> str:
    return f"{request.run_id} ({request.question.tool[:64]}, {request.digest[:8]})"


def _request(record: AskRecord) -> Request:
    return Request(
        run_id=record.run_id,
        ask_id=record.ask.ask_id,
        question=signal.decode_question(record.ask.body),
        digest=record.ask.digest,
        opened_ms=record.opened_ms,
        unlock_ms=record.ask.unlock_ms,
        ruling=record.ruling,
        expires_ms=record.ask.expires_ms,
        votes=record.votes,
        comments=record.comments,
        claimed_by=record.claimed_by,
        claimed_ms=record.claimed_ms,
    )
