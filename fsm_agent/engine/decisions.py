"""What a person's decision makes of a call: the facts that go on record with it."""

from __future__ import annotations

from fsm_agent.run.delta import Asked, Ruled, Settled
from fsm_agent.run.record import OpenCall
from fsm_agent.run.signal import Decided

VERBS: dict[str, tuple[str, ...]] = {
    "approval": ("approve", "reject", "edit", "answer", "expire"),
    "question": ("answer", "reject", "expire"),
    "in_doubt": ("happened", "rerun", "fail", "expire"),
}


def ruled(ask: Asked, decided: Decided, *, at_ms: int, edited_digest: str = "") -> Ruled:
    """The decision as the run takes it up."""
    return Ruled(
        ask_id=ask.ask_id,
        call_id=ask.call_id,
        verb=decided.verb,
        by=decided.by,
        at_ms=at_ms,
        reason=decided.reason,
        digest=edited_digest or ask.digest,
        arguments=decided.arguments if decided.verb == "edit" else None,
        answer=decided.answer,
    )


def result_of(call: OpenCall, ask: Asked, decided: Decided) -> Settled | None:
    """The result that the decision itself gives to the call; None if the call may run now."""
    call_id = call.call.call_id
    why = f": {decided.reason}" if decided.reason else "."
    match decided.verb:
        case "approve" | "edit" | "rerun":
            return None
        case "reject" if ask.kind == "question":
            return Settled(call_id, "denied", f"The person would not answer{why}")
        case "reject":
            return Settled(call_id, "denied", f"A person refused this call{why} It did not run.")
        case "answer" if ask.kind == "question":
            return Settled(call_id, "success", decided.answer or "")
        case "answer":
            text = f"A person answered instead of running the tool: {decided.answer or ''}"
            return Settled(call_id, "success", text)
        case "happened":
            known = decided.answer or "No result is known, but a person confirmed the effect."
            return Settled(call_id, "success", known)
        case "fail":
            text = f"It is not known whether this call took effect{why} Do not assume either."
            return Settled(call_id, "in_doubt", text)
        case "expire":
            return Settled(call_id, "expired", "Nobody decided in time. The call did not run.")
