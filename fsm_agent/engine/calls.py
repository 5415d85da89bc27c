"""What is next for each call of a batch: read from the run, the agent, and what this worker saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from fsm_agent.capabilities.agent import Agent
from fsm_agent.capabilities.delegate import AgentTool
from fsm_agent.errors import CodeChanged, UnknownTool
from fsm_agent.run.delta import Delegated, Intended, Judged, Settled, Versioned, Withheld
from fsm_agent.run.record import OpenCall, Run
from fsm_agent.run.step import call_digest
from fsm_agent.run.tally import Numbers
from fsm_agent.tools import dispatch, effects
from fsm_agent.tools.arguments import Bound, Refused
from fsm_agent.tools.ask_user import is_question
from fsm_agent.tools.effects import arguments_digest, idempotency_key
from fsm_agent.tools.registry import Tool

from .asking import (
    Request,
    Subject,
    ask_anew,
    ask_approval,
    ask_in_doubt,
    ask_question,
    subject_of,
)
from .children import Waits, child_of
from .policy import judge
from .versions import has_let_go

UNSTOPPED_LOCKS = 10  # of its longest time, before a call that could not be stopped may run again
KEYED_STARTS = 2  # a keyed call that timed out is sent once more before a person is asked


class Start(msgspec.Struct, frozen=True):
    """A call that is ready to run, once its intent is on record."""

    call_id: str
    tool: Tool[..., Any]
    bound: Bound
    intent: Intended
    delegated: Delegated | None = None  # the child run that is the work
    judged: Judged | None = None  # the verdict that lets it start, where it is not on record yet


class Probe(msgspec.Struct, frozen=True):
    """A call whose check is to be asked whether it took effect."""

    call_id: str
    tool: Tool[..., Any]
    bound: Bound
    intent: Intended


Work = Start | Probe
Step = Settled | Request | Work | None


@dataclass
class Sightings:
    """What this worker saw of calls and did not put on record."""

    gaps: set[str]  # started, and nobody here knows how it ended
    timeouts: dict[str, int] = field(default_factory=dict)
    deaths: dict[str, str] = field(default_factory=dict)  # how a tool's own process ended
    verified: set[str] = field(default_factory=set)  # their check said that nothing happened
    doubts: dict[str, str] = field(default_factory=dict)  # why a probe could not settle the gap
    again_at_ms: dict[str, int] = field(default_factory=dict)  # not before then: a probe, a start
    unstopped: set[str] = field(default_factory=set)  # given up, still running in a thread of ours

    parked: dict[str, Waits] = field(default_factory=dict)  # calls whose child run waits

    def forget(self, call_id: str) -> None:
        """A new start or probe is under way: what was seen belongs to the one before."""
        self.gaps.discard(call_id)
        self.parked.pop(call_id, None)
        self.again_at_ms.pop(call_id, None)
        self.verified.discard(call_id)
        self.doubts.pop(call_id, None)


class Scene(msgspec.Struct, frozen=True):
    """All that the next step of a call depends on."""

    run: Run
    agent: Agent
    seen: Sightings
    now_ms: int
    grace_ms: int  # added to a deadline before a call in doubt may be run again
    versioned: Versioned | None = None  # the code at work, and who accepted it
    # Calls that start in the same step: their tools, and what they add to the sums.
    ahead: list[tuple[str, Numbers]] = []

    def next_step(self, call: OpenCall) -> Step:
        """The next fact about a call that is open, or that was started and has no result.

        Raises CodeChanged for stored work that this code cannot serve.
        """
        call_id, name = call.call.call_id, call.call.name
        if self.now_ms < self.seen.again_at_ms.get(call_id, 0):
            return None
        if call.call.problem:
            text = f"The call was not made: {call.call.problem}."
            return Settled(call_id, "error", text)
        if not call.starts and not call.ruling and self._is_barred(call):
            text = "The call was not made again: it has brought the same, again and again."
            return Settled(call_id, "duplicate", text)
        try:
            tool = self.agent.registry.get(name)
        except UnknownTool as error:
            return self._step_gone(call, error)
        bound = tool.bind(call.arguments)
        if isinstance(bound, Refused):
            return self._step_refused(call, tool, bound)
        if call.phase == "started":
            return self._step_in_gap(call, tool, bound)
        if is_question(tool):
            if earlier := self._earlier_question(call, tool):
                text = f"Not asked: one question at a time. Call {earlier} asks the user already."
                return Settled(call_id, "duplicate", text)
            return ask_question(self.run, call, tool, bound, now_ms=self.now_ms)
        if twin := self._twin_of(call, tool):
            if twin.phase in ("open", "waiting"):
                return None  # a person may give it other arguments: compare again once it is fixed
            text = f"Identical to call {twin.call.call_id}, which runs once. See its result."
            return Settled(call_id, "duplicate", text)
        if call.is_approved and call.ruling:
            digest = arguments_digest(tool.name, tool.version, bound.arguments)
            if call.ruling.digest == digest:
                return self._start(call, tool, bound)
            why = f"{name} was changed since this call was approved"
            return self._ask_approval(call, tool, bound, why)
        ahead = (numbers for name, numbers in self.ahead if name == tool.name)
        verdict = judge(self.run, call, tool, bound, ahead)
        new = verdict if verdict is not call.verdict else None
        if verdict and verdict.asks:
            return self._ask_approval(call, tool, bound, verdict.reason)._replace(judged=new)
        return replace(self._start(call, tool, bound), judged=new)

    def _is_barred(self, call: OpenCall) -> bool:
        return call_digest(call.call.name, call.call.arguments) in self.run.barred

    def _ask_approval(
        self, call: OpenCall, tool: Tool[..., Any], bound: Bound, why: str
    ) -> Request:
        return ask_approval(self.run, call, tool, bound.arguments, why, now_ms=self.now_ms)

    def _step_refused(
        self, call: OpenCall, tool: Tool[..., Any], refused: Refused
    ) -> Settled | Request | None:
        """The next fact about a call whose arguments do not fit: perhaps they once did."""
        call_id, name = call.call.call_id, call.call.name
        if call.ruling and call.ruling.verb == "edit" and call.phase == "open":
            text = f"The call was not made: a person changed its arguments, and {refused.problem}"
            return Settled(call_id, "error", text)
        if call.is_approved and call.phase == "open":
            if self.versioned and self.versioned.by:
                text = f"The call was not made: {name} takes other arguments now: {refused.problem}"
                return Settled(call_id, "error", text)
            raise self._stuck_at(call, f"{name} takes other arguments now: {refused.problem}")
        if call.phase == "open" or _is_harmless(call):
            return Settled(call_id, "error", f"The call was not made: {refused.problem}")
        if call_id not in self.seen.gaps:
            return None
        why = f"{name} takes other arguments now: {refused.problem}"
        return self._ask_in_doubt(call, tool, call.arguments, why)

    def _step_gone(self, call: OpenCall, error: UnknownTool) -> Settled | Request | None:
        """The next fact about a call whose tool this code does not have."""
        call_id, name = call.call.call_id, call.call.name
        if not (call.starts or call.is_approved):
            return Settled(call_id, "error", f"The call was not made: {error}")
        if not has_let_go(self.versioned, name):
            # Stored work that this code cannot serve: not the model's mistake.
            raise self._stuck_at(call, str(error))
        if call.intent is None or _is_harmless(call):
            return Settled(call_id, "error", f"It has no result: the tool {name} is gone.")
        if call_id not in self.seen.gaps:
            return None
        about = Subject(name, "", call.intent.effect)
        why = f"The tool {name} is gone since, so it cannot be run again."
        unlock_ms = self.unlock_ms(call)
        return ask_in_doubt(self.run, call, about, call.arguments, why, unlock_ms=unlock_ms)

    def _stuck_at(self, call: OpenCall, why: str) -> CodeChanged:
        was = "was started" if call.intent else "was approved"
        return CodeChanged(
            f"run {self.run.run_id!r} stands at call {call.call.call_id} of {call.call.name}, which"
            f" {was}: {why.rstrip('.')}. Go on with the code that had it, accept the change with"
            " resume --accept-changes, or cancel the run"
        )

    def _earlier_question(self, call: OpenCall, tool: Tool[..., Any]) -> str | None:
        for other in self.run.calls:
            if other is call:
                return None
            if other.call.name == call.call.name and self._asks_user(other, tool):
                return other.call.call_id
        return None

    def _asks_user(self, call: OpenCall, tool: Tool[..., Any]) -> bool:
        """Whether a call of `ask_user` has asked its question, or is about to."""
        if call.asks or call.result:
            return call.asks > 0
        if call.call.problem or self._is_barred(call):
            return False
        return isinstance(tool.bind(call.arguments), Bound)

    def _twin_of(self, call: OpenCall, tool: Tool[..., Any]) -> OpenCall | None:
        """An earlier call of the batch that does the same, where doing it once is enough.

        Where a person has let this call run, one that ended without a start does not stand for it.
        """
        if not isinstance(tool.effect, (effects.Read, effects.Idempotent)) or call.starts:
            return None
        for other in self.run.calls:
            if other is call:
                return None
            if other.call.name != call.call.name or other.arguments != call.arguments:
                continue
            if not (other.result and not other.starts and call.is_approved):
                return other
        return None

    def _start(self, call: OpenCall, tool: Tool[..., Any], bound: Bound) -> Start:
        now_ms = self.now_ms
        intent = Intended(
            call_id=call.call.call_id,
            effect=effects.class_of(tool.effect),
            key=self._key(call, tool, bound),
            attempt=call.starts + 1,
            at_ms=now_ms,
            deadline_ms=now_ms + int(longest_s(tool) * 1000),
        )
        delegated = None
        if isinstance(tool, AgentTool):
            delegated = child_of(self.run, call, tool, intent.key, self.agent)
        return Start(call.call.call_id, tool, bound, intent, delegated)

    def _key(self, call: OpenCall, tool: Tool[..., Any], bound: Bound) -> str:
        run = self.run
        return idempotency_key(
            scope=run.agent,
            run_id=run.run_id,
            think_seq=run.step,
            index=int(call.call.call_id.rpartition("-")[2]),
            name=tool.name,
            version=tool.version,
            arguments=bound.arguments,
        )

    # -- gaps: an intent without a result -----------------------------------------------------

    def _step_in_gap(
        self, call: OpenCall, tool: Tool[..., Any], bound: Bound
    ) -> Request | Work | None:
        assert call.intent
        call_id, now_ms = call.call.call_id, self.now_ms
        if call_id not in self.seen.gaps:
            return None
        if call.asked:
            return ask_anew(self.run, call, tool, bound.arguments)
        if call.origin:
            why = (
                f"It was started in run {call.origin}, which has no result of it up to where this"
                " fork begins."
            )
            return self._ask_in_doubt(call, tool, bound.arguments, why)
        timeouts = self.seen.timeouts.get(call_id, 0)
        why = "It ran into its time limit." if timeouts else "No result of it is on record."
        change = self._change_of(call.intent, call, tool, bound)
        seen = self.seen.doubts.get(call_id) or self.seen.deaths.get(call_id)
        why = change or seen or why
        if change or timeouts >= KEYED_STARTS or call_id in self.seen.doubts:
            return self._ask_in_doubt(call, tool, bound.arguments, why)
        if call_id in self.seen.verified:
            return self._start(call, tool, bound)
        match effects.on_gap(tool.effect, intent_at_ms=call.since_ms, now_ms=now_ms):
            case "run_again":
                return self._start(call, tool, bound)
            case "ask":
                return self._ask_in_doubt(call, tool, bound.arguments, why)
            case "probe":
                return Probe(call_id, tool, bound, call.intent)
            case never:
                assert_never(never)

    def _change_of(
        self, intent: Intended, call: OpenCall, tool: Tool[..., Any], bound: Bound
    ) -> str:
        """Why the tool's class says nothing about a start by other code; '' if it does."""
        effect = effects.class_of(tool.effect)
        if effect != intent.effect and {effect, intent.effect} != {"read", "idempotent"}:
            return f"It was started as {intent.effect}, and {tool.name} is {effect} now."
        if effect == "keyed" and self._key(call, tool, bound) != intent.key:
            return f"{tool.name} was changed since: a repeat would carry another key."
        return ""

    def unlock_ms(self, call: OpenCall) -> int:
        """From when on no worker that lost the run can still be about to send the call."""
        assert call.intent
        return call.intent.deadline_ms + self.grace_ms

    def _ask_in_doubt(
        self, call: OpenCall, tool: Tool[..., Any], arguments: str, why: str
    ) -> Request:
        unlock_ms = self.unlock_ms(call)
        if call.call.call_id in self.seen.unstopped:
            # Nobody can say when a thread that was given up ends; a far lock is all there is.
            unlock_ms += UNSTOPPED_LOCKS * int(longest_s(tool) * 1000)
            why = f"{why} It could not be stopped, and may still be running in this worker."
        about = subject_of(tool)
        return ask_in_doubt(self.run, call, about, arguments, why, unlock_ms=unlock_ms)


