"""The facts that entries are made of: a closed union, each with its tag on disk.

Renaming a class leaves its tag alone; a new field goes last and has a default.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .content import Call, EffectClass, File, Message, Part, ResultStatus, Source, Usage
from .limits import Limits

AskKind = Literal["approval", "question", "in_doubt"]
Verb = Literal["approve", "reject", "edit", "answer", "happened", "rerun", "fail", "expire"]
OnExpiry = Literal["reject", "fail_run", "approve"]
OnBusy = Literal["reject", "queue", "interrupt"]
HintKind = Literal["repair", "warning", "final", "failure", "host"]
StepStatus = Literal["done", "partial", "failed", "dropped"]
Purpose = Literal["turn", "summary", "critic", "transcript"]
CriticVerdict = Literal["right", "more", "wrong", "done", "unknown"]
FailureReason = Literal[
    "model", "turns", "tokens", "tool_calls", "wall_time", "errors", "repairs", "loop", "poison",
    "cancelled", "tool_missing", "host", "expired", "rejected", "money", "progress",
    "critic",
]  # fmt: skip

# Failures that only an operator can mend: the run waits for them instead of counting them.
OPERATOR_KINDS = frozenset({"auth", "quota", "not_found"})


class Delta(msgspec.Struct, frozen=True, kw_only=False, array_like=True):
    """One durable fact."""


class Created(Delta, frozen=True, tag="created"):
    """The run exists. Always the only delta of the first entry."""

    agent: str
    task: str
    limits: Limits
    requester: str = ""
    fingerprint: str = ""  # of the agent's tools and protocol, as they were at the start


class Nested(Delta, frozen=True, tag="nested"):
    """The run works for a call of another run. In its first entry, after Created."""

    parent: str  # run id
    call_id: str


class Carried(Delta, frozen=True, tag="carried"):
    """The run goes on with a conversation: what was said before it. In its first entry."""

    before: str  # run id of the run whose conversation it is
    messages: tuple[Message, ...]
    left_out: int = 0  # older messages, for which there was no room


class Entered(Delta, frozen=True, tag="entered"):
    """The run is in this phase of its capability from here on."""

    phase: str
    note: str = ""  # what the model is told of it


class Planned(Delta, frozen=True, tag="planned"):
    """What is to be done, in order: in place of the steps that are still open, or after them."""

    steps: tuple[str, ...]
    is_more: bool = False


class Stepped(Delta, frozen=True, tag="stepped"):
    """A step of the plan is no longer open. What came of it is in the conversation."""

    step: int  # index in the run's plan
    status: StepStatus


class Raised(Delta, frozen=True, tag="raised"):
    """Questions beyond the run's own task, for whoever asked for it."""

    questions: tuple[str, ...]


class Versioned(Delta, frozen=True, tag="versioned"):
    """The code that works on the run from here on: in its first entry, and wherever it changed."""

    parts: dict[str, str]  # digests, by what people call the part: 'tool refund', 'protocol' …
    by: str = ""  # who accepted the change; '': nobody was asked


class Forked(Delta, frozen=True, tag="forked"):
    """All up to here are entries of another run, and this one goes its own way. Always the last
    delta of the last entry that was taken over."""

    origin: str  # run id
    at_seq: int  # of both runs: an entry keeps its number
    at_ms: int  # when, by the store's clock
    by: str = ""
    say: str = ""  # a further message of the user, before the next model call


class Filed(Delta, frozen=True, tag="filed"):
    """For whom the run is, and how it stands to others. In its first entry, after Created."""

    tenant: str = ""
    priority: int = 0  # higher is worked on before lower
    thread: str = ""  # of its runs one at a time is active
    on_busy: OnBusy = "reject"  # what becomes of it while another one is


class Resumed(Delta, frozen=True, tag="resumed"):
    """A worker has claimed the run; recorded with its first commit."""

    owner: str
    token: int
    is_takeover: bool  # the worker before died or was cut off: its lease ran out
    claimed_ms: int


class Observed(Delta, frozen=True, tag="observed"):
    """Words of a person, taken from the mailbox into the conversation."""

    text: str
    signal_id: str


class Given(Delta, frozen=True, tag="given"):
    """Files that came with the task. In the first entry; OBSERVE reads them."""

    files: tuple[File, ...]


class Perceived(Delta, frozen=True, tag="perceived"):
    """What is in the files that came with the words before."""

    parts: tuple[Part, ...]
    usage: Usage | None = None  # of the model that put sound into words


