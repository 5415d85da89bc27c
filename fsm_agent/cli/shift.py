"""One process's work on one run: until it is over, or waits for a person who is not here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from checkpoints.errors import AskLocked, CheckpointError, DecisionRefused, RunBusy, RunClosed
from checkpoints.model import RunId
from fsm_agent.capabilities.agent import Agent
from fsm_agent.cli import asking, failures, process, remembered
from fsm_agent.cli.clean import cleaned, one_line
from fsm_agent.cli.ending import end
from fsm_agent.cli.opening import working
from fsm_agent.cli.person import operator
from fsm_agent.cli.process import Stopped, put, say
from fsm_agent.cli.settings import current
from fsm_agent.cli.views import View, view_for
from fsm_agent.errors import AgentError, UsageError
from fsm_agent.run import codec
from fsm_agent.run.delta import Replied
from fsm_agent.run.event import EntryEvent, Event
from fsm_agent.run.limits import Limits
from fsm_agent.runtime import Request, Result, Runtime
from fsm_agent.telling.early import turns
from fsm_agent.telling.words import seconds

BUSY_POLL_S = 0.25


@dataclass
class Shift:
    """One process's work on one run."""

    agent: Agent
    run_id: str
    path: str | None
    lease_s: float | None
    is_patient: bool = False
    accept_changes_by: str = ""  # who lets the run go on with changed code
    view: View = field(init=False)
    _is_on_record: bool = field(default=False, init=False)
    _limits: Limits | None = field(default=None, init=False)
    _waits_for: RunId | None = field(default=None, init=False)  # told of already

    def work(self, begin: Callable[[Runtime], Awaitable[str]]) -> int:
        """Begin, then work until the run is over or waits. The exit code."""
        self.view = view_for(sys.stderr, is_json=current().is_json)
        try:
            return process.run(lambda: self._work(begin))
        except Stopped as stopped:
            self.view.rest()
            if self.run_id:
                say(f"stopped, and given back. Go on: {self._resume()}")
            return stopped.code
        except (AgentError, CheckpointError) as error:
            self.view.rest()
            raise self._with_way_on(error) from error
        finally:
            self.view.rest()

    def _resume(self) -> str:
        return f"fsm-agent resume {self.run_id}{current().store_option}"

    def _with_way_on(self, error: AgentError | CheckpointError) -> Exception:
        """The error, and how to go on where the run is on record."""
        is_ours = self.run_id and not isinstance(error, (RunBusy, RunClosed))
        if not is_ours or not self._is_on_record:
            return error
        trouble = failures.trouble_of(error)
        line = f"{trouble.line.rstrip('.')}. Run {self.run_id} is kept as it was: {self._resume()}"
        return failures.CliError(line, trouble.code)

    async def _work(self, begin: Callable[[Runtime], Awaitable[str]]) -> int:
        async with working(self._hear, lease_s=self.lease_s) as runtime:
            self.run_id = await begin(runtime)
            self._is_on_record = True
            if self.path:
                remembered.remember(current().store, self.agent, self.path, self.run_id)
            await self._open_view(runtime)
            result = await self._until_it_rests(runtime)
            self.view.rest()
            requests = await runtime.requests(self.run_id) if result.asks else []
        return end(result, view=self.view, requests=requests, limits=self._limits)

    def _hear(self, event: Event) -> None:
        self.view.hear(event)
        is_shown = sys.stdout.isatty() and sys.stderr.isatty()  # it was streamed there
        if current().is_json or is_shown or not isinstance(event, EntryEvent):
            return
        for fact in event.record.deltas if event.run_id == self.run_id else ():
            if isinstance(fact, Replied) and self._is_for_the_person(fact):
                put(cleaned(fact.text))  # as the answer will be

    def _is_for_the_person(self, reply: Replied) -> bool:
        return reply.violation is None and reply.label in self.agent.capability.spoken

    async def _open_view(self, runtime: Runtime) -> None:
        history = await runtime.history(self.run_id)
        for event in history:
            self.view.recall(event)
        created = history[0].record.deltas[0]
        agent = one_line(self.agent.name, 64)
        limits = self._limits = getattr(created, "limits", self.agent.limits)
        if not current().is_json:
            say(f"run {self.run_id}  {agent}, budget {turns(limits.turns)}")

    async def _until_it_rests(self, runtime: Runtime) -> Result:
        """Work on, through sleeps and through questions that are answered here."""
        while True:
            result = await self._claimed(runtime)
            if result.status == "waiting" and process.is_terminal() and not current().is_json:
                self.view.rest()
                if await self._decide_here(runtime):
                    continue
            if result.status not in ("sleeping", "ready"):
                return result
            await self._sleep(runtime)

    async def _claimed(self, runtime: Runtime) -> Result:
        is_told = False
        while True:
            try:
                return await runtime.work(
                    self.run_id, self.agent, accept_changes_by=self.accept_changes_by
                )
            except RunClosed:
                return await runtime.result(self.run_id)
            except RunBusy as busy:
                if not self.is_patient:
                    raise
                if not is_told:
                    is_told = True
                    until = failures.clock(busy.until_ms)
                    self.view.note(
                        "waiting", f"{one_line(busy.owner, 64)} holds it until {until} or longer"
                    )
                await asyncio.sleep(BUSY_POLL_S)

    async def _sleep(self, runtime: Runtime) -> None:
        head = await runtime.store.head(RunId(self.run_id))
        wait_ms = max(0, (head.due_ms or 0) - await runtime.store.now_ms())
        thread = codec.decode_snapshot(head.snapshot).thread
        active = await runtime.store.active_in(thread) if thread else None
        if active not in (None, self.run_id):
            if active != self._waits_for:
                why = f"for its turn: run {active} of the thread {thread} is active"
                self.view.note("waiting", one_line(why, 300))
            self._waits_for = active
        elif wait_ms > 500:
            self.view.note("think", f"the run sleeps for {seconds(wait_ms)}")
        await asyncio.sleep(wait_ms / 1000)

    async def _decide_here(self, runtime: Runtime) -> bool:
        """Ask the person at this terminal. Whether there is something new to work on."""
        news = []
        for request in await runtime.requests(self.run_id):
            asking.show(request)
            news.append(await self._decide_one(runtime, request))
        return any(news)

    async def _decide_one(self, runtime: Runtime, request: Request) -> bool:
        """Ask until a decision is recorded, here or by somebody else. False: not now."""
        while choice := asking.ask(request):
            try:
                await runtime.decide(
                    request.run_id,
                    request.ask_id,
                    choice.verb,
                    by=operator(),
                    reason=choice.reason,
                    arguments=choice.arguments,
                    answer=choice.answer,
                    digest=request.digest,
                    agent=self.agent,
                    channel="cli",
                    auth="os_user",
                )
            except AskLocked as error:
                say(f"  {one_line(str(error), 500)}")
            except DecisionRefused as error:
                say(f"  {one_line(failures.trouble_of(error).line, 500)}")
                return True
            except UsageError as error:
                say(f"  {one_line(str(error), 500)}")
            else:
                return True
        return False