def _is_harmless(call: OpenCall) -> bool:
    """Whether nothing is in doubt about a call that was started."""
    is_repeatable = bool(call.intent and call.intent.effect in ("read", "idempotent"))
    return is_repeatable and not call.origin


def put_off(
    works: Sequence[Work], run: Run, seen: Sightings, why: str, *, again_ms: int
) -> tuple[list[Work], list[Withheld]]:
    """What may start of work whose intents are on record unconfirmed, and the facts of the rest.

    Nothing was sent, so nobody has to be asked about a call that is taken back; but where it had
    been started before, the gap of that start stays, and its check is asked anew.
    """
    rest: list[Work] = []
    facts: list[Withheld] = []
    for work in works:
        if not isinstance(work, Start) or work.intent.effect in ("read", "idempotent"):
            rest.append(work)
            continue
        seen.again_at_ms[work.call_id] = again_ms
        if run.call(work.call_id).since_ms == work.intent.at_ms:
            facts.append(Withheld(work.call_id, why))
        else:
            seen.gaps.add(work.call_id)
            seen.verified.discard(work.call_id)
    return rest, facts


def longest_s(tool: Tool[..., Any]) -> float:
    """How long a call may take with all its attempts and the waits between them."""
    return (tool.retries + 1) * (tool.timeout_s + dispatch.GRACE_S) + tool.retries * 10.0
