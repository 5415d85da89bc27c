"""A run as a value: everything that its journal says."""

from __future__ import annotations

from typing import Literal

import msgspec

from .content import Call, File, Message, NoteMessage, Source
from .delta import (
    Answered,
    AnyDelta,
    Asked,
    Carried,
    Consented,
    Cut,
    Delegated,
    Detailed,
    Failed,
    Filed,
    Intended,
    Judged,
    ModelFailed,
    Purpose,
    Replied,
    Ruled,
    Settled,
    StepStatus,
    Summarised,
    Versioned,
    Voted,
)
from .limits import Limits
from .state import FINAL, State, Trigger
from .step import Step
from .tally import SoFar


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
