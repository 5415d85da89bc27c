"""What becomes of the calls of a batch: decisions, counts, results, and in a fork."""

from __future__ import annotations

from msgspec.structs import replace

from .content import Message, NoteMessage, ToolMessage, UserMessage
from .conversation import say
from .delta import Detailed, Forked, OnBusy, Ruled, Settled
from .fork import in_fork
from .step import Step
from .tally import SoFar
from .value import OpenCall, Run

MAX_SOURCES = 500  # of a run


def with_call(run: Run, changed: OpenCall) -> Run:
    return replace(
        run,
        calls=tuple(
            changed if call.call.call_id == changed.call.call_id else call for call in run.calls
        ),
    )


def fold_ruling(run: Run, ruling: Ruled) -> Run:
    call = run.call(ruling.call_id)
    arguments = ruling.arguments if ruling.arguments is not None else call.arguments
    # After 'it did not happen, run it' the intent in doubt is answered for: a new start is due.
    intent = None if ruling.verb == "rerun" else call.intent
    call = replace(call, ask=None, ruling=ruling, arguments=arguments, intent=intent)
    run = with_call(replace(run, rulings=run.rulings + 1), call)
    return counted(run, ruling.call_id) if call.is_approved else run


def counted(run: Run, call_id: str) -> Run:
    """The run with the call in `so_far`, once: from when it may run, not from when it has run."""
    call = run.call(call_id)
    if call.is_counted:
        return run
    name = call.call.name
    before = run.so_far.get(name, SoFar())
    after = before.plus(call.verdict.numbers if call.verdict else {})
    run = replace(run, so_far=run.so_far | {name: after})
    return with_call(run, replace(call, is_counted=True))


def fold_detail(run: Run, detail: Detailed) -> Run:
    run = with_call(run, replace(run.call(detail.call_id), detail=detail))
    return replace(
        run,
        spent_tokens=run.spent_tokens + detail.spent_tokens,
        spent_micros=run.spent_micros + detail.spent_micros,
    )


def fold_result(run: Run, result: Settled) -> Run:
    run = with_call(run, replace(run.call(result.call_id), result=result, ask=None))
    if run.has_unsettled_calls:
        return run
    # Results and their sources are those of the calls in order, whatever the order of arrival: a
    # model that cites [1] means the same after a crash.
    sources = list(run.sources)
    for call in run.calls:
        run = say(run, _told(call))
        sources += call.detail.sources if call.detail else ()
    run = replace(
        run,
        sources=tuple(dict.fromkeys(sources))[:MAX_SOURCES],
        unread=(*run.unread, *(file for call in run.calls for file in call.files)),
    )
    if run.unsaid:
        run = replace(say(run, UserMessage(run.unsaid)), unsaid="")
    failed = all(c.result and c.result.status in ("error", "timeout") for c in run.calls)
    return replace(_with_results(run), errors=run.errors + 1 if failed else 0)


def _with_results(run: Run) -> Run:
    """The results belong to the step that asked for them, if nobody spoke in between."""
    results = tuple(call.result for call in run.calls if call.result)
    files = tuple((call.call.call_id, file.digest) for call in run.calls for file in call.files)
    if not run.steps or run.steps[-1].reply is not run.last:
        return run
    return replace(run, steps=(*run.steps[:-1], Step(run.steps[-1].reply, results, files)))


def _told(call: OpenCall) -> Message:
    """A result as the model sees it. One that it did not call for answers no call of its own."""
    assert call.result
    name, text = call.call.name, call.result.text
    if call.is_proposed:
        return NoteMessage(f"Result of {name} {call.arguments}:\n{text}")
    return ToolMessage(call.call.call_id, name, text, call.result.status)


def fold_fork(run: Run, fork: Forked) -> Run:
    """What a run was told and has not done yet counts for that run, and not for a fork of it."""
    # In a thread it waits for its turn: the origin may be the active one, and is only read.
    on_busy: OnBusy = "queue" if run.filed.thread else run.filed.on_busy
    run = replace(
        run,
        calls=tuple(in_fork(call, fork) for call in run.calls),
        consents=(),
        filed=replace(run.filed, on_busy=on_busy),
        # Who makes a run go another way has started it: it is they who may not approve its calls.
        requester=fork.by or run.requester,
        parent="",
        origin=fork.origin,
        wake_ms=0,
    )
    if not fork.say:
        return run
    if run.has_unsettled_calls:
        return replace(run, unsaid=fork.say)
    return say(run, UserMessage(fork.say))
