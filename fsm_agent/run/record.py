"""A run as a value, and the one pure fold that makes it from its journal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, assert_never

import msgspec
from msgspec.structs import replace

from fsm_agent.errors import CorruptRecord

from .accounts import ceiling, settled_call, spend_reserve
from .content import (
    AssistantMessage,
    Call,
    File,
    FilesMessage,
    IllustratedMessage,
    Message,
    NoteMessage,
    SignedMessage,
    Source,
    ToolMessage,
    UserMessage,
)
from .delta import (
    OPERATOR_KINDS,
    Answered,
    AnyDelta,
    Asked,
    Assessed,
    Barred,
    Began,
    Carried,
    Charged,
    Commented,
    Consented,
    Created,
    Criticised,
    Cut,
    Delegated,
    Detailed,
    Enclosed,
    Entered,
    Failed,
    Filed,
    Finalising,
    Forked,
    Given,
    Hinted,
    Intended,
    Judged,
    ModelFailed,
    Nested,
    Noticed,
    Observed,
    OnBusy,
    Perceived,
    Planned,
    Proposed,
    Purpose,
    Raised,
    Replied,
    Reserved,
    Resumed,
    Revoked,
    Ruled,
    Settled,
    Signed,
    Stepped,
    StepStatus,
    Summarised,
    Versioned,
    Voted,
    Withheld,
)
from .files import in_words
from .fork import in_fork
from .limits import Limits
from .state import FINAL, State, Trigger, destination
from .step import Step
from .tally import SoFar

IMAGE_CHARS = 4_000  # an image costs about as much as so many characters, whatever its size

DRAFT_CHARS = 500  # of a reply that broke the protocol: enough for the model to see its mistake
KEPT_STEPS = 32  # how far back loop detection looks
KEPT_SCORES = 16  # of turns
MAX_SOURCES = 500  # of a run


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One transition: why the run moved, when, and what became true with it."""

    trigger: Trigger | None  # None: the first entry of a run
    at_ms: int  # by the store's clock
    deltas: tuple[AnyDelta, ...]


CallPhase = Literal["open", "waiting", "started", "settled"]


class PlanStep(msgspec.Struct, frozen=True, array_like=True):
    """One step of a run's plan."""

    text: str
    status: StepStatus | Literal["open"] = "open"


