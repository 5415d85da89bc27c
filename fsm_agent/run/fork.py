"""What a fork makes of the calls that its origin has not brought to a result."""

from __future__ import annotations

from msgspec.structs import replace

from .delta import Forked, Judged
from .value import OpenCall


def in_fork(call: OpenCall, fork: Forked) -> OpenCall:
    """The call as the fork finds it: nothing that was asked, decided or started for the origin
    lets it start here, unless starting it twice is harmless."""
    if call.result:
        return call
    keeps_intent = call.intent is not None and not _is_harmless(call)
    is_pause = bool(call.intent and call.ask and call.ask.kind == "question")
    return replace(
        call,
        intent=call.intent if keeps_intent else None,
        origin=(call.origin or fork.origin) if keeps_intent else "",
        asked=call.ask.reason if is_pause and call.ask else call.asked,
        ask=None,
        votes=(),
        ruling=None,
        verdict=_verdict(call, fork),
        delegated=None,
    )


def _is_harmless(call: OpenCall) -> bool:
    """Whether the call may simply start again: a child run may have done anything."""
    is_paused = bool(call.asked or (call.ask and call.ask.kind == "question"))
    is_repeatable = bool(call.intent and call.intent.effect in ("read", "idempotent"))
    return is_repeatable and not call.delegated and not is_paused


def _verdict(call: OpenCall, fork: Forked) -> Judged | None:
    """Whether a person has to be asked: also where one has agreed, as it was to another effect."""
    if call.is_approved and call.ruling:
        known = call.verdict or Judged(call.call.call_id, asks=True)
        why = f"{call.ruling.by} let it run in {fork.origin}, which does not count for a fork of it"
        return replace(known, asks=True, reason=why, consent="")
    if call.verdict and call.verdict.consent:
        return None  # the rule is asked again
    return call.verdict
