"""The person of a sweep: who approves, refuses, and says what became of a call in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from checkpoints.errors import AskExpired
from fsm_agent.run.delta import Intended
from fsm_agent.runtime import Request, Runtime

from .ledger import Ledger

# What to answer to a request, given the ledger: the verb, and the text of `answer` or `happened`.
Person = Callable[[Request, Ledger], tuple[str, str | None]]
LOOKED = "confirmed by a look at the ledger"


def truthful_person(request: Request, ledger: Ledger) -> tuple[str, str | None]:
    """Approves everything, and answers 'did it happen?' by what the ledger says."""
    return _answered(request, ledger, is_approving=True)


def approving_only(tools: frozenset[str]) -> Person:
    """A person who approves calls of these tools and refuses the others."""

    def person(request: Request, ledger: Ledger) -> tuple[str, str | None]:
        return _answered(request, ledger, is_approving=request.question.tool in tools)

    return person


def _answered(request: Request, ledger: Ledger, *, is_approving: bool) -> tuple[str, str | None]:
    match request.question.kind:
        case "in_doubt":
            tool = request.question.tool
            if not ledger.happened(tool, ledger.call_key):
                return "rerun", None
            return "happened", ledger.result_of(tool, ledger.call_key) or LOOKED
        case "question":
            options = request.question.options
            return "answer", options[0] if options else "yes"
        case _:
            return ("approve" if is_approving else "reject"), None


async def decide(runtime: Runtime, request: Request, person: Person, ledger: Ledger) -> None:
    """Let the person answer one request. Said again after a crash it is the same decision."""
    if request.question.kind == "in_doubt":
        ledger = ledger.of_call(await _key_of(runtime, request))
    # In a thread: a person takes time, and the engine works meanwhile.
    verb, answer = await asyncio.to_thread(person, request, ledger)
    number = len(request.votes)  # where several people must agree, the next one
    name = f"person {number}" if number else "person"
    with suppress(AskExpired):  # time has decided; the run is due
        await runtime.decide(
            request.run_id,
            request.ask_id,
            verb,  # type: ignore[arg-type]
            by=name,
            answer=answer,
            digest=request.digest,
            decision_id=f"{name}-{request.ask_id}",
        )


async def _key_of(runtime: Runtime, request: Request) -> str:
    """The idempotency key under which the call in doubt was started."""
    keys = [
        delta.key
        for event in await runtime.history(request.run_id)
        for delta in event.record.deltas
        if isinstance(delta, Intended) and delta.call_id == request.question.call_id
    ]
    return keys[-1] if keys else ""
