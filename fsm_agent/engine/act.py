"""ACT: bring each call of a batch to its one result, with an intent on record before a start."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from checkpoints.errors import (
    CheckpointError,
    EntryTooLarge,
    LeaseLost,
    NotDurable,
    StoreUnavailable,
)
from checkpoints.model import RunId
from checkpoints.shield import landed
from fsm_agent.capabilities.agent import Agent
from fsm_agent.capabilities.delegate import AgentTool
from fsm_agent.errors import AgentError, UsageError
from fsm_agent.run.content import clean_text
from fsm_agent.run.delta import Answered, AnyDelta, Failed, Hinted, Settled
from fsm_agent.run.record import OpenCall
from fsm_agent.run.signal import CancelRequested, Decided, Stirred
from fsm_agent.run.state import Trigger
from fsm_agent.tools import dispatch, effects
from fsm_agent.tools.registry import Tool

from .after import facts_of, fitted, report_of
from .asking import Request, ask_pause
from .calls import Probe, Scene, Sightings, Start, Work, put_off
from .children import Stuck, Waits, let_go, tell
from .deps import Deps
from .ending import ending
from .expiry import expire_due, soonest_s
from .files import cleaned, enclose
from .host import HostFailed, ask_host
from .mail import take_mail
from .outcome import Move, Outcome, Park
from .running import Ended, Runner
from .session import Interrupted, Session
from .tasks import task_group

log = structlog.get_logger(__name__)

LATE_S = 2.0  # that a start may come after its record, where nobody allows more for doubt


async def act(session: Session, agent: Agent, deps: Deps) -> Outcome:
    """Work on the batch until every call has a result, or all that is left waits for a person.

    A result is committed as it lands, except the last, which goes with what follows it.
    Raises UsageError if a call that was started or approved names a tool that is gone, or that
    takes other arguments now, once nothing else runs; and Interrupted when a cancel request came:
    running tools were cancelled and given a result.
    """
    return await _Batch(session, agent, deps).work()


class _Batch:
    def __init__(self, session: Session, agent: Agent, deps: Deps) -> None:
        self._session, self._agent, self._deps = session, agent, deps
        self._running: dict[str, asyncio.Task[Ended]] = {}
        self._runner = Runner(session, deps)
        self._seen = Sightings(gaps=set(session.inherited))
        self._stuck: AgentError | None = None  # stored work that this code cannot serve
        self._heard: set[str] = set()  # calls whose own work has come to its end here
        self._ending: Failed | None = None  # a deadline that the run does not outlive

    async def work(self) -> Outcome:
        try:
            return await self._work()
        except asyncio.CancelledError:
            await self._keep_what_ended()
            raise

    async def _keep_what_ended(self) -> None:
        """The process stops, or has lost the run: results that are there go on record, if they may,
        and that a call was not started after all.

        Results that may not be committed any more are told in an orphan report.
        """
        for call_id, task in self._running.items():
            if task.done() and not task.cancelled() and not task.exception():
                ended = task.result()
                if isinstance(ended, dispatch.Result):
                    self._runner.late[call_id] = ended
        self._running.clear()
        if self._runner.late or self._session.has_staged:
            with suppress(CheckpointError):
                await landed(self._put_late_on_record())

    async def _put_late_on_record(self) -> None:
        await self._take_in_late()
        if self._ending is None:  # else a hook failed, and the model must not see what it was given
            await self._session.flush()

    async def _take_in_late(self) -> None:
        late = self._runner.late
        for call_id, result in list(late.items()):
            del late[call_id]
            await self._take_in(call_id, result)

    async def _work(self) -> Outcome:
        interrupted = False
        async with task_group() as tasks:
            while True:
                await self._hear_people()
                if self._ending:
                    await self._stop_running()
                    break
                cancel = self._session.cancel
                if cancel:
                    await self._tell_children(cancel)
                works, has_said = ([], False) if cancel else self._advance()
                may_say_more = has_said and not works  # calls that are put off below are no news
                await self._put_intents_on_record(works)
                if self._is_alone(works):
                    await self._run_alone(works[0])
                    continue
                self._start(tasks, works)
                if not self._running:
                    if may_say_more:
                        continue  # what was said of one call may be all that its twin waits for
                    break
                try:
                    await self._flush_beside_running()
                    await self._wait()
                except Interrupted:
                    interrupted = True
                    await self._stop_running()
                    break
                await self._collect()
        if interrupted:
            raise Interrupted
        if self._ending:
            return await ending(self._session, self._agent, self._deps, self._ending, "ended")
        if self._stuck:
            await self._session.flush()
            raise self._stuck
        await let_go(self._session, self._deps, heard=self._heard)
        return self._conclude()

    def _conclude(self) -> Outcome:
        run = self._session.run
        if not run.has_unsettled_calls:
            return self._leave()
        deadlines = [ask.expires_ms for ask in run.open_asks if ask.expires_ms]
        deadlines += self._seen.again_at_ms.values()
        parked = self._seen.parked.values()
        deadlines += [waits.wake_ms for waits in parked if waits.wake_ms is not None]
        is_waiting = bool(run.open_asks) or any(waits.status == "waiting" for waits in parked)
        return Park("waiting" if is_waiting else "sleeping", min(deadlines) if deadlines else None)

    def _leave(self) -> Move:
        run = self._session.run
        if closing := run.closing:
            assert closing.result
            is_completed = closing.result.status == "success"
            return Move(Trigger.TERMINATED, (Answered(closing.result.text, is_completed),))
        report = report_of(run)
        return Move(Trigger.ACTED, (Hinted("failure", report),) if report else ())

    # -- decisions ----------------------------------------------------------------------------

    async def _hear_people(self) -> None:
        """Take what they decided, or what time decided for them."""
        await expire_due(self._session, self._deps)
        taken = take_mail(self._session, self._agent)
        self._seen.gaps -= taken.rerun
        for call in self._session.run.calls:
            call_id = call.call.call_id
            is_stirred = call.delegated and call.delegated.child in taken.stirred
            if is_stirred and self._seen.parked.pop(call_id, None):
                self._seen.gaps.add(call_id)
        self._ending = self._ending or taken.ending

    async def _tell_children(self, cancel: CancelRequested) -> None:
        """Pass a graceful request on to the child runs that are under way."""
        for call in self._session.run.calls:
            if call.delegated and call.call.call_id in self._running:
                await tell(self._deps.store, RunId(call.delegated.child), cancel)

    # -- one step for each call ---------------------------------------------------------------

    def _scene(self) -> Scene:
        grace_ms = int(self._deps.settings.doubt_grace_s * 1000)
        run, now_ms = self._session.run, self._session.now_ms()
        return Scene(run, self._agent, self._seen, now_ms, grace_ms, self._session.versioned)

    def _advance(self) -> tuple[list[Work], bool]:
        """Stage what can be said of each call now: the work that is to start, and whether anything
        was said."""
        works: list[Work] = []
        facts: list[AnyDelta] = []
        scene = self._scene()
        for call in scene.run.calls:
            if call.call.call_id in self._running or call.phase in ("settled", "waiting"):
                continue
            try:
                step = scene.next_step(call)
            except UsageError as error:
                self._stuck = error  # raised once the others are done: they must not be cut off
                continue
            if isinstance(step, (Start, Probe)):
                if not self._has_room(step.tool, works):
                    continue
                if isinstance(step, Start) and self._is_over_budget(call, works):
                    limit = self._session.run.limits.tool_calls
                    text = f"The call was not made: the limit of {limit} tool calls is reached."
                    facts.append(Settled(call.call.call_id, "error", text))
                    continue
                works.append(step)
            if isinstance(step, (Start, Request)) and step.judged:
                facts.append(step.judged)
            if isinstance(step, Start):
                facts.append(step.intent)
                if step.delegated and not call.delegated:
                    facts.append(step.delegated)
                if not call.is_counted:
                    numbers = step.judged.numbers if step.judged else {}
                    scene.ahead.append((step.tool.name, numbers))
            elif isinstance(step, Request):
                facts.append(self._session.ask(step.asked, step.question))
            elif isinstance(step, Settled):
                facts.append(step)
        if facts:
            self._session.stage(Trigger.PROGRESSED, *facts)
        return works, bool(facts)

    def _has_room(self, tool: Tool[..., Any], works: list[Work]) -> bool:
        if len(self._running) + len(works) >= self._agent.parallel_calls:
            return False
        if tool.concurrency is None:
            return True
        names = [self._session.run.call(call_id).call.name for call_id in self._running]
        names += [work.tool.name for work in works]
        return names.count(tool.name) < tool.concurrency

    def _is_over_budget(self, call: OpenCall, works: list[Work]) -> bool:
        run = self._session.run
        new = [w for w in works if isinstance(w, Start) and w.intent.attempt == 1]
        return call.starts == 0 and run.tool_calls + len(new) >= run.limits.tool_calls

    # -- running ------------------------------------------------------------------------------

    async def _put_intents_on_record(self, works: list[Work]) -> None:
        """Before anything starts, and with the lease still certain afterwards.

        Where the store was told to make sure that it keeps what it acknowledged, and cannot, calls
        that must not be made twice are put off: taken out of `works`. So are those whose record
        took so long that they could still be at work when 'run it again' unlocks: that lock counts
        from the record.
        """
        since_s = self._deps.clock.steady_s()
        starts = [work for work in works if isinstance(work, Start)]
        if starts:
            is_critical = any(start.intent.effect == "unsafe" for start in starts)
            try:
                await self._session.flush(is_critical=is_critical)
                await self._make_sure_of_lease()
            except NotDurable as error:
                wait_s = self._deps.settings.unconfirmed_retry_s
                works[:] = self._withhold(works, str(error), wait_s=wait_s)
                await self._make_sure_of_lease()
            except asyncio.CancelledError:
                self._withhold(works, "the worker was stopped before it began", wait_s=0.0)
                raise
            late_s = self._deps.clock.steady_s() - since_s
            if late_s > max(self._deps.settings.doubt_grace_s, LATE_S):
                why = f"the store took {late_s:.1f} s to put the start on record"
                works[:] = self._withhold(works, why, wait_s=0.0)
        for work in works:
            self._seen.forget(work.call_id)

    def _withhold(self, works: list[Work], why: str, *, wait_s: float) -> list[Work]:
        """Put off what must not be made twice, and return the rest of the work."""
        again_ms = self._session.now_ms() + int(wait_s * 1000)
        rest, facts = put_off(works, self._session.run, self._seen, why, again_ms=again_ms)
        if facts:
            log.warning("act.calls_withheld", calls=[fact.call_id for fact in facts], why=why)
            self._session.stage(Trigger.PROGRESSED, *facts)
        return rest

    def _is_alone(self, works: list[Work]) -> bool:
        """Whether there is one piece of work, and nothing else that could happen meanwhile."""
        waits = self._session.run.open_asks or self._seen.parked
        if len(works) != 1 or self._running or waits:
            return False
        return not isinstance(works[0].tool, AgentTool)  # a child is told of what people say

    async def _run_alone(self, work: Work) -> None:
        # In this task: most batches hold one call, and a task of its own is a third of its cost.
        try:
            with self._session.interruptible():
                ended = await self._runner.run(work)
        except Interrupted:
            await self._take_in_late()
            raise
        await self._take_in(work.call_id, ended)

    def _start(self, tasks: asyncio.TaskGroup, works: list[Work]) -> None:
        for work in works:
            name = f"{work.tool.name} {work.call_id}"
            self._running[work.call_id] = tasks.create_task(self._runner.run(work), name=name)

    async def _make_sure_of_lease(self) -> None:
        """An acknowledged commit held the lease; a slow acknowledgement may have outlived it."""
        lease = self._session.lease
        if self._deps.heartbeat.may_start(lease):
            return
        renewals = await self._deps.store.renew([lease])
        if not renewals[lease.run_id].is_held:
            raise LeaseLost(lease.run_id)

    async def _flush_beside_running(self) -> None:
        """Put on record what is staged. That copies do not follow stops no call that runs."""
        try:
            await self._session.flush()
        except NotDurable as error:
            log.warning("act.unconfirmed", why=str(error))

    async def _wait(self) -> None:
        """Until a call ends, or mail comes: perhaps a decision for a call that waits."""
        session = self._session
        mail: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def came() -> None:
            if not mail.done():
                mail.set_result(None)

        session.on_mail = came
        try:
            with session.finishing():
                if any(isinstance(said, Decided | Stirred) for said in session.signals.values()):
                    return  # it came while something was flushed
                waited_for: set[asyncio.Future[Any]] = {*self._running.values()}
                if session.run.open_asks or session.run.children:
                    waited_for.add(mail)
                await asyncio.wait(
                    waited_for,
                    timeout=soonest_s(session),
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            session.on_mail = None

    async def _stop_running(self) -> None:
        """Cancel what runs; what ended in time keeps its result."""
        for task in self._running.values():
            task.cancel()
        if self._running:
            await asyncio.wait(self._running.values())
        for call_id, task in list(self._running.items()):
            if task.cancelled():
                del self._running[call_id]
        await self._collect()
        await self._take_in_late()

    async def _collect(self) -> None:
        """Stage what ended calls came to, an entry each."""
        for call_id, task in list(self._running.items()):
            if not task.done():
                continue
            del self._running[call_id]
            await self._take_in(call_id, task.result())

    async def _take_in(self, call_id: str, ended: Ended) -> None:
        facts: tuple[AnyDelta, ...] = ()
        if isinstance(ended, Waits):
            self._seen.parked[call_id] = ended
        elif isinstance(ended, Stuck):
            self._stuck = ended.error  # raised once the others are done
        elif isinstance(ended, dispatch.Result):
            self._heard.add(call_id)
            facts = await self._after_run(call_id, ended)
        else:
            facts = await self._after_probe(call_id, ended)
        if facts:
            self._session.stage(Trigger.PROGRESSED, *facts)

    async def _after_run(self, call_id: str, result: dispatch.Result) -> tuple[AnyDelta, ...]:
        if result.is_effect_unknown:
            # Cut off is not the same as not done: nobody knows how far it came.
            self._seen.timeouts[call_id] = self._seen.timeouts.get(call_id, 0) + 1
            self._seen.gaps.add(call_id)
            if result.status == "error":
                self._seen.deaths[call_id] = result.text
            if result.is_still_running:
                self._seen.unstopped.add(call_id)
            return ()
        run = self._session.run
        if result.question:
            call = run.call(call_id)
            pause = ask_pause(run, call, self._agent.registry.get(call.call.name), result)
            return (self._session.ask(pause.asked, pause.question),)
        shown = fitted(run, call_id, result, self._agent.batch_output_chars)
        blob = await self._put_blob(shown.full) if shown.full is not None else ""
        files, notes = await enclose(
            self._session, self._agent, self._deps, run.call(call_id), result.files
        )
        # The answer of a run has no words but the tool's own.
        told = (shown.text,) if result.ends else filter(None, (shown.text, notes))
        result = msgspec.structs.replace(result, text="\n".join(told))
        facts = facts_of(call_id, result, blob, files)
        return await self._as_told_by_host(facts)

    async def _as_told_by_host(self, facts: tuple[AnyDelta, ...]) -> tuple[AnyDelta, ...]:
        """The facts of a result with the text that the host wants the model to see."""
        hooks, run = self._agent.hooks, self._session.run
        *details, settled = facts
        assert isinstance(settled, Settled)
        call = run.call(settled.call_id).call
        try:
            said = await ask_host(
                hooks.after_tool, "after_tool", hooks.timeout_s, run, call, settled
            )
        except HostFailed as error:
            self._ending = error.failed  # the result goes on record first: the tool has run
            return facts
        return facts if said is None else (*details, msgspec.structs.replace(settled, text=said))

    async def _put_blob(self, data: bytes) -> str:
        try:
            run_id = self._session.lease.run_id
            return await self._deps.store.put_blob(run_id, cleaned(self._deps, data))
        except (EntryTooLarge, StoreUnavailable):
            return ""  # what the model is shown matters more than the whole of it

    async def _after_probe(self, call_id: str, found: effects.ProbeResult) -> tuple[AnyDelta, ...]:
        call = self._session.run.call(call_id)
        unlock_ms = self._scene().unlock_ms(call)
        if isinstance(found, effects.Done):
            tool = self._agent.registry.get(call.call.name)
            result = dispatch.shown_result(tool, found.result, 0, 1)
            return await self._after_run(call_id, result)
        self._seen.gaps.add(call_id)
        if isinstance(found, effects.CannotTell):
            self._seen.doubts[call_id] = clean_text(f"Its check could not tell: {found.reason}")
            return ()
        if call_id in self._seen.unstopped:
            self._seen.doubts[call_id] = (
                "Its check says that nothing happened so far, but it could not be stopped and may "
                "still be running."
            )
            return ()
        match effects.after_probe(found, now_ms=self._session.now_ms(), unlock_ms=unlock_ms):
            case "run_again":
                self._seen.verified.add(call_id)
            case _:
                self._seen.again_at_ms[call_id] = unlock_ms
        return ()
