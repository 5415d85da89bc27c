"""What a person's decision makes of a call: the facts that go on record with it."""

from __future__ import annotations

from fsm_agent.run.delta import (
    Asked,
    AskedOn,
    Attested,
    Consented,
    Revoked,
    Settled,
    Verb,
    Voted,
)
from fsm_agent.run.person import identity
from fsm_agent.run.record import OpenCall, Run
from fsm_agent.run.signal import Consent, Decided, Revoke

VERBS: dict[str, tuple[Verb, ...]] = {
    "approval": ("approve", "reject", "edit", "answer", "expire"),
    "question": ("answer", "reject", "expire"),
    "in_doubt": ("happened", "rerun", "fail", "expire"),
}


def ruled(
    ask: Asked, decided: Decided, *, at_ms: int, decided_ms: int, edited_digest: str = ""
) -> Attested:
    """The decision as the run takes it up."""
    return Attested(
        ask_id=ask.ask_id,
        call_id=ask.call_id,
        verb=decided.verb,
        by=decided.by,
        at_ms=at_ms,
        reason=decided.reason,
        digest=edited_digest or ask.digest,
        arguments=decided.arguments if decided.verb == "edit" else None,
        answer=decided.answer,
        decided_ms=decided_ms,
        channel=decided.channel,
        auth=decided.auth,
    )


def voted(ask: Asked, decided: Decided, *, decided_ms: int) -> Voted:
    """One of the decisions that a request needs, as the run takes it up."""
    return Voted(
        ask_id=ask.ask_id,
        call_id=ask.call_id,
        verb=decided.verb,
        by=decided.by,
        decided_ms=decided_ms,
        reason=decided.reason,
        digest=ask.digest,
        channel=decided.channel,
        auth=decided.auth,
    )


def objection_to(run: Run, call: OpenCall, ask: Asked, decided: Decided, decided_ms: int) -> str:
    """Why a decision does not let the call run, by the terms on record; '' if it does.

    The store and the runtime refused what breaks them; this is the last look before a start, for
    what reached the mailbox by another way.
    """
    if decided.verb not in ("approve", "edit", "answer") or not isinstance(ask, AskedOn):
        return ""
    if decided.channel == "deadline":
        is_meant = ask.on_expiry == "approve" and 0 < ask.expires_ms <= decided_ms
        return "" if is_meant else "this deadline approves nothing"
    if 0 < ask.expires_ms <= decided_ms:
        return "it came after the deadline"
    if ask.not_requester and identity(decided.by) == identity(run.requester):
        return "who started the run may not decide"
    agreed = {identity(vote.by) for vote in call.votes} | {identity(decided.by)}
    if decided.verb != "answer" and len(agreed) < ask.quorum:
        return f"{len(agreed)} of {ask.quorum} people agreed"
    return ""


def refused(ask: Asked, decided: Decided, objection: str) -> Settled:
    """The result of a call whose approval does not count."""
    text = f"The word of {decided.by} does not count: {objection}. The call did not run."
    return Settled(ask.call_id, "denied", text)


def standing(
    signal_id: str, said: Consent | Revoke | Decided, call: OpenCall | None, *, at_ms: int
) -> Consented | Revoked:
    """A consent to later calls as the run takes it up, or its end."""
    match said:
        case Revoke():
            return Revoked(said.consent_id, said.by, at_ms, said.reason)
        case Consent():
            tool, rule, consent_id = said.tool, said.rule, signal_id.partition(":")[2]
        case Decided():
            assert call
            rule = call.verdict.rule if call.verdict else ""
            tool, consent_id = call.call.name, said.ask_id
    return Consented(consent_id, tool, rule, said.by, at_ms, said.reason, said.channel, said.auth)


def result_of(call: OpenCall, ask: Asked, decided: Decided) -> Settled | None:
    """The result that the decision itself gives to the call; None if the call may run now."""
    call_id = call.call.call_id
    reason = decided.reason.rstrip()
    stop = "" if reason.endswith((".", "!", "?", "…")) else "."
    why = f": {reason}{stop}" if reason else "."
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
        case "expire" if ask.kind == "question":
            return Settled(call_id, "expired", "Nobody answered the question in time.")
        case "expire":
            return Settled(call_id, "expired", "Nobody decided in time. The call did not run.")