class Noticed(Delta, frozen=True, tag="noticed"):
    """Something that happened outside, as a system told it."""

    source: str
    text: str
    signal_id: str


class Began(Delta, frozen=True, tag="began"):
    """A model call is about to go out, and this many tokens are set aside for it."""

    attempt: int  # counts the run's model calls, from 1
    reserve_tokens: int


class Reserved(Began, frozen=True, tag="reserved"):
    """A model call with what it is for, and what it may cost besides tokens."""

    purpose: Purpose = "turn"
    prompt_tokens: int = 0  # of `reserve_tokens`, the request by plain estimate, uncorrected
    micros: int = 0  # money set aside, in millionths of the price table's currency


class Charged(Delta, frozen=True, tag="charged"):
    """What the model call before it cost, by the price table of that day. In the same entry."""

    micros: int
    cached_tokens: int = 0  # of the prompt, which the provider had kept and billed for less


class Replied(Delta, frozen=True, tag="replied"):
    """A whole reply. With a violation its calls are void and its text is a draft."""

    label: str | None
    text: str
    usage: Usage
    calls: tuple[Call, ...] = ()
    finish_reason: str | None = None
    violation: str | None = None
    detail: str = ""
    reasoning: str = ""


class Signed(Delta, frozen=True, tag="signed"):
    """What the provider signed of the reply before it, and wants back with the calls' results."""

    replay: str  # JSON, see SignedMessage


class Proposed(Delta, frozen=True, tag="proposed"):
    """Calls that the model did not write as such: read from its text, or due by the plan."""

    calls: tuple[Call, ...]


class ModelFailed(Delta, frozen=True, tag="model_failed"):
    """A model call that brought no usable reply; billed ones cost their whole reserve."""

    kind: str
    message: str
    is_billed: bool
    retry_at_ms: int = 0


class Asked(Delta, frozen=True, tag="asked"):
    """A call waits for a person. The decision must name `digest`."""

    ask_id: str
    call_id: str
    kind: AskKind
    digest: str
    reason: str
    expires_ms: int = 0
    unlock_ms: int = 0


class AskedOn(Asked, frozen=True, tag="asked_on"):
    """A request with terms: an end of its time, more people than one, or not just anybody."""

    on_expiry: OnExpiry = "reject"
    quorum: int = 1
    not_requester: bool = False


class Judged(Delta, frozen=True, tag="judged"):
    """What the tool's approval rule said of a call. On record once, and not asked again."""

    call_id: str
    asks: bool
    reason: str = ""
    rule: str = ""  # the name of the rule
    consent: str = ""  # the standing consent on whose word nobody was asked
    numbers: dict[str, int | float] = {}  # arguments that the rule may see the sums of


class Voted(Delta, frozen=True, tag="voted"):
    """One of the people that a request needs has agreed."""

    ask_id: str
    call_id: str
    verb: Verb
    by: str
    decided_ms: int  # by the store's clock, when it was recorded there
    reason: str = ""
    digest: str = ""  # of the arguments that were shown
    channel: str = ""
    auth: str = ""


class Commented(Delta, frozen=True, tag="commented"):
    """Words about a request, put on record with the decision that they led to. They decide
    nothing."""

    ask_id: str
    call_id: str
    by: str
    said_ms: int  # by the store's clock, when it was recorded there
    text: str


class Ruled(Delta, frozen=True, tag="ruled"):
    """A person's decision, taken up by the run."""

    ask_id: str
    call_id: str
    verb: Verb
    by: str
    at_ms: int
    reason: str = ""
    digest: str = ""  # of the arguments that may run now: those shown, or the edited ones
    arguments: str | None = None  # of `edit`: canonical JSON
    answer: str | None = None  # of `answer` and `happened`: what the model is told


class Attested(Ruled, frozen=True, tag="attested"):
    """A decision with how it came about: `at_ms` says when the run took it up."""

    decided_ms: int = 0  # by the store's clock, when it was recorded there
    channel: str = ""  # where it was made: cli, api …
    auth: str = ""  # how `by` was established; 'claimed': it was not


class Consented(Delta, frozen=True, tag="consented"):
    """Later calls of a tool in this run need nobody, as far as one person is enough."""

    consent_id: str
    tool: str
    rule: str  # only where this rule asks; '': whichever does
    by: str
    at_ms: int
    reason: str = ""
    channel: str = ""
    auth: str = ""


class Revoked(Delta, frozen=True, tag="revoked"):
    """A standing consent that holds no more."""

    consent_id: str
    by: str
    at_ms: int
    reason: str = ""