class OpenCall(msgspec.Struct, frozen=True):
    """A call of the current batch with everything that is known of it."""

    call: Call
    arguments: str  # the effective ones: the model's, or those a person put in their place
    starts: int = 0
    asks: int = 0  # how often a person was asked about it
    since_ms: int = 0  # when it was first started, as far as nobody settled that start
    intent: Intended | None = None
    ask: Asked | None = None
    verdict: Judged | None = None
    votes: tuple[Voted, ...] = ()  # of those whom `ask` needs
    ruling: Ruled | None = None
    is_counted: bool = False  # in the run's `so_far`
    result: Settled | None = None
    delegated: Delegated | None = None
    detail: Detailed | None = None
    files: tuple[File, ...] = ()  # that came with the result
    is_proposed: bool = False  # the model did not write it as a call: see Proposed
    origin: str = ""  # the run in which `intent` was started, where this one is a fork of it
    asked: str = ""  # what the tool itself asked in that run

    @property
    def phase(self) -> CallPhase:
        if self.result:
            return "settled"
        if self.ask:
            return "waiting"
        return "started" if self.intent else "open"

    @property
    def is_approved(self) -> bool:
        return bool(self.ruling and self.ruling.verb in ("approve", "edit", "rerun"))


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run's journal says, up to entry `seq`."""

    run_id: str
    seq: int = 0
    state: State = State.OBSERVE
    agent: str = ""
    task: str = ""
    limits: Limits = Limits()
    requester: str = ""
    fingerprint: str = ""
    created_ms: int = 0  # by the clock of whoever started it
    begun_ms: int = 0  # when a worker first took it up, by the store's clock, as all that follows
    updated_ms: int = 0
    waited_ms: int = 0  # nobody worked on it: parked, or its worker had died
    messages: tuple[Message, ...] = ()
    calls: tuple[OpenCall, ...] = ()
    step: int = 0  # seq of the reply that asked for `calls`
    attempts: int = 0
    reserved_tokens: int = 0  # of the attempt under way
    turns: int = 0
    spent_tokens: int = 0
    tool_calls: int = 0
    repairs: int = 0  # in a row
    errors: int = 0  # turns in a row in which every call failed
    failures: int = 0  # model calls in a row that brought no reply
    steps: tuple[Step, ...] = ()  # the last ones since a person spoke
    scores: tuple[int, ...] = ()  # of the last turns, in percent
    low: int = 0  # turns in a row that got nowhere
    barred: frozenset[str] = frozenset()  # digests of calls that are not made again
    criticised: int = 0  # the step (seq of its reply) that the critic saw last
    last: Replied | ModelFailed | None = None
    wake_ms: int = 0
    final_turns_left: int | None = None  # not None: finalising
    final_why: str = ""
    rulings: int = 0
    consents: tuple[Consented, ...] = ()  # that hold
    so_far: dict[str, SoFar] = {}  # by tool
    unread: tuple[File, ...] = ()  # files that came with the task, or with results
    signals: tuple[str, ...] = ()  # ids of words already taken from the mailbox
    takeovers: int = 0
    answer: Answered | None = None
    failure: Failed | None = None
    sources: tuple[Source, ...] = ()  # that results came with, each once
    spent_micros: int = 0  # money, in millionths
    reserved_micros: int = 0  # of the attempt under way
    purpose: Purpose = "turn"  # of the attempt under way
    asked_tokens: int = 0  # its request by plain estimate
    token_scale: float = 1.0  # tokens that providers count for each one of the estimate
    most_tokens: int = 0  # of a request, by plain estimate, after one was too long; 0: not known
    cut: Cut = Cut(1)
    summary: Summarised | None = None
    parent: str = ""  # the run that this one works for
    carried: Carried | None = None  # the conversation that it goes on with
    phase: str = ""  # of its capability; '' before the first
    plan: tuple[PlanStep, ...] = ()
    plans: int = 0  # how often one was made
    raised: tuple[str, ...] = ()  # questions beyond its own task
    origin: str = ""  # the run that this one is a fork of
    unsaid: str = ""  # words given with the fork, to be said once no call is open
    versioned: Versioned | None = None  # the code that worked on it last
    filed: Filed = Filed()

    @property
    def has_attempt(self) -> bool:
        return self.reserved_tokens > 0

    @property
    def has_calls(self) -> bool:
        return bool(self.calls)

    @property
    def has_unsettled_calls(self) -> bool:
        return any(call.result is None for call in self.calls)

    @property
    def has_answer(self) -> bool:
        return self.answer is not None

    @property
    def has_failure(self) -> bool:
        return self.failure is not None

    @property
    def is_over(self) -> bool:
        return self.state in FINAL

    @property
    def history(self) -> tuple[Message, ...]:
        """What was said before the run's own first message."""
        if self.carried is None:
            return ()
        if not self.carried.left_out:
            return self.carried.messages
        note = NoteMessage(f"[{self.carried.left_out} earlier messages are left out here.]")
        return (note, *self.carried.messages)

    @property
    def open_steps(self) -> tuple[int, ...]:
        """Indices of the steps that are still to be done."""
        return tuple(index for index, step in enumerate(self.plan) if step.status == "open")

    @property
    def open_asks(self) -> tuple[Asked, ...]:
        return tuple(call.ask for call in self.calls if call.ask)

    @property
    def children(self) -> tuple[str, ...]:
        """Child runs whose calls have no result yet."""
        return tuple(c.delegated.child for c in self.calls if c.delegated and not c.result)

    @property
    def granted_tokens(self) -> int:
        """What is set aside for child runs that have no result yet."""
        return sum(c.delegated.grant_tokens for c in self.calls if c.delegated and not c.result)

    @property
    def granted_micros(self) -> int:
        """The money that is set aside for them."""
        return sum(c.delegated.grant_micros for c in self.calls if c.delegated and not c.result)

    @property
    def closing(self) -> OpenCall | None:
        """The first call of the batch whose tool has ended the run, once no call is open."""
        for call in self.calls:
            if call.detail and call.detail.ends and call.result:
                return call
        return None

    def call(self, call_id: str) -> OpenCall:
        """The call with this id in the current batch. Raises KeyError."""
        for call in self.calls:
            if call.call.call_id == call_id:
                return call
        raise KeyError(call_id)


