"""What helps a person to decide: the run so far, what the rule said, what was approved before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.errors import UnknownTool
from fsm_agent.inbox.approvals import Item
from fsm_agent.inbox.desk import Desk
from fsm_agent.run.delta import Asked, Created, Intended, Judged, Replied, Ruled, Settled
from fsm_agent.run.event import EntryEvent
from fsm_agent.telling.timeline import Row, rows_of

STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Context:
    """The surroundings of a request, from its run's journal."""

    requester: str
    task: str
    words: str  # what the model wrote with the call
    verdict: str  # why the rule asks
    previous: str | None  # arguments of the call of this tool that was approved last, in this run
    steps: Sequence[Row]
    intent: Intended | None
    applied_seq: int  # where the run took the decision up; 0: not yet
    result: Settled | None
    schema: dict[str, Any] | None
    siblings: int  # calls of the same step that nobody has decided yet, this one too

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "requester": self.requester,
            "task": self.task,
            "model_words": self.words,
            "verdict": self.verdict,
            "previous_args": self.previous,
            "steps": [{"seq": r.seq, "at": r.at, "place": r.place, "text": r.text}
                      for r in self.steps],
            "applied_seq": self.applied_seq or None,
            "result": {"status": self.result.status, "text": self.result.text}
            if self.result else None,
            "schema": self.schema,
        }  # fmt: skip


async def context_of(desk: Desk, item: Item) -> Context:
    """The surroundings. Raises CorruptEntry where the journal cannot be read."""
    request = item.request
    events = await desk.runtime.history(request.run_id)
    facts = [(event.seq, fact) for event in events for fact in event.record.deltas]
    mine = [fact for _, fact in facts if getattr(fact, "call_id", "") == request.question.call_id]
    created = next((fact for _, fact in facts if isinstance(fact, Created)), None)
    judged = [fact for fact in mine if isinstance(fact, Judged)]
    results = [fact for fact in mine if isinstance(fact, Settled)]
    intents = [fact for fact in mine if isinstance(fact, Intended)]
    return Context(
        requester=created.requester if created else "",
        task=created.task if created else "",
        words=_words(events, request.question.call_id),
        verdict=judged[-1].reason if judged else "",
        previous=_previous(events, item),
        steps=rows_of(events)[-STEPS:],
        intent=intents[-1] if intents else None,
        applied_seq=next(
            (n for n, f in facts if isinstance(f, Ruled) and f.ask_id == request.ask_id), 0
        ),
        result=results[-1] if results else None,
        schema=_schema(desk, item),
        siblings=len(item.snapshot.asks),
    )


def _words(events: Sequence[EntryEvent], call_id: str) -> str:
    for event in events:
        for fact in event.record.deltas:
            if isinstance(fact, Replied) and any(c.call_id == call_id for c in fact.calls):
                return fact.text or fact.reasoning
    return ""


def _previous(events: Sequence[EntryEvent], item: Item) -> str | None:
    """The arguments that were approved last for this tool, before this request."""
    calls: dict[str, tuple[str, str]] = {}
    found = None
    for event in events:
        for fact in event.record.deltas:
            if isinstance(fact, Replied):
                calls |= {c.call_id: (c.name, c.arguments) for c in fact.calls}
            if isinstance(fact, Asked) and fact.ask_id == item.request.ask_id:
                return found
            if isinstance(fact, Ruled) and fact.verb in ("approve", "edit"):
                name, arguments = calls.get(fact.call_id, ("", ""))
                if name == item.request.question.tool:
                    found = fact.arguments or arguments
    return found


def _schema(desk: Desk, item: Item) -> dict[str, Any] | None:
    agent = desk.agents.get(item.request.question.agent)
    if agent is None:
        return None
    try:
        return agent.registry.get(item.request.question.tool).parameters
    except UnknownTool:
        return None
