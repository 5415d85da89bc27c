"""The demo's story: a run, a SIGKILL in the middle of a tool, and how it goes on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from checkpoints.model import RunId
from fsm_agent.cli import asjson, asking, failures, remembered
from fsm_agent.cli.asking import Choice
from fsm_agent.cli.failures import CliError
from fsm_agent.cli.opening import looking
from fsm_agent.cli.person import operator
from fsm_agent.cli.process import put
from fsm_agent.cli.settings import current
from fsm_agent.cli.views import View
from fsm_agent.run.delta import Intended
from fsm_agent.runtime import Request, Runtime
from fsm_agent.testing.model_server import ModelServer

from . import verdict
from .script import SCRIPT, TASK
from .stage import Stage
from .workers import Worker, worker

LIMIT_S = 60.0  # of each wait; the whole takes some 15 s
POLL_S = 0.02
BEFORE_KILL_S = 0.5  # so that a person sees the tool running


@dataclass
class Play:
    """One performance."""

    stage: Stage
    view: View
    is_interactive: bool
    _killed: Worker | None = None
    _cut: Intended | None = None
    _run_id: str = field(default="", init=False)

    async def play(self) -> int:
        """From the first word to the last; the exit code."""
        with ModelServer(SCRIPT, models=("scripted",)).in_thread() as server:
            async with looking() as runtime:
                agent = remembered.load(self.stage.agent_path)
                self._run_id = await runtime.start(agent, TASK, requester="ines")
                remembered.remember(self.stage.store, agent, self.stage.agent_path, self._run_id)
                async with self._watched(runtime):
                    await self._until_killed(runtime, server.base_url)
                    await self._taken_over(runtime, server.base_url)
                    if not await self._decided(runtime):
                        return failures.WAITING
                    await self._finished(server.base_url)
                return await self._judged(runtime)

    @asynccontextmanager
    async def _watched(self, runtime: Runtime) -> AsyncIterator[None]:
        """Show the run while the body goes on: as any other process would see it."""

        async def watch() -> None:
            async for event in runtime.watch(self._run_id):
                self.view.hear(event)

        watcher = asyncio.create_task(watch(), name="demo watches")
        try:
            yield
            # The last entries may still be on their way to the screen.
            await asyncio.wait([watcher], timeout=2.0)
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])
            self.view.rest()
        if not watcher.cancelled() and (error := watcher.exception()):
            raise error

    # -- the acts -----------------------------------------------------------------------------

    async def _until_killed(self, runtime: Runtime, base_url: str) -> None:
        async with worker(self.stage, self._run_id, 1, base_url) as first:
            self.view.note("demo", f"worker 1 is process {first.pid}", "quiet")
            await self._until(lambda: bool(self.stage.sendings("credit_note")), first)
            sent = time.monotonic()
            await asyncio.sleep(BEFORE_KILL_S)
            await first.kill()
            after = time.monotonic() - sent
            # Read before anybody else works on it: what the dead worker left on record.
            history = await runtime.history(self._run_id)
            self._cut = verdict.cut_off(history, "send_credit_note")
            self._killed = first
        self.view.rest()
        self.view.note("✖ SIGKILL", "to worker 1, while send_credit_note ran", "bad")
        if self._cut:
            self.view.note(
                "",
                f"{after:.1f} s after the bank took the credit note, and before its result was on"
                " record. On record is the intent: this call was started, with this key.",
            )

    async def _taken_over(self, runtime: Runtime, base_url: str) -> None:
        head = await runtime.store.head(RunId(self._run_id))
        left_s = max(0.0, (head.lease_until_ms - await runtime.store.now_ms()) / 1000)
        async with worker(self.stage, self._run_id, 2, base_url) as second:
            self.view.note(
                "demo",
                f"worker 2 is process {second.pid}; the dead one's lease runs out in"
                f" {left_s:.1f} s",
                "quiet",
            )
            code = await second.ended()
        if code != failures.WAITING:
            raise CliError(f"worker 2 ended with {code}. See {self._log(2)}.")

    async def _decided(self, runtime: Runtime) -> bool:
        """Have the refund decided. False: the person would not."""
        requests = await runtime.requests(self._run_id)
        if len(requests) != 1:
            raise CliError(f"the run asks for {len(requests)} decisions. See {self._log(2)}.")
        await asyncio.sleep(0.3)  # let the watcher show what led here
        self.view.rest()
        self.view.note("demo", "worker 2 has ended: nothing runs while a person thinks", "quiet")
        asking.show(requests[0])
        choice = self._choice(requests[0])
        if choice is None:
            return False
        by = operator() if self.is_interactive else "the demo"
        await runtime.decide(
            requests[0].run_id,
            requests[0].ask_id,
            choice.verb,
            by=by,
            reason=choice.reason,
            arguments=choice.arguments,
            answer=choice.answer,
            digest=requests[0].digest,
            agent=remembered.load(self.stage.agent_path),
        )
        return True

    def _choice(self, request: Request) -> Choice | None:
        if self.is_interactive:
            return asking.ask(request, default="a")
        self.view.note("demo", "nobody is asked here: the demo approves by itself", "warn")
        return Choice("approve", reason="played by the demo")

    async def _finished(self, base_url: str) -> None:
        async with worker(self.stage, self._run_id, 3, base_url) as third:
            self.view.note("demo", f"worker 3 is process {third.pid}", "quiet")
            await third.ended()

    # -- the end ------------------------------------------------------------------------------

    async def _judged(self, runtime: Runtime) -> int:
        from fsm_agent.cli.demo.curtain import close

        result = await runtime.result(self._run_id)
        events = await runtime.history(self._run_id)
        paid = 0 if verdict.was_refused(events) else 1
        notes, refunds = self.stage.sendings("credit_note"), self.stage.sendings("refund")
        effects = [
            verdict.count("credit note (keyed)", notes, expected=1),
            verdict.count("refund (unsafe)", refunds, expected=paid),
        ]
        checks = verdict.checks(
            result,
            events,
            killed_code=self._killed.returncode if self._killed else None,
            cut=self._cut,
            effects=effects,
        )
        is_true = all(check.is_so for check in checks)
        if current().is_json:
            told = [check._asdict() for check in checks]
            counts = [effect._asdict() for effect in effects]
            put(asjson.line({"event": "verdict", "is_so": is_true, "checks": told,
                             "effects": counts, "folder": str(self.stage.folder)}))  # fmt: skip
        else:
            close(self.stage, result, events, effects, checks, has_answer=self.view.has_answer)
        return failures.DONE if is_true else failures.FAILED

    async def _until(self, holds: object, busy: Worker) -> None:
        assert callable(holds)
        until = time.monotonic() + LIMIT_S
        while not holds():
            if busy.returncode is not None or time.monotonic() > until:
                raise CliError(
                    f"worker {busy.number} ended early ({busy.returncode})."
                    f" See {self._log(busy.number)}."
                )
            await asyncio.sleep(POLL_S)

    def _log(self, number: int) -> str:
        return os.fspath(self.stage.folder / f"worker-{number}.log")