def apply(run: Run, record: Record) -> Run:
    """The run after a recorded transition. Raises CorruptRecord if no arrow leads there."""
    if (record.trigger is None) != (run.seq == 0):
        raise CorruptRecord(f"entry {run.seq + 1} is not where a run begins")
    state = destination(run.state, record.trigger) if record.trigger else run.state
    if state is None:
        raise CorruptRecord(
            f"entry {run.seq + 1} says {record.trigger!r}, which {run.state} does not allow"
        )
    return moved(taken(run, record), record, state)


def taken(run: Run, record: Record) -> Run:
    """The run with the record's deltas, still in the state it stood in: what guards look at."""
    calls = () if record.trigger is Trigger.CONTINUED else run.calls
    run = replace(run, seq=run.seq + 1, calls=calls)
    for delta in record.deltas:
        run = fold(run, delta, at_ms=record.at_ms)
    return run


def moved(run: Run, record: Record, state: State) -> Run:
    """The run in its new state."""
    return replace(run, state=state, updated_ms=record.at_ms)


def replay(run_id: str, records: Iterable[Record]) -> Run:
    """The run that its journal makes."""
    run = Run(run_id=run_id)
    for record in records:
        run = apply(run, record)
    return run


def fold(run: Run, delta: AnyDelta, *, at_ms: int = 0) -> Run:
    """The run after `delta`, recorded at `at_ms`. Live and replayed, all goes through here."""
    match delta:
        case Created():
            return _say(
                replace(
                    run,
                    agent=delta.agent,
                    task=delta.task,
                    limits=delta.limits,
                    requester=delta.requester,
                    fingerprint=delta.fingerprint,
                    created_ms=at_ms,
                    updated_ms=at_ms,
                ),
                UserMessage(delta.task),
            )
        case Nested():
            return replace(run, parent=delta.parent)
        case Carried():
            return replace(run, carried=delta)
        case Entered():
            # What was repeated in one phase is no loop in the next.
            run = replace(_afresh(run), phase=delta.phase)
            return _say(run, NoteMessage(delta.note)) if delta.note else run
        case Planned():
            return _fold_plan(run, delta)
        case Stepped():
            return _fold_step(run, delta)
        case Raised():
            known = dict.fromkeys((*run.raised, *delta.questions))
            return replace(run, raised=tuple(known))
        case Versioned():
            return replace(run, versioned=delta)
        case Forked():
            return _fold_fork(run, delta)
        case Filed():
            return replace(run, filed=delta)
        case Resumed():
            idle = max(0, delta.claimed_ms - run.updated_ms) if run.begun_ms else 0
            return replace(
                run,
                begun_ms=run.begun_ms or delta.claimed_ms,
                waited_ms=run.waited_ms + idle,
                takeovers=run.takeovers + delta.is_takeover,
            )
        case Observed():
            # What a person says is news: to look again at the same thing is no loop then.
            run = _say(_afresh(run), UserMessage(delta.text))
            return replace(run, signals=(*run.signals, delta.signal_id))
        case Given():
            return replace(run, unread=delta.files)
        case Perceived():
            return _fold_files(run, delta)
        case Noticed():
            run = replace(run, signals=(*run.signals, delta.signal_id))
            return _say(run, NoteMessage(f"[event from {delta.source}]\n{delta.text}"))
        case Began():
            return _fold_attempt(run, delta)
        case Charged():
            return replace(run, spent_micros=run.spent_micros + delta.micros)
        case Replied():
            return _fold_reply(run, delta)
        case Signed():
            return _fold_signature(run, delta)
        case Proposed():
            calls = (OpenCall(call, call.arguments, is_proposed=True) for call in delta.calls)
            return replace(run, calls=tuple(calls), step=run.seq)
        case ModelFailed():
            return replace(
                run,
                spent_tokens=run.spent_tokens + (run.reserved_tokens if delta.is_billed else 0),
                reserved_tokens=0,
                spent_micros=run.spent_micros + (run.reserved_micros if delta.is_billed else 0),
                reserved_micros=0,
                most_tokens=ceiling(run, delta),
                failures=run.failures + (delta.kind not in OPERATOR_KINDS),
                last=delta,
                wake_ms=delta.retry_at_ms,
            )
        case Asked():
            call = run.call(delta.call_id)
            return _with_call(run, replace(call, ask=delta, asks=call.asks + 1, votes=()))
        case Judged():
            return _with_call(run, replace(run.call(delta.call_id), verdict=delta))
        case Voted():
            call = run.call(delta.call_id)
            return _with_call(run, replace(call, votes=(*call.votes, delta)))
        case Commented():
            return run
        case Ruled():
            return _fold_ruling(run, delta)
        case Consented():
            return replace(run, consents=(*run.consents, delta))
        case Revoked():
            kept = (each for each in run.consents if each.consent_id != delta.consent_id)
            return replace(run, consents=tuple(kept))
        case Intended():
            run = _counted(run, delta.call_id)
            call = run.call(delta.call_id)
            run = replace(run, tool_calls=run.tool_calls + (call.starts == 0))
            since_ms = call.since_ms if call.intent else delta.at_ms
            return _with_call(
                run,
                replace(
                    call,
                    intent=delta,
                    starts=delta.attempt,
                    since_ms=since_ms,
                    origin="",
                    asked="",
                ),
            )
        case Withheld():
            return _with_call(run, replace(run.call(delta.call_id), intent=None))
        case Delegated():
            return _with_call(run, replace(run.call(delta.call_id), delegated=delta))
        case Detailed():
            return _fold_detail(run, delta)
        case Enclosed():
            return _with_call(run, replace(run.call(delta.call_id), files=delta.files))
        case Settled():
            return _fold_result(run, delta)
        case Hinted():
            return _say(run, NoteMessage(delta.text))
        case Finalising():
            return replace(run, final_turns_left=delta.turns, final_why=delta.why)
        case Answered():
            return replace(run, answer=delta)
        case Failed():
            return replace(spend_reserve(run), failure=delta)
        case Assessed():
            scores = (*run.scores[1 - KEPT_SCORES :], delta.score)
            return replace(run, scores=scores, low=delta.low)
        case Barred():
            return replace(run, barred=run.barred.union(delta.calls))
        case Criticised():
            return replace(settled_call(run, delta.usage), criticised=run.step)
        case Cut():
            return replace(run, cut=delta)
        case Summarised():
            return replace(settled_call(run, delta.usage), summary=delta)
        case _:
            assert_never(delta)  # a kind without a case fails the type check, not the run


