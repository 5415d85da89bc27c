"""What the model is told after a reply that broke the protocol, and when telling ends."""

from __future__ import annotations

from fsm_agent.run.delta import Replied
from fsm_agent.run.record import Run

from .verdict import Continue, Finish, Repair, Stop, Verdict

_FAULTS = {
    "missing_label": "it did not begin with a label",
    "multiple_labels": "it held more than one label",
    "tool_without_calls": "it had the tool label but called no tool",
    "label_with_tools": "it called tools under a label that does not allow calls",
    "truncated": "it was cut off by the length limit; be shorter",
    "empty_completion": "it was empty",
    "refusal": "the provider refused it",
    "content_filter": "the provider's content filter cut it",
}


def check(run: Run, allowed: tuple[str, ...], *, may_rescue: bool) -> Verdict:
    """Repair after a violation, until `limits.repairs` in a row; then Finish or Stop.

    With `may_rescue` a whole unlabelled text is kept as the answer rather than lost, marked as
    not completed.
    """
    reply = run.last
    if not isinstance(reply, Replied) or reply.violation is None:
        return Continue()
    if run.repairs <= run.limits.repairs:
        return Repair(_correction(reply, allowed))
    if may_rescue and reply.violation == "missing_label" and reply.text.strip():
        return Finish(reply.text.strip(), is_completed=False)
    return Stop(
        "repairs",
        f"{run.repairs} replies in a row broke the protocol; the last: {_fault(reply)}.",
    )


def _fault(reply: Replied) -> str:
    fault = _FAULTS.get(reply.violation or "", str(reply.violation))
    return f"{fault} ({reply.detail})" if reply.detail else fault


def _correction(reply: Replied, allowed: tuple[str, ...]) -> str:
    if not allowed:
        return f"Your last reply cannot be used: {_fault(reply)}. Answer again."
    names = ", ".join(f"``{label}``" for label in allowed)
    return (
        f"Your last reply cannot be used: {_fault(reply)}. "
        f"Begin your reply with exactly one of {names} alone on the first line, then the body."
    )
