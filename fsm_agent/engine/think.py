"""THINK: ask the model once, and read what kind of step its reply is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import msgspec

from fsm_agent.capabilities.agent import Agent, Offer
from fsm_agent.capabilities.phase import Wanted
from fsm_agent.context.summary import is_due, transcript
from fsm_agent.context.tokens import tokens_of
from fsm_agent.errors import MissingSetting, ProviderError, UsageError
from fsm_agent.llm.model import Piece, Reply, RequestedCall, StepRequest
from fsm_agent.run.content import Call, Usage, canonical_json, clean_text
from fsm_agent.run.delta import (
    OPERATOR_KINDS,
    Answered,
    AnyDelta,
    Charged,
    Failed,
    FailureReason,
    ModelFailed,
    Proposed,
    Replied,
    Reserved,
    Signed,
    Summarised,
)
from fsm_agent.run.event import LiveEvent
from fsm_agent.run.record import Run, fold
from fsm_agent.run.signal import Said
from fsm_agent.run.state import Trigger

from .consult import Question, consult
from .costs import charge, check_prices, has_room, price_for, reserve_of, sane
from .deps import Deps
from .files import illustrated
from .host import HostFailed, ask_host
from .outcome import Move, Outcome, Park
from .session import Session

MAX_RETRY_AFTER_S = 86_400.0  # a provider that asks for more is not waited for longer
MAX_REPLY_BYTES = 300_000  # of a reply's text: an entry holds it twice at the most
MAX_CALLS = 128  # of one reply
MAX_ARGUMENT_BYTES = 100_000  # of one call
MAX_NAME_BYTES = 256
MAX_OVERFLOWS = 6  # requests in a row that were too long, each smaller than the one before


async def think(session: Session, agent: Agent, deps: Deps) -> Outcome:
    """One model call: its reserve is on record before it goes out, its reply is the next entry.

    Raises Interrupted if a cancel request came, and ProviderError where only an operator can
    help (a wrong key, no credit, an unknown model) or an outage goes on for too long: the run is
    parked then, with nothing lost. Calls that are due by the plan are made without asking the
    model. Raises HostFailed where a hook does.
    """
    if due := agent.due_calls(session.run):
        return Move(Trigger.CALLS, (_proposed(due, session.run.seq + 1),))
    # Who accepts a change wants it on record and a try at once, not the end of a back-off.
    wait_ms = 0 if session.has_acceptance else session.run.wake_ms - session.now_ms()
    if wait_ms > deps.settings.park_after_s * 1000:
        return Park("sleeping", session.run.wake_ms)
    if wait_ms > 0:
        await session.flush()
        with session.interruptible():
            await deps.clock.sleep(wait_ms / 1000)
    offer = agent.offer(session.run)
    check_prices(session.run, agent, deps.model)
    facts = await _fit(session, agent, deps)
    # As the run will be: what is asked then is what estimates learn from.
    run = reduce(fold, facts, session.run)
    reserved = reserve_of(run, session.window, agent, deps.model)
    if not has_room(run, reserved.reserve_tokens, reserved.micros):
        return Move(Trigger.FAILED, (*facts, _no_budget(run, reserved)))
    session.stage(Trigger.BEGAN, *facts, reserved)
    await session.flush()
    request = await _request(session, agent, offer, deps)
    try:
        with session.interruptible():
            reply = await deps.model.step(request, _teller(session.run, deps))
    except ProviderError as error:
        return await _after_failure(session, deps, error)
    except MissingSetting as error:
        failed = ModelFailed("auth", clean_text(str(error)), is_billed=False)
        await _park(session, failed, None)
        raise
    if session.has_new_mail:
        await session.read_mail()
    return await _after_reply(session, agent, offer, reply, deps)


async def _fit(session: Session, agent: Agent, deps: Deps) -> tuple[AnyDelta, ...]:
    """Cut the window where it has become too long; with a summary, have the cut part summed up.

    Returns the facts that go with the next entry.
    """
    run, summary = session.run, agent.context.summary
    cut = session.window.plan(run)
    if summary is None or not is_due(run, cut):
        return () if cut is run.cut else (cut,)
    prompt_room = agent.context_tokens - summary.max_tokens
    question = Question(
        "summary",
        summary.model,
        summary.instructions,
        transcript(run, cut, int(prompt_room / run.token_scale)),
        summary.max_tokens,
    )
    consulted = await consult(session, agent, deps, question, cut)
    text = consulted.text[: 4 * summary.max_tokens]
    earlier = run.summary.text if run.summary else ""
    summed = Summarised(text or earlier, cut.start, consulted.usage, consulted.problem)
    facts: tuple[AnyDelta, ...] = (summed, *consulted.charged)
    return facts if session.run.cut is cut else (cut, *facts)


def _no_budget(run: Run, reserved: Reserved) -> Failed:
    why: FailureReason = "money"
    if run.spent_tokens + run.reserved_tokens + reserved.reserve_tokens > run.limits.tokens:
        why = "tokens"
    if why == "tokens":
        return Failed(
            why,
            f"The next model call may cost {reserved.reserve_tokens} tokens, and "
            f"{run.spent_tokens + run.reserved_tokens} of "
            f"{run.limits.tokens} are spent. Start a run with a higher limit.",
        )
    spent = (run.spent_micros + run.reserved_micros) / 1_000_000
    return Failed(
        why,
        f"The next model call may cost {reserved.micros / 1_000_000:.4g}, and {spent:.4g} of "
        f"{run.limits.money:g} is spent. Start a run with a higher limit.",
    )


async def _request(session: Session, agent: Agent, offer: Offer, deps: Deps) -> StepRequest:
    run = session.run
    return StepRequest(
        instructions=offer.instructions,
        messages=(*run.history, *await illustrated(session, deps, session.window.view(run))),
        tools=offer.tools,
        protocol=offer.protocol,
        model=agent.model,
        max_tokens=agent.max_tokens,
        temperature=agent.temperature,
    )


def _teller(run: Run, deps: Deps) -> Callable[[Piece], None]:
    run_id, attempt = run.run_id, run.attempts

    def tell(piece: Piece) -> None:
        deps.emit(LiveEvent(run_id, piece.channel, piece.text, attempt))

    return tell


async def _after_failure(session: Session, deps: Deps, error: ProviderError) -> Outcome:
    run, now_ms = session.run, session.now_ms()
    is_first = run.turns == 0 and run.failures == 0
    needs_operator = error.kind in OPERATOR_KINDS or (error.kind == "unreachable" and is_first)
    is_outage = error.is_retryable and run.failures + 1 >= run.limits.failures
    failed = ModelFailed(
        kind=error.kind,
        message=clean_text(str(error)),
        # What was refused or never arrived costs nothing; a broken stream may have been billed.
        is_billed=error.status is None and error.kind != "unreachable",
        # Parked runs have no time of their own: whoever resumes one wants a try at once.
        retry_at_ms=0
        if needs_operator or is_outage or not error.is_retryable
        else now_ms + _back_off_ms(run, deps, error),
    )
    if needs_operator:
        await _park(session, failed, None)
        raise error
    if is_outage:
        await _park(session, failed, now_ms + int(deps.settings.outage_retry_s * 1000))
        raise error
    if error.is_retryable or (error.kind == "context_length" and _may_shrink(session)):
        return Move(Trigger.REPLIED, (failed,))
    return Move(Trigger.FAILED, (failed, Failed("model", failed.message)))


def _may_shrink(session: Session) -> bool:
    """Whether a request that was too long can be made again with less in it."""
    run, window = session.run, session.window
    if run.failures >= MAX_OVERFLOWS:
        return False
    refused = fold(run, ModelFailed("context_length", "", is_billed=False))
    return window.may_shrink(run, refused)


async def _park(session: Session, failed: ModelFailed, wake_ms: int | None) -> None:
    """Give the run back as it is: an outage, or a wrong key, must not end a long run."""
    session.stage(Trigger.REPLIED, failed)
    await session.flush(Park("sleeping", wake_ms))


def _back_off_ms(run: Run, deps: Deps, error: ProviderError) -> int:
    if error.retry_after_s is not None:
        return int(min(max(error.retry_after_s, 0.0), MAX_RETRY_AFTER_S) * 1000)
    settings = deps.settings
    wait_s = min(settings.retry_base_s * 2**run.failures, settings.retry_cap_s)
    # Half to whole: workers that failed together do not come back together.
    return int(wait_s * (0.5 + deps.jitter() / 2) * 1000)


async def _after_reply(
    session: Session, agent: Agent, offer: Offer, reply: Reply, deps: Deps
) -> Outcome:
    run = session.run
    violation: str | None = reply.violation
    if violation == "invalid_arguments":
        violation = None  # the faulty call gets an error result, the others run
    if reply.calls and run.final_turns_left is not None:
        violation = violation or "label_with_tools"
    excess = _excess(reply)
    if excess:
        violation = "too_long"
    calls = () if violation else _calls(reply.calls, run.seq + 1, agent, offer)
    usage = _usage(run, agent, reply)
    charged = charge(price_for(agent, deps.model), usage, reply.cached_tokens)
    replied = Replied(
        label=reply.label,
        text=_cut(reply.text, MAX_REPLY_BYTES),
        usage=usage,
        calls=calls,
        finish_reason=clean_text(reply.finish_reason) if reply.finish_reason else None,
        violation=violation,
        detail=excess or clean_text(reply.detail),
        reasoning=_cut(reply.thinking, MAX_REPLY_BYTES // 3),
    )
    if violation:
        return Move(Trigger.REPLIED, (replied, *charged))
    if calls:
        signed = (Signed(clean_text(reply.replay)),) if reply.replay else ()
        return Move(Trigger.CALLS, (replied, *signed, *charged))
    if reader := offer.phase.reads.get(reply.label or ""):
        return _as_calls(run, replied, charged, reader(run, replied.text))
    if not offer.is_end(reply.label) or _has_words(session):
        return Move(Trigger.REPLIED, (replied, *charged))
    try:
        violation, detail = await _objection(run, agent, replied.text)
    except HostFailed:
        session.stage(Trigger.REPLIED, replied, *charged)  # what the model said is kept
        raise
    if violation:
        deps.emit(LiveEvent(run.run_id, "retracted", replied.text, run.attempts))
        void = msgspec.structs.replace(replied, violation=violation, detail=detail)
        return Move(Trigger.REPLIED, (void, *charged))
    answered = Answered(clean_text(agent.finished(run, replied.text)), why=run.final_why)
    if answered.text.startswith(replied.text) and answered.text != replied.text:
        rest = answered.text[len(replied.text) :]
        deps.emit(LiveEvent(run.run_id, "body", rest, run.attempts))
    return Move(Trigger.ANSWERED, (replied, *charged, answered))


def _as_calls(
    run: Run, replied: Replied, charged: tuple[Charged, ...], read: Sequence[Wanted] | str
) -> Move:
    """The arrow of a reply whose text stands for calls, if it could be read as some."""
    if isinstance(read, str):
        void = msgspec.structs.replace(replied, violation="unreadable", detail=clean_text(read))
        return Move(Trigger.REPLIED, (void, *charged))
    return Move(Trigger.CALLS, (replied, *charged, _proposed(read, run.seq + 1)))


def _proposed(wanted: Sequence[Wanted], seq: int) -> Proposed:
    calls = (
        Call(f"c{seq}-{index}", each.tool, canonical_json(each.arguments))
        for index, each in enumerate(wanted)
    )
    return Proposed(tuple(calls))


async def _objection(run: Run, agent: Agent, answer: str) -> tuple[str, str]:
    """What keeps an answer from standing: the agent's own checks, then the host's."""
    violation, detail = agent.objection_to(run, answer)
    hooks = agent.hooks
    if violation or hooks.validate_terminal is None:
        return violation, clean_text(detail)
    value = agent.value_of(answer)
    said = await ask_host(hooks.validate_terminal, "validate_terminal", hooks.timeout_s, run, value)
    return ("refused_answer", said) if said else ("", "")


def _has_words(session: Session) -> bool:
    """Whether somebody said something that this reply cannot know of: the run goes on with it."""
    return any(isinstance(signal, Said) for signal in session.signals.values())


def _excess(reply: Reply) -> str:
    """What of the reply is too much to keep, in words for the model; '' for nothing."""
    if len(reply.calls) > MAX_CALLS:
        return f"The reply has {len(reply.calls)} tool calls. Make at most {MAX_CALLS} at once."
    text_bytes = len(reply.text.encode("utf-8", "replace"))
    if text_bytes > MAX_REPLY_BYTES:
        return f"The text has {text_bytes:,} bytes, {MAX_REPLY_BYTES:,} are possible. Shorten it."
    return ""


def _cut(text: str, most_bytes: int) -> str:
    """`text`, cleaned, and cut where it would be too much for an entry."""
    text = clean_text(text)
    if len(text) * 4 <= most_bytes or len(raw := text.encode()) <= most_bytes:
        return text
    return raw[:most_bytes].decode(errors="ignore") + " [… cut]"


def _calls(
    requested: tuple[RequestedCall, ...], seq: int, agent: Agent, offer: Offer
) -> tuple[Call, ...]:
    """Our calls: their ids come from the journal position, so a provider's repeats do no harm."""
    return tuple(
        _call(call, f"c{seq}-{index}", agent, offer) for index, call in enumerate(requested)
    )