def _fold_files(run: Run, perceived: Perceived) -> Run:
    if perceived.usage:
        run = settled_call(run, perceived.usage)
    run = replace(run, unread=())
    text = "\n\n".join(map(in_words, perceived.parts))
    return _say(run, FilesMessage(text, perceived.parts)) if perceived.parts else run


def _fold_attempt(run: Run, began: Began) -> Run:
    run = replace(
        spend_reserve(run),
        attempts=began.attempt,
        reserved_tokens=began.reserve_tokens,
        wake_ms=0,
        purpose="turn",
        asked_tokens=0,
    )
    if not isinstance(began, Reserved):
        return run
    return replace(
        run,
        reserved_micros=began.micros,
        purpose=began.purpose,
        asked_tokens=began.prompt_tokens,
    )


def _afresh(run: Run) -> Run:
    """The run with nothing that its next turns would be held against."""
    return replace(run, steps=(), scores=(), low=0, barred=frozenset())


def _say(run: Run, message: Message) -> Run:
    return replace(run, messages=(*run.messages, message))


def message_size(message: Message) -> int:
    """Characters of a message that a model is billed for, roughly."""
    size = len(message.text) + 16
    if isinstance(message, IllustratedMessage):
        size += IMAGE_CHARS * len(message.images)
    elif isinstance(message, FilesMessage):
        size += IMAGE_CHARS * len(message.pictures)
    if isinstance(message, AssistantMessage):
        size += sum(len(call.name) + len(call.arguments) + 32 for call in message.calls)
    return size


def _fold_reply(run: Run, reply: Replied) -> Run:
    is_good = reply.violation is None
    finalising = run.final_turns_left
    run = replace(
        settled_call(run, reply.usage),
        turns=run.turns + 1,
        repairs=0 if is_good else run.repairs + 1,
        errors=0 if is_good and not reply.calls else run.errors,
        failures=0,
        steps=(*run.steps[1 - KEPT_STEPS :], Step(reply)),
        last=reply,
        calls=tuple(OpenCall(call, call.arguments) for call in reply.calls) if is_good else (),
        step=run.seq,
        final_turns_left=None if finalising is None else max(0, finalising - 1),
    )
    if is_good:
        return _say(run, AssistantMessage(reply.label, reply.text, reply.calls, reply.reasoning))
    draft = draft_of(reply)
    return _say(run, AssistantMessage(reply.label, draft)) if draft else run


