"""ACT: bring each call of a batch to its one result, with an intent on record before a start."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, assert_never

from checkpoints.errors import EntryTooLarge, LeaseLost
from fsm_agent.capabilities.agent import Agent
from fsm_agent.errors import UnknownTool, UsageError
from fsm_agent.run.content import clean_text
from fsm_agent.run.delta import AnyDelta, Asked, AskKind, Intended, Settled
from fsm_agent.run.event import LiveEvent
from fsm_agent.run.record import OpenCall
from fsm_agent.run.signal import Decided, Question
from fsm_agent.run.state import Trigger
from fsm_agent.tools import dispatch, effects
from fsm_agent.tools.approval import needs_approval
from fsm_agent.tools.arguments import Bound, Refused
from fsm_agent.tools.ask_user import ASK_USER
from fsm_agent.tools.context import ToolContext
from fsm_agent.tools.effects import arguments_digest, idempotency_key
from fsm_agent.tools.probe import run_probe
from fsm_agent.tools.registry import Tool

from .decisions import result_of, ruled
from .deps import Deps
from .outcome import Move, Outcome, Park
from .session import Interrupted, Session
from .tasks import task_group

KEYED_STARTS = 2  # a keyed call that timed out is sent once more before a person is asked


async def act(session: Session, agent: Agent, deps: Deps) -> Outcome:
    """Work on the batch until every call has a result, or all that is left waits for a person.

    A result is committed as it lands, except the last, which goes with what follows it.
    Raises UsageError if a call that was started or approved names a tool that is gone, or that
    takes other arguments now, once nothing else runs; and Interrupted when a cancel request came:
    running tools were cancelled and given a result.
    """
    return await _Batch(session, agent, deps).work()


def _longest_s(tool: Tool[..., Any]) -> float:
    """How long a call may take with all its attempts and the waits between them."""
    return (tool.retries + 1) * (tool.timeout_s + dispatch.GRACE_S) + tool.retries * 10.0


@dataclass(frozen=True)
class _Start:
    """A call that is ready to run: its intent is staged, and not yet on record."""

    call_id: str
    tool: Tool[..., Any]
    bound: Bound
    intent: Intended


@dataclass(frozen=True)
class _Probe:
    """A call whose check is to be asked whether it took effect."""

    call_id: str
    tool: Tool[..., Any]
    bound: Bound
    intent: Intended


_Work = _Start | _Probe


class _Batch:
    def __init__(self, session: Session, agent: Agent, deps: Deps) -> None:
        self._session, self._agent, self._deps = session, agent, deps
        self._running: dict[str, asyncio.Task[dispatch.Result | effects.ProbeResult]] = {}
        self._gaps = set(session.inherited)  # started, and nobody here knows how it ended
        self._timeouts: dict[str, int] = {}
        self._verified: set[str] = set()  # their check said that nothing happened
        self._doubts: dict[str, str] = {}  # why a probe could not settle the gap
        self._probe_at_ms: dict[str, int] = {}  # a probe that must be asked again, and when
        self._unstopped: set[str] = set()  # given up, and still running in a thread of ours
        self._stuck: UsageError | None = None  # stored work that this code cannot serve

    async def work(self) -> Outcome:
        interrupted = False
        async with task_group() as tasks:
            while True:
                self._take_rulings()
                await self._launch(tasks, self._advance())
                if not self._running:
                    break
                try:
                    await self._session.flush()
                    await self._wait()
                except Interrupted:
                    interrupted = True
                    await self._stop_running()
                    break
                await self._collect()
        if interrupted:
            raise Interrupted
        if self._stuck:
            await self._session.flush()
            raise self._stuck
        return self._conclude()

    def _conclude(self) -> Outcome:
        run = self._session.run
        if not run.has_unsettled_calls:
            return Move(Trigger.ACTED)
        deadlines = [ask.expires_ms for ask in run.open_asks if ask.expires_ms]
        deadlines += self._probe_at_ms.values()
        return Park(
            "waiting" if run.open_asks else "sleeping", min(deadlines) if deadlines else None
        )

    # -- decisions ----------------------------------------------------------------------------

    def _take_rulings(self) -> None:
        for signal_id, signal in list(self._session.signals.items()):
            if isinstance(signal, Decided):
                self._take_ruling(signal_id, signal)

    def _take_ruling(self, signal_id: str, decided: Decided) -> None:
        found = [c for c in self._session.run.calls if c.ask and c.ask.ask_id == decided.ask_id]
        if not found:
            self._session.signals.pop(signal_id, None)  # of a request that no longer waits
            return
        call = found[0]
        ask = call.ask
        assert ask
        edited = ""
        if decided.arguments is not None and call.call.name in self._agent.registry.names:
            edited = self._digest(call, decided.arguments)
        deltas: list[AnyDelta] = [
            ruled(ask, decided, at_ms=self._session.now_ms(), edited_digest=edited)
        ]
        if result := result_of(call, ask, decided):
            deltas.append(result)
        self._session.consume(signal_id)
        self._session.stage(Trigger.PROGRESSED, *deltas)
        if decided.verb == "rerun":
            self._gaps.discard(call.call.call_id)

    def _digest(self, call: OpenCall, arguments: str) -> str:
        tool = self._agent.registry.get(call.call.name)
        bound = tool.bind(arguments)
        shown = bound.arguments if isinstance(bound, Bound) else arguments
        return arguments_digest(tool.name, tool.version, shown)

    # -- one step for each call ---------------------------------------------------------------

    def _advance(self) -> list[_Work]:
        """Stage what can be said of each call now, and return the work that is to start."""
        works: list[_Work] = []
        facts: list[AnyDelta] = []
        for call in self._session.run.calls:
            if call.call.call_id in self._running or call.phase in ("settled", "waiting"):
                continue
            try:
                step = self._step(call)
            except UsageError as error:
                self._stuck = error  # raised once the others are done: they must not be cut off
                continue
            if isinstance(step, (_Start, _Probe)):
                if not self._has_room(step.tool, works):
                    continue
                if isinstance(step, _Start) and self._is_over_budget(call, works):
                    limit = self._session.run.limits.tool_calls
                    text = f"The call was not made: the limit of {limit} tool calls is reached."
                    facts.append(Settled(call.call.call_id, "error", text))
                    continue
                works.append(step)
            if isinstance(step, _Start):
                facts.append(step.intent)
            elif isinstance(step, (Settled, Asked)):
                facts.append(step)
        if facts:
            self._session.stage(Trigger.PROGRESSED, *facts)
        return works

    def _has_room(self, tool: Tool[..., Any], works: list[_Work]) -> bool:
        if len(self._running) + len(works) >= self._agent.parallel_calls:
            return False
        if tool.concurrency is None:
            return True
        names = [self._session.run.call(call_id).call.name for call_id in self._running]
        names += [work.tool.name for work in works]
        return names.count(tool.name) < tool.concurrency

    def _is_over_budget(self, call: OpenCall, works: list[_Work]) -> bool:
        run = self._session.run
        new = [w for w in works if isinstance(w, _Start) and w.intent.attempt == 1]
        return call.starts == 0 and run.tool_calls + len(new) >= run.limits.tool_calls

    def _step(self, call: OpenCall) -> Settled | Asked | _Work | None:
        """The next fact about a call that is open, or that was started and has no result."""
        call_id, name = call.call.call_id, call.call.name
        if call.call.problem:
            text = f"The call was not made: {call.call.problem}."
            return Settled(call_id, "error", text)
        try:
            tool = self._agent.registry.get(name)
        except UnknownTool as error:
            if call.starts or call.is_approved:
                raise  # stored work that this code cannot serve: not the model's mistake
            return Settled(call_id, "error", f"The call was not made: {error}")
        bound = tool.bind(call.arguments)
        if isinstance(bound, Refused):
            return self._step_refused(call, tool, bound)
        if call.phase == "started":
            return self._step_in_gap(call, tool, bound)
        if tool is ASK_USER:
            if earlier := self._earlier_question(call):
                text = f"Not asked: one question at a time. Call {earlier} asks the user already."
                return Settled(call_id, "duplicate", text)
            return self._ask_question(call, bound)
        if twin := self._twin_of(call, tool, bound):
            text = f"Identical to call {twin}, which runs once. See its result."
            return Settled(call_id, "duplicate", text)
        digest = arguments_digest(tool.name, tool.version, bound.arguments)
        if not (call.is_approved and call.ruling and call.ruling.digest == digest):
            if call.is_approved:
                why = f"{name} was changed since this call was approved"
                return self._ask(call, "approval", digest, why, bound.arguments)
            verdict = needs_approval(tool, bound.kwargs)
            if verdict.asks:
                return self._ask(call, "approval", digest, verdict.reason, bound.arguments)
        return self._start(call, tool, bound)

    def _step_refused(
        self, call: OpenCall, tool: Tool[..., Any], refused: Refused
    ) -> Settled | Asked | None:
        """The next fact about a call whose arguments do not fit: perhaps they once did."""
        call_id, name = call.call.call_id, call.call.name
        if call.ruling and call.ruling.verb == "edit" and call.phase == "open":
            text = f"The call was not made: a person changed its arguments, and {refused.problem}"
            return Settled(call_id, "error", text)
        if call.is_approved and call.phase == "open":
            raise UsageError(
                f"call {call_id} of {name} was approved, and {name} takes other arguments now: "
                f"{refused.problem} Work on the run with the version that asked, or cancel it."
            )
        if call.phase == "open" or (call.intent and call.intent.effect in ("read", "idempotent")):
            return Settled(call_id, "error", f"The call was not made: {refused.problem}")
        if call_id not in self._gaps:
            return None
        why = f"{name} takes other arguments now: {refused.problem}"
        return self._ask_in_doubt(call, tool, call.arguments, why)

    def _earlier_question(self, call: OpenCall) -> str | None:
        for other in self._session.run.calls:
            if other is call:
                return None
            if other.call.name == ASK_USER.name and not other.call.problem:
                return other.call.call_id
        return None

    def _twin_of(self, call: OpenCall, tool: Tool[..., Any], bound: Bound) -> str | None:
        """An earlier call of the batch that does the same, where doing it once is enough."""
        if not isinstance(tool.effect, (effects.Read, effects.Idempotent)) or call.starts:
            return None
        for other in self._session.run.calls:
            if other is call:
                return None
            if other.call.name == call.call.name and other.arguments == call.arguments:
                return other.call.call_id
        return None

    def _start(self, call: OpenCall, tool: Tool[..., Any], bound: Bound) -> _Start:
        now_ms = self._session.now_ms()
        intent = Intended(
            call_id=call.call.call_id,
            effect=effects.class_of(tool.effect),
            key=self._key(call, tool, bound),
            attempt=call.starts + 1,
            at_ms=now_ms,
            deadline_ms=now_ms + int(_longest_s(tool) * 1000),
        )
        return _Start(call.call.call_id, tool, bound, intent)

    def _key(self, call: OpenCall, tool: Tool[..., Any], bound: Bound) -> str:
        run = self._session.run
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
    ) -> Asked | _Work | None:
        assert call.intent
        call_id, now_ms = call.call.call_id, self._session.now_ms()
        if call_id not in self._gaps or now_ms < self._probe_at_ms.get(call_id, 0):
            return None
        timeouts = self._timeouts.get(call_id, 0)
        why = "It ran into its time limit." if timeouts else "No result of it is on record."
        why = self._change_of(call.intent, call, tool, bound) or self._doubts.get(call_id) or why
        if timeouts >= KEYED_STARTS or call_id in self._doubts:
            return self._ask_in_doubt(call, tool, bound.arguments, why)
        if self._change_of(call.intent, call, tool, bound):
            return self._ask_in_doubt(call, tool, bound.arguments, why)
        if call_id in self._verified:
            return self._start(call, tool, bound)
        match effects.on_gap(tool.effect, intent_at_ms=call.since_ms, now_ms=now_ms):
            case "run_again":
                return self._start(call, tool, bound)
            case "ask":
                return self._ask_in_doubt(call, tool, bound.arguments, why)
            case "probe":
                return _Probe(call_id, tool, bound, call.intent)
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

    def _unlock_ms(self, call: OpenCall) -> int:
        """From when on no worker that lost the run can still be about to send the call."""
        assert call.intent
        return call.intent.deadline_ms + int(self._deps.settings.doubt_grace_s * 1000)

    def _ask_in_doubt(
        self, call: OpenCall, tool: Tool[..., Any], arguments: str, why: str
    ) -> Asked:
        digest = arguments_digest(tool.name, tool.version, arguments)
        reason = f"The call was started and may have taken effect. {why}"
        return self._ask(call, "in_doubt", digest, reason, arguments)

    # -- requests for a person ----------------------------------------------------------------

    def _ask_question(self, call: OpenCall, bound: Bound) -> Asked:
        digest = arguments_digest(ASK_USER.name, ASK_USER.version, bound.arguments)
        options = tuple(bound.kwargs.get("options") or ())
        return self._ask(
            call, "question", digest, str(bound.kwargs["question"]), bound.arguments, options
        )

    def _ask(
        self,
        call: OpenCall,
        kind: AskKind,
        digest: str,
        reason: str,
        arguments: str,
        options: tuple[str, ...] = (),
    ) -> Asked:
        letter = {"approval": "a", "question": "q", "in_doubt": "d"}[kind]
        reason = clean_text(reason)
        asked = Asked(
            # From the journal position: a request that is created again is the same request. And
            # counted: a decided one stays decided, so asking anew needs an id of its own.
            ask_id=f"{letter}{call.call.call_id[1:]}" + (f"-{call.asks}" if call.asks else ""),
            call_id=call.call.call_id,
            kind=kind,
            digest=digest,
            reason=reason,
            unlock_ms=self._unlock_ms(call) if kind == "in_doubt" else 0,
        )
        question = Question(
            kind=kind,
            call_id=call.call.call_id,
            tool=call.call.name,
            arguments=arguments,
            reason=reason,
            effect=effects.class_of(self._agent.registry.get(call.call.name).effect),
            agent=self._session.run.agent,
            options=options,
        )
        return self._session.ask(asked, question)

    # -- running ------------------------------------------------------------------------------

    async def _launch(self, tasks: asyncio.TaskGroup, works: list[_Work]) -> None:
        """Put the intents on record, and only then start."""
        if any(isinstance(work, _Start) for work in works):
            await self._session.flush()
            await self._make_sure_of_lease()
        for work in works:
            self._gaps.discard(work.call_id)
            self._probe_at_ms.pop(work.call_id, None)
            self._verified.discard(work.call_id)  # said of the start before this one
            self._doubts.pop(work.call_id, None)
            name = f"{work.tool.name} {work.call_id}"
            self._running[work.call_id] = tasks.create_task(self._run(work), name=name)

    def _run(self, work: _Work) -> Coroutine[Any, Any, dispatch.Result | effects.ProbeResult]:
        context = self._context(work)
        if isinstance(work, _Probe):
            return run_probe(work.tool, context, work.bound.kwargs)
        return dispatch.run_call(work.tool, work.bound, context, clock=self._deps.clock)

    async def _make_sure_of_lease(self) -> None:
        """An acknowledged commit held the lease; a slow acknowledgement may have outlived it."""
        lease = self._session.lease
        if self._deps.heartbeat.may_start(lease):
            return
        renewals = await self._deps.store.renew([lease])
        if not renewals[lease.run_id].is_held:
            raise LeaseLost(lease.run_id)

    def _context(self, work: _Work) -> ToolContext:
        emit, run, call_id = self._deps.emit, self._session.run, work.call_id

        def progress(text: str) -> None:
            emit(LiveEvent(run.run_id, "progress", str(text), run.attempts, call_id))

        return ToolContext(
            run_id=run.run_id,
            call_id=call_id,
            idempotency_key=work.intent.key,
            attempt=work.intent.attempt,
            on_progress=progress,
            clock=self._deps.clock,
        )

    async def _wait(self) -> None:
        """Until a call ends, or mail comes: perhaps a decision for a call that waits."""
        session = self._session
        mail: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def came() -> None:
            if not mail.done():
                mail.set_result(None)

        session.on_mail = came
        try:
            with session.interruptible():
                if any(isinstance(signal, Decided) for signal in session.signals.values()):
                    return  # it came while something was flushed
                waited_for: set[asyncio.Future[Any]] = {*self._running.values()}
                if session.run.open_asks:
                    waited_for.add(mail)
                await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        finally:
            session.on_mail = None

    async def _stop_running(self) -> None:
        """Cancel what runs; what ended in time keeps its result."""
        for task in self._running.values():
            task.cancel()
        await asyncio.wait(self._running.values())
        for call_id, task in list(self._running.items()):
            if task.cancelled():
                del self._running[call_id]
        await self._collect()

    async def _collect(self) -> None:
        """Stage what ended calls came to, an entry each."""
        for call_id, task in list(self._running.items()):
            if not task.done():
                continue
            del self._running[call_id]
            ended = task.result()
            if isinstance(ended, dispatch.Result):
                fact = await self._after_run(call_id, ended)
            else:
                fact = await self._after_probe(call_id, ended)
            if fact:
                self._session.stage(Trigger.PROGRESSED, fact)

    async def _after_run(self, call_id: str, result: dispatch.Result) -> Settled | None:
        if result.is_effect_unknown:
            # Cut off is not the same as not done: nobody knows how far it came.
            self._timeouts[call_id] = self._timeouts.get(call_id, 0) + 1
            self._gaps.add(call_id)
            if result.is_still_running:
                self._unstopped.add(call_id)
            return None
        blob = await self._put_blob(result.full) if result.full is not None else ""
        return Settled(call_id, result.status, result.text, result.took_ms, blob)

    async def _put_blob(self, data: bytes) -> str:
        try:
            return await self._deps.store.put_blob(self._session.lease.run_id, data)
        except EntryTooLarge:
            return ""  # what the model is shown matters more than the whole of it

    async def _after_probe(self, call_id: str, found: effects.ProbeResult) -> Settled | None:
        call = self._session.run.call(call_id)
        unlock_ms = self._unlock_ms(call)
        if isinstance(found, effects.Done):
            tool = self._agent.registry.get(call.call.name)
            result = dispatch.shown_result(tool, found.result, 0, 1)
            return await self._after_run(call_id, result)
        self._gaps.add(call_id)
        if isinstance(found, effects.CannotTell):
            self._doubts[call_id] = clean_text(f"Its check could not tell: {found.reason}")
            return None
        if call_id in self._unstopped:
            self._doubts[call_id] = (
                "Its check says that nothing happened so far, but it could not be stopped and may "
                "still be running."
            )
            return None
        match effects.after_probe(found, now_ms=self._session.now_ms(), unlock_ms=unlock_ms):
            case "run_again":
                self._verified.add(call_id)
            case _:
                self._probe_at_ms[call_id] = unlock_ms
        return None
