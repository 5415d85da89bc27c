"""How a run is ended where it stands: every call gets a result, so that its history is whole."""

from __future__ import annotations

from fsm_agent.run.delta import AnyDelta, Failed, Settled
from fsm_agent.run.record import OpenCall, Run
from fsm_agent.run.state import Trigger

from .outcome import Move


def ending(run: Run, failed: Failed, how: str) -> Move:
    """The arrow that ends the run for the reason of `failed`; `how` completes 'The run …'."""
    deltas: list[AnyDelta] = [_cut_off(call, how) for call in run.calls if call.phase != "settled"]
    return Move(Trigger.CANCELLED, (*deltas, failed))


def _cut_off(call: OpenCall, how: str) -> Settled:
    call_id = call.call.call_id
    if call.ask and call.ask.kind == "question":
        return Settled(call_id, "cancelled", f"The run {how} before the question was answered.")
    if call.intent and call.intent.effect not in ("read", "idempotent"):
        text = f"The run {how} while this call was under way. It may have taken effect."
        return Settled(call_id, "in_doubt", text)
    return Settled(call_id, "cancelled", f"The run {how} before this call had a result.")
