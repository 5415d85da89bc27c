"""One piece of work of a batch under way: and what its tool is handed."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import structlog

from fsm_agent.capabilities.delegate import AgentTool
from fsm_agent.run.event import LiveEvent
from fsm_agent.tools import dispatch, effects
from fsm_agent.tools.context import ToolContext
from fsm_agent.tools.probe import run_probe

from .calls import Probe, Start, Work
from .children import Stuck, Waits, work_on_child
from .deps import Deps
from .session import Session

log = structlog.get_logger(__name__)

Ended = dispatch.Result | effects.ProbeResult | Waits | Stuck


class Runner:
    """Runs the work of one batch, each piece in a task of the caller's.

    `late` has the results of calls that came to their end while they were being cancelled.
    """

    def __init__(self, session: Session, deps: Deps) -> None:
        self._session, self._deps = session, deps
        self.late: dict[str, dispatch.Result] = {}

    def run(self, work: Work) -> Coroutine[Any, Any, Ended]:
        """Whatever the work comes to. Its intent is on record already."""
        context = self._context(work)
        if isinstance(work, Probe):
            return run_probe(work.tool, context, work.bound.kwargs)

        if isinstance(work.tool, AgentTool):
            task = str(work.bound.kwargs["task"])
            return work_on_child(self._session, work.call_id, work.tool, task, self._deps)
        return self._call(work, context)

    async def _call(self, work: Start, context: ToolContext) -> dispatch.Result:
        def left_behind(running: object) -> None:
            log.warning("tool.left_behind", tool=work.tool.name, call_id=work.call_id)

        def late(result: dispatch.Result) -> None:
            self.late[work.call_id] = result

        # It should not block the event loop, but if it does, then for no longer than this.
        with self._deps.heartbeat.allowing(work.tool.timeout_s):
            return await dispatch.run_call(
                work.tool,
                work.bound,
                context,
                clock=self._deps.clock,
                on_left_behind=left_behind,
                on_late=late,
            )

    def _context(self, work: Work) -> ToolContext:
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