class Intended(Delta, frozen=True, tag="intended"):
    """A call is about to start. On disk before the tool runs, so that a crash cannot hide it."""

    call_id: str
    effect: EffectClass
    key: str  # the idempotency key, from the journal position
    attempt: int  # starts of this call, from 1
    at_ms: int
    deadline_ms: int  # when the tool is cut off at the latest


class Withheld(Delta, frozen=True, tag="withheld"):
    """The call whose intent is on record was not started after all, and may start again."""

    call_id: str
    reason: str


class Delegated(Delta, frozen=True, tag="delegated"):
    """The call that is about to start is the work of a child run. With its Intended."""

    call_id: str
    child: str  # run id, from the call's key: a resumed parent finds the same child
    grant_tokens: int  # of the parent's budget, set aside until the call has a result
    grant_micros: int = 0  # of its money


class Detailed(Delta, frozen=True, tag="detailed"):
    """What there is to a call's result besides its text. Before its Settled, in the same entry."""

    call_id: str
    ends: bool = False  # the tool said that its text is the run's answer
    arguments: str = ""  # those that really ran, where a retry was given smaller ones
    sources: tuple[Source, ...] = ()
    spent_tokens: int = 0  # by a child run
    raised: tuple[str, ...] = ()  # questions that a child run hands up
    spent_micros: int = 0


class Enclosed(Delta, frozen=True, tag="enclosed"):
    """Files that came with a call's result, to be read before the next turn. Before its Settled,
    in the same entry."""

    call_id: str
    files: tuple[File, ...]


class Settled(Delta, frozen=True, tag="settled"):
    """The one result of a call, as the model will see it."""

    call_id: str
    status: ResultStatus
    text: str
    took_ms: int = 0
    blob: str = ""  # digest of the whole output, where `text` is cut


class Hinted(Delta, frozen=True, tag="hinted"):
    """The runtime tells the model something before its next turn."""

    kind: HintKind
    text: str


class Assessed(Delta, frozen=True, tag="assessed"):
    """How far a turn got, and what the policies saw: for whoever asks why a run was stopped.

    All numbers are percent but `low` and `rounds`. `parts` are, in this order: tools, arguments,
    information, confidence, retries.
    """

    score: int
    mean: int  # over the window of the settings
    parts: tuple[int, ...]
    low: int = 0  # turns in a row whose mean is below the threshold
    rounds: int = 0  # how often the steps at the end have come round


class Barred(Delta, frozen=True, tag="barred"):
    """Calls that are not made again until a person says something: they brought nothing new."""

    calls: tuple[str, ...]  # digests of name and arguments, see `call_digest`


class Criticised(Delta, frozen=True, tag="criticised"):
    """What the critic said of the turn, or why it said nothing."""

    verdict: CriticVerdict
    text: str
    usage: Usage
    problem: str = ""  # why there is no verdict; the run then goes on without one


class Cut(Delta, frozen=True, tag="cut"):
    """Which messages the model is shown from here on: a view, never an edit of history."""

    start: int  # messages before it are left out, but the first and the pinned
    pinned: tuple[int, ...] = ()  # indices before `start` that stay
    trim: int = 0  # tool results before it are shown in short
    most_chars: int = 0  # of one message; 0: no limit


class Summarised(Delta, frozen=True, tag="summarised"):
    """What stands for the messages that a cut left out."""

    text: str  # '' with a problem: they are left out without words
    covers: int  # messages before it
    usage: Usage
    problem: str = ""


class Finalising(Delta, frozen=True, tag="finalising"):
    """From here on only the terminal label is allowed, for `turns` turns."""

    why: FailureReason
    turns: int


class Answered(Delta, frozen=True, tag="answered"):
    """The run's result. Not completed: a rescued draft, or an honest fallback after a limit."""

    text: str
    is_completed: bool = True
    why: str = ""  # what brought it about, if not the model by itself: a FailureReason


class Failed(Delta, frozen=True, tag="failed"):
    """The run ends without a result."""

    reason: FailureReason
    message: str
    by: str = ""


AnyDelta = (
    Created | Nested | Resumed | Observed | Began | Replied | Signed | ModelFailed | Asked
    | AskedOn | Judged | Voted | Ruled | Attested | Consented | Revoked | Intended | Delegated
    | Detailed | Settled | Hinted | Finalising | Answered | Failed | Reserved | Charged | Assessed
    | Barred | Criticised | Cut | Summarised | Given | Perceived | Noticed | Filed | Commented
    | Versioned | Forked | Withheld | Carried | Entered | Planned | Stepped | Raised | Proposed
    | Enclosed
)  # fmt: skip