def _fold_plan(run: Run, planned: Planned) -> Run:
    new = tuple(map(PlanStep, planned.steps))
    if planned.is_more:
        return replace(run, plan=(*run.plan, *new))
    kept = (step for step in run.plan if step.status != "open")
    return replace(run, plan=(*kept, *new), plans=run.plans + 1)


def _fold_step(run: Run, stepped: Stepped) -> Run:
    if not 0 <= stepped.step < len(run.plan):
        raise CorruptRecord(f"step {stepped.step + 1} of a plan that has {len(run.plan)}")
    plan = list(run.plan)
    plan[stepped.step] = replace(plan[stepped.step], status=stepped.status)
    return replace(run, plan=tuple(plan))


def _fold_signature(run: Run, signed: Signed) -> Run:
    """It belongs to the reply that was said last."""
    *before, last = run.messages
    if not isinstance(last, AssistantMessage):
        return run
    with_it = SignedMessage(last.label, last.text, last.calls, last.reasoning, signed.replay)
    return replace(run, messages=(*before, with_it))


def draft_of(reply: Replied) -> str:
    """What stays in the conversation of a reply that broke the protocol."""
    if len(reply.text) <= DRAFT_CHARS:
        return reply.text
    return f"{reply.text[:DRAFT_CHARS]} […{len(reply.text) - DRAFT_CHARS} characters cut]"


def _fold_ruling(run: Run, ruling: Ruled) -> Run:
    call = run.call(ruling.call_id)
    arguments = ruling.arguments if ruling.arguments is not None else call.arguments
    # After 'it did not happen, run it' the intent in doubt is answered for: a new start is due.
    intent = None if ruling.verb == "rerun" else call.intent
    call = replace(call, ask=None, ruling=ruling, arguments=arguments, intent=intent)
    run = _with_call(replace(run, rulings=run.rulings + 1), call)
    return _counted(run, ruling.call_id) if call.is_approved else run


def _counted(run: Run, call_id: str) -> Run:
    """The run with the call in `so_far`, once: from when it may run, not from when it has run."""
    call = run.call(call_id)
    if call.is_counted:
        return run
    name = call.call.name
    before = run.so_far.get(name, SoFar())
    after = before.plus(call.verdict.numbers if call.verdict else {})
    run = replace(run, so_far=run.so_far | {name: after})
    return _with_call(run, replace(call, is_counted=True))


def _fold_detail(run: Run, detail: Detailed) -> Run:
    run = _with_call(run, replace(run.call(detail.call_id), detail=detail))
    return replace(
        run,
        spent_tokens=run.spent_tokens + detail.spent_tokens,
        spent_micros=run.spent_micros + detail.spent_micros,
    )


def _fold_result(run: Run, result: Settled) -> Run:
    run = _with_call(run, replace(run.call(result.call_id), result=result, ask=None))
    if run.has_unsettled_calls:
        return run
    # Results and their sources are those of the calls in order, whatever the order of arrival: a
    # model that cites [1] means the same after a crash.
    sources = list(run.sources)
    for call in run.calls:
        run = _say(run, _told(call))
        sources += call.detail.sources if call.detail else ()
    run = replace(
        run,
        sources=tuple(dict.fromkeys(sources))[:MAX_SOURCES],
        unread=(*run.unread, *(file for call in run.calls for file in call.files)),
    )
    if run.unsaid:
        run = replace(_say(run, UserMessage(run.unsaid)), unsaid="")
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


def _fold_fork(run: Run, fork: Forked) -> Run:
    """What a run was told and has not done yet counts for that run, and not for a fork of it."""
    # In a thread it waits for its turn: the origin may be the active one, and is only read.
    on_busy: OnBusy = "queue" if run.filed.thread else run.filed.on_busy
    run = replace(
        run,
        calls=tuple(in_fork(call, fork) for call in run.calls),
        consents=(),
        filed=replace(run.filed, on_busy=on_busy),
        parent="",
        origin=fork.origin,
        wake_ms=0,
    )
    if not fork.say:
        return run
    if run.has_unsettled_calls:
        return replace(run, unsaid=fork.say)
    return _say(run, UserMessage(fork.say))


def _with_call(run: Run, changed: OpenCall) -> Run:
    return replace(
        run,
        calls=tuple(
            changed if call.call.call_id == changed.call.call_id else call for call in run.calls
        ),
    )
