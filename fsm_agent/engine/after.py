"""What a call that has ended leaves on record, and what a whole batch adds up to."""

from __future__ import annotations

from collections import defaultdict

from fsm_agent.run.content import File, ResultStatus
from fsm_agent.run.delta import AnyDelta, Detailed, Enclosed, Settled
from fsm_agent.run.record import OpenCall, Run
from fsm_agent.tools.dispatch import Result
from fsm_agent.tools.registry import MIN_OUTPUT_CHARS
from fsm_agent.tools.results import Shown, shortened

FAILURES: tuple[ResultStatus, ...] = (
    "error", "timeout", "denied", "expired", "in_doubt", "cancelled",
)  # fmt: skip
MAX_REASON_CHARS = 160


def facts_of(
    call_id: str, result: Result, blob: str, files: tuple[File, ...] = ()
) -> tuple[AnyDelta, ...]:
    """The result as it goes on record, with what there is to it besides its text."""
    detail = Detailed(
        call_id, result.ends, result.arguments, result.sources, result.spent_tokens,
        result.raised, result.spent_micros,
    )  # fmt: skip
    settled = Settled(call_id, result.status, result.text, result.took_ms, blob)
    details = () if detail == Detailed(call_id) else (detail,)
    enclosed = (Enclosed(call_id, files),) if files else ()
    return (*details, *enclosed, settled)


def fitted(run: Run, call_id: str, result: Result, batch_chars: int) -> Shown:
    """The result's text as far as the batch's limit has room for it, and the whole if it is cut.

    Half of the limit is shared out evenly beforehand, so that no order of arrival leaves a call
    without room; the other half goes to whoever comes first. An answer of the run is not cut.
    """
    text = result.text
    if result.ends:
        return Shown(text, result.full)
    share = max(batch_chars // (2 * len(run.calls)), MIN_OUTPUT_CHARS)
    others = [call for call in run.calls if call.call.call_id != call_id]
    taken = sum(len(call.result.text) if call.result else share for call in others)
    room = max(batch_chars - taken, share)
    if len(text) <= room:
        return Shown(text, result.full)
    return Shown(shortened(text, room), result.full or text.encode())


def report_of(run: Run) -> str:
    """The failures of a batch in one text for the model, by status; '' unless there are several."""
    failed: dict[ResultStatus, list[str]] = defaultdict(list)
    for call in run.calls:
        if call.result and call.result.status in FAILURES:
            failed[call.result.status].append(_told(call))
    count = sum(map(len, failed.values()))
    if count < 2:
        return ""
    lines = [f"{count} of the {len(run.calls)} calls have failed:"]
    for status in FAILURES:
        if status in failed:
            lines += [f"{status.replace('_', ' ')}: {'; '.join(failed[status])}"]
    return "\n".join(lines)


def _told(call: OpenCall) -> str:
    assert call.result
    first = call.result.text.strip().split("\n", 1)[0]
    why = first if len(first) <= MAX_REASON_CHARS else first[: MAX_REASON_CHARS - 1] + "…"
    return f"{call.call.name} ({call.call.call_id}): {why}"
