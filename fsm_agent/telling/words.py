"""The entries of a run in words: what happened, one line for each thing worth a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, assert_never

from fsm_agent.run.content import Call, Part
from fsm_agent.run.delta import (
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
    Summarised,
    Versioned,
    Voted,
    Withheld,
)
from fsm_agent.run.event import EntryEvent
from fsm_agent.run.limits import Limits
from fsm_agent.run.state import Trigger
from fsm_agent.run.versions import changes
from fsm_agent.telling.clean import cleaned, one_line
from fsm_agent.telling.early import LIMITS, early, turns

Tone = Literal["plain", "good", "bad", "warn", "quiet"]

# The state in which an entry's work was done; its own `state` is the one after it.
_PLACES: dict[Trigger | None, str] = {
    None: "created",
    Trigger.OBSERVED: "observe",
    Trigger.BEGAN: "think",
    Trigger.CALLS: "think",
    Trigger.REPLIED: "think",
    Trigger.ANSWERED: "think",
    Trigger.FAILED: "think",
    Trigger.PROGRESSED: "act",
    Trigger.ACTED: "act",
    Trigger.TERMINATED: "act",
    Trigger.CONTINUED: "reflect",
    Trigger.FINISHED: "reflect",
    Trigger.EXHAUSTED: "reflect",
    Trigger.CANCELLED: "cancel",
}

_ASKS: dict[Purpose, tuple[str, str]] = {
    "turn": ("think", "asks the model"),
    "summary": ("think", "asks for a summary"),
    "critic": ("reflect", "asks the critic"),
    "transcript": ("observe", "has sound put into words"),
}

RULED_WORDS = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "approved with other arguments",
    "answer": "answered",
    "happened": "settled as 'it happened'",
    "rerun": "settled as 'it did not happen, run it'",
    "fail": "settled as 'nobody knows'",
    "expire": "expired",
}


class Line(NamedTuple):
    """One thing that happened. `place` is the left column; `more` is for who looks closely.

    `quiet` lines are shown in the timeline only. `delta` is what the line speaks of.
    """

    place: str
    text: str
    tone: Tone = "plain"
    more: str = ""
    delta: AnyDelta | None = None


class Story:
    """Turns entries into lines, and remembers what later ones refer to."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.started: dict[str, Intended] = {}  # intents without a result
        self.owner = ""
        self.attempt: Began | None = None  # a model call that nothing has ended yet
        self.answer: Answered | None = None
        self.limits: Limits | None = None
        self._began_ms = 0
        self._parts: Mapping[str, str] | None = None  # of the code that worked on it last
        self._place = ""
        self._is_failing = False  # the entry at hand ends the run: nothing is tried again

    def name(self, call_id: str) -> str:
        """The tool of a call."""
        call = self.calls.get(call_id)
        return one_line(call.name, 64) if call else call_id

    def names(self, call_ids: Iterable[str]) -> str:
        """The tools of calls: 'read_pages ×2, send_mail'."""
        counts = Counter(self.name(call_id) for call_id in call_ids)
        return ", ".join(n if count == 1 else f"{n} ×{count}" for n, count in counts.items())

    def tell(self, event: EntryEvent) -> list[Line]:
        """The lines of an entry, in the order of its facts."""
        record = event.record
        self._place = _PLACES[record.trigger]
        self._is_failing = any(isinstance(delta, Failed) for delta in record.deltas)
        lines = [line for delta in record.deltas for line in self._of(delta, record.at_ms)]
        if not lines:
            lines = [Line(self._place, f"→ {event.state.value}", "quiet")]
        return lines

    def _of(self, delta: AnyDelta, at_ms: int) -> list[Line]:
        return [line._replace(delta=delta) for line in self._told(delta, at_ms)]

    def _told(self, delta: AnyDelta, at_ms: int) -> list[Line]:
        match delta:
            case Created():
                return [self._created(delta)]
            case Resumed():
                return self._resumed(delta)
            case Observed():
                return [Line("observe", f"was told: {one_line(delta.text)}")]
            case Noticed():
                text = f"{one_line(delta.source, 64)} tells: {one_line(delta.text)}"
                return [Line("observe", text)]
            case Given():
                names = ", ".join(one_line(file.name, 64) for file in delta.files)
                return [Line("created", f"with {names}")]
            case Enclosed():
                names = ", ".join(one_line(file.name, 64) for file in delta.files)
                return [Line("act", f"{self.names((delta.call_id,))} gave {names}")]
            case Perceived():
                return [self._perceived(part) for part in delta.parts]
            case Began():
                return self._began(delta, at_ms)
            case Replied():
                return self._replied(delta, at_ms)
            case Signed() | Detailed() | Charged():
                return []
            case Nested():
                return [Line("created", f"works for run {one_line(delta.parent, 64)}", "quiet")]
            case Carried():
                count = f"{len(delta.messages)} messages"
                text = f"goes on with the conversation of run {one_line(delta.before, 64)}"
                return [Line("created", text, "quiet", more=count)]
            case Entered():
                text = f"begins: {one_line(delta.phase, 64)}"
                return [Line(self._place, text, more=one_line(delta.note, 60))]
            case Planned():
                return self._planned(delta)
            case Stepped():
                tone: Tone = "good" if delta.status == "done" else "warn"
                return [Line(self._place, f"step {delta.step + 1} {delta.status}", tone)]
            case Raised():
                texts = "; ".join(one_line(question, 80) for question in delta.questions)
                return [Line(self._place, f"asks besides: {texts}")]
            case Proposed():
                self.calls |= {call.call_id: call for call in delta.calls}
                names = self.names(call.call_id for call in delta.calls)
                return [Line("think", f"that is {names}", "quiet")]
            case Versioned():
                return self._versioned(delta)
            case Forked():
                return self._forked(delta)
            case Filed():
                busy = f", if it is busy: {delta.on_busy}" if delta.thread else ""
                return [Line("created", f"filed: {filed_words(delta)}{busy}", "quiet")]
            case Delegated():
                more = f"{delta.grant_tokens:,} tokens set aside"
                return [Line("act", f"as run {one_line(delta.child, 64)}", "quiet", more=more)]
            case ModelFailed():
                return [self._model_failed(delta, at_ms)]
            case Asked():
                return [self._asked(delta)]
            case Ruled():
                return [self._ruled(delta)]
            case Judged():
                return self._judged(delta)
            case Voted():
                return [self._voted(delta)]
            case Commented():
                text = f"{one_line(delta.by, 64)} said: {one_line(delta.text, 160)}"
                return [Line("decided", text, "quiet", more=f"request {delta.ask_id}")]
            case Consented():
                text = (
                    f"{one_line(delta.by, 64)} agrees to later calls of {one_line(delta.tool, 64)}"
                )
                rule = f", where {one_line(delta.rule, 64)} asks" if delta.rule else ""
                return [Line("decided", text + rule, "good", more=f"consent {delta.consent_id}")]
            case Revoked():
                text = f"{one_line(delta.by, 64)} takes consent {delta.consent_id} back"
                return [Line("decided", text, "warn")]
            case Intended():
                return [self._intended(delta)]
            case Withheld():
                self.started.pop(delta.call_id, None)
                text = f"did not start {self.name(delta.call_id)} after all"
                return [Line("act", text, "warn", more=one_line(delta.reason, 160))]
            case Settled():
                return [self._settled(delta)]
            case Hinted():
                text = f"tells the model: {one_line(delta.text)}"
                return [Line(self._place, text, "warn", more=delta.kind)]
            case Assessed():
                return self._assessed(delta)
            case Barred():
                barred = len(delta.calls)
                text = f"{barred} {'call is' if barred == 1 else 'calls are'} not made again"
                return [Line(self._place, text, "warn")]
            case Criticised():
                return [self._criticised(delta)]
            case Cut():
                text = f"the model is shown what came after message {delta.start}"
                pinned = f", and {len(delta.pinned)} pinned" if delta.pinned else ""
                return [Line("think", text + pinned, "quiet")]
            case Summarised():
                return [self._summarised(delta)]
            case Finalising():
                what = LIMITS.get(delta.why, delta.why.replace("_", " "))
                text = f"{what} is reached: it must finish now"
                return [Line(self._place, text, "warn")]
            case Answered():
                self.answer = delta
                text = "answered" if delta.is_completed else "not completed"
                if delta.why or not delta.is_completed:
                    text = f"{text}: {early(delta.why, self.limits)}"
                return [Line("done", text, "good" if delta.is_completed else "warn")]
            case Failed():
                return [Line("error", f"{delta.reason}: {one_line(delta.message, 300)}", "bad")]
            case _:
                assert_never(delta)

    def _planned(self, planned: Planned) -> list[Line]:
        plural = "step" if len(planned.steps) == 1 else "steps"
        head = f"{len(planned.steps)} {'more ' if planned.is_more else ''}{plural}"
        lines = [Line(self._place, f"has a plan of {head}")]
        return lines + [Line("", f"- {one_line(step, 100)}", "quiet") for step in planned.steps]

    def _created(self, created: Created) -> Line:
        self.limits = created.limits
        text = f"{one_line(created.agent, 64)}, budget {turns(created.limits.turns)}"
        return Line("created", text, more=f"task: {one_line(created.task)}")

    def _versioned(self, versioned: Versioned) -> list[Line]:
        before, self._parts = self._parts, versioned.parts
        if before is None:
            return []
        who = one_line(versioned.by, 64)
        accepted = f", accepted by {who}" if who else ""
        if found := "; ".join(one_line(change, 80) for change in changes(before, self._parts)):
            return [Line("worker", f"other code: {found}{accepted}", "warn")]
        return [Line("worker", f"the code as it is now{accepted}", "warn")]

    def _forked(self, forked: Forked) -> list[Line]:
        by = f" by {one_line(forked.by, 64)}" if forked.by else ""
        text = f"forked from run {one_line(forked.origin, 64)}{by}: all above is its history"
        lines = [Line("forked", text, "warn")]
        if forked.say:
            lines.append(Line("forked", f"was told: {one_line(forked.say)}"))
        # What was under way is under way there, and the next worker here has not died with it.
        self.started, self.attempt = {}, None
        return lines

    def _resumed(self, resumed: Resumed) -> list[Line]:
        before, self.owner = self.owner, one_line(resumed.owner, 64)
        lease = f"lease {resumed.token}"
        if not resumed.is_takeover:
            word = "took it up" if not before else "went on with it"
            return [Line("worker", f"{self.owner} {word}", "quiet", more=lease)]
        under_way = self._under_way()
        # Its first commit brings the takeover on record, so what it did before is ours by then.
        died = f"worker {before or 'before'} died here: {under_way}"
        return [
            Line("✖ died", died, "bad"),
            Line("worker", f"{self.owner} took the run over", "warn", more=lease),
        ]

    def _perceived(self, part: Part) -> Line:
        if part.kind in ("audio", "video"):
            self.attempt = None
        name = f"{one_line(part.file.name, 64)} ({part.media_type or 'unknown'})"
        if part.problem:
            return Line("observe", f"{name}: {one_line(part.problem)}", "warn")
        read = [f"{len(part.text):,} characters"] if part.text else []
        read += [f"{len(part.pictures)} pictures"] if part.pictures else []
        return Line("observe", f"reads {name}: {', '.join(read) or 'nothing in it'}")

    def _assessed(self, assessed: Assessed) -> list[Line]:
        if not assessed.low and assessed.rounds < 2:
            return []
        text = f"progress {assessed.score} %, {assessed.mean} % of late"
        if assessed.rounds > 1:
            text = f"{text}; the same for {assessed.rounds} rounds"
        return [Line(self._place, text, "quiet")]

    def _criticised(self, criticised: Criticised) -> Line:
        self.attempt = None
        if criticised.problem:
            text = f"the critic said nothing: {one_line(criticised.problem)}"
            return Line("reflect", text, "warn")
        text = f"the critic says {criticised.verdict}: {one_line(criticised.text)}"
        return Line("reflect", text, "warn" if criticised.verdict == "wrong" else "plain")

    def _summarised(self, summarised: Summarised) -> Line:
        self.attempt = None
        if summarised.problem:
            text = f"earlier messages are left out unsummed: {one_line(summarised.problem)}"
            return Line("think", text, "warn")
        text = f"summed up the messages before {summarised.covers}"
        return Line("think", text, more=one_line(summarised.text))

    def _under_way(self) -> str:
        if self.started:
            plural = "call was" if len(self.started) == 1 else "calls were"
            return f"{len(self.started)} {plural} under way ({self.names(self.started)})"
        return "a model call was under way" if self.attempt else "nothing was under way"

    def _began(self, began: Began, at_ms: int) -> list[Line]:
        lost, self.attempt, self._began_ms = self.attempt, began, at_ms
        more = f"attempt {began.attempt}, {began.reserve_tokens:,} tokens set aside"
        purpose = began.purpose if isinstance(began, Reserved) else "turn"
        place, text = _ASKS[purpose]
        lines = [Line(place, text, "quiet", more=more)]
        if lost is None:
            return lines
        text = f"attempt {lost.attempt} brought no whole reply: what it said is void"
        more = f"its {lost.reserve_tokens:,} tokens count as spent"
        return [Line("think", text, "warn", more=more), *lines]

    def _replied(self, reply: Replied, at_ms: int) -> list[Line]:
        self.attempt = None
        self.calls |= {call.call_id: call for call in reply.calls}
        took = f"{seconds(at_ms - self._began_ms)}, " if self._began_ms else ""
        about = "about " if reply.usage.is_estimate else ""
        more = f"{took}{about}{reply.usage.total_tokens:,} tokens"
        if reply.violation:
            why = reply.violation.replace("_", " ")
            text = f"the reply breaks the protocol ({why}) and does not count"
            return [Line("think", text, "warn", more=more)]
        if reply.calls:
            names = self.names(call.call_id for call in reply.calls)
            return [Line("think", f"wants {names}", more=more)]
        label = f"{reply.label}: " if reply.label else ""
        return [Line("think", f"{label}{one_line(reply.text, 80)}", more=more)]

    def _model_failed(self, failed: ModelFailed, at_ms: int) -> Line:
        self.attempt = None
        is_repeated = failed.retry_at_ms and not self._is_failing
        again = f"; again in {seconds(failed.retry_at_ms - at_ms)}" if is_repeated else ""
        kind = failed.kind.replace("_", " ")
        return Line("think", f"no reply ({kind}): {one_line(failed.message, 160)}{again}", "warn")

    def _asked(self, asked: Asked) -> Line:
        name, more = self.name(asked.call_id), f"request {asked.ask_id}, hash {asked.digest[:8]}"
        # 'X always needs approval' says nothing that the line does not.
        why = "" if asked.reason.startswith(f"{name} ") else f": {one_line(asked.reason)}"
        text = {
            "approval": f"{name} needs a person's approval{why}",
            "question": f"asks a person: {one_line(asked.reason)}",
            "in_doubt": f"{name} is in doubt: nobody knows whether it happened",
        }[asked.kind]
        return Line("waiting", text, "warn", more=more)

    def _ruled(self, ruled: Ruled) -> Line:
        words = RULED_WORDS[ruled.verb]
        why = f": {one_line(ruled.reason)}" if ruled.reason else ""
        if ruled.verb in ("rerun", "happened", "fail"):
            self.started.pop(ruled.call_id, None)
        return Line(
            "decided",
            f"{self.name(ruled.call_id)} {words} by {one_line(ruled.by, 64)}{why}",
            "bad" if ruled.verb in ("reject", "expire") else "good",
            more=f"request {ruled.ask_id}, hash {ruled.digest[:8]}",
        )

    def _judged(self, judged: Judged) -> list[Line]:
        if judged.asks:
            return []  # the request that follows says it
        name = self.name(judged.call_id)
        if judged.consent:
            more = f"consent {judged.consent}"
            return [Line("act", f"{name} needs nobody: {one_line(judged.reason)}", more=more)]
        return [Line("act", f"{name} needs nobody", "quiet", more=f"rule {one_line(judged.rule)}")]

    def _voted(self, voted: Voted) -> Line:
        why = f": {one_line(voted.reason)}" if voted.reason else ""
        text = (
            f"{self.name(voted.call_id)} {RULED_WORDS[voted.verb]} by {one_line(voted.by, 64)}{why}"
        )
        more = f"request {voted.ask_id} needs more people"
        return Line("decided", text, "plain", more=more)

    def _intended(self, intended: Intended) -> Line:
        self.started[intended.call_id] = intended
        name = self.name(intended.call_id)
        is_keyed = intended.effect == "keyed"
        more = f"keyed {intended.key[:8]}" if is_keyed else str(intended.effect)
        if intended.attempt == 1:
            return Line("act", f"starts {name}", "quiet", more=more)
        same = " with the same key" if is_keyed else ""
        text = f"starts {name} again{same}, time {intended.attempt}"
        return Line("act", text, "warn", more=more)

    def _settled(self, settled: Settled) -> Line:
        self.started.pop(settled.call_id, None)
        name = self.name(settled.call_id)
        took = f" {seconds(settled.took_ms)}" if settled.took_ms else ""
        more = one_line(settled.text, 60)
        if settled.status in ("success", "partial", "duplicate"):
            word = "" if settled.status == "success" else f" ({settled.status})"
            return Line("act", f"{name}{took}{word}", "good", more=more)
        text = f"{name}{took} {settled.status.replace('_', ' ')}: {one_line(settled.text, 160)}"
        return Line("act", text, "bad" if settled.status == "error" else "warn")


def seconds(ms: int) -> str:
    """A span in the unit that people would say it in."""
    if ms < 10_000:
        return f"{max(0, ms) / 1000:.1f} s" if ms >= 100 else f"{max(0, ms)} ms"
    if ms < 120_000:
        return f"{ms / 1000:.0f} s"
    minutes = ms // 60_000
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def block(text: str) -> str:
    """A text of several lines for a terminal."""
    return cleaned(text).strip("\n")


def filed_words(filed: Filed) -> str:
    """'tenant acme, priority 5, thread t1'."""
    parts = [f"tenant {one_line(filed.tenant, 64)}"] if filed.tenant else []
    parts += [f"priority {filed.priority}"] if filed.priority else []
    parts += [f"thread {one_line(filed.thread, 64)}"] if filed.thread else []
    return ", ".join(parts) or "as usual"