def _call(requested: RequestedCall, call_id: str, agent: Agent, offer: Offer) -> Call:
    name = _cut(requested.name, MAX_NAME_BYTES)
    raw = _cut(requested.raw_arguments, MAX_ARGUMENT_BYTES)
    if name in agent.registry and not offer.has_tool(name):
        offered = ", ".join(spec.name for spec in offer.tools) or "none"
        problem = f"{name} is not offered now. Offered: {offered}"
        return Call(call_id, name, raw, problem)
    if requested.arguments is None:
        problem = requested.problem or "the arguments are not a JSON object"
        return Call(call_id, name, raw, clean_text(problem))
    if len(requested.raw_arguments) > MAX_ARGUMENT_BYTES:
        problem = f"its arguments are too long; at most {MAX_ARGUMENT_BYTES:,} characters are kept"
        return Call(call_id, name, _cut(raw, 1_000), problem)
    try:
        return Call(call_id, name, canonical_json(requested.arguments))
    except UsageError as error:
        return Call(call_id, name, raw, clean_text(str(error)))


def _usage(run: Run, agent: Agent, reply: Reply) -> Usage:
    """As billed; where the server counted nothing at all, an estimate that is marked as one."""
    if reply.usage is None or not reply.usage.total_tokens:
        return _estimate(run, agent, reply)
    return sane(reply.usage)


def _estimate(run: Run, agent: Agent, reply: Reply) -> Usage:
    said = len(reply.text) + len(reply.thinking)
    said += sum(len(call.raw_arguments) for call in reply.calls)
    # The whole request: instructions, tools and protocol are billed as the messages are.
    asked_tokens = max(0, run.reserved_tokens - agent.reply_tokens)
    return Usage(asked_tokens, tokens_of(said), is_estimate=True)
