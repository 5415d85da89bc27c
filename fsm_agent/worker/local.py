"""A worker for one machine: it looks at the due index, and works on what it has an agent for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import structlog

from checkpoints.errors import CheckpointError, LeaseLost, RunBusy, RunClosed, StoreUnavailable
from checkpoints.model import RunId
from checkpoints.store import Store
from fsm_agent.capabilities.agent import Agent
from fsm_agent.engine.children import rouse
from fsm_agent.errors import AgentError, NewerRecord
from fsm_agent.run import codec

log = structlog.get_logger(__name__)

BATCH = 16  # runs looked up at once
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Works(Protocol[Result_co]):
    """What a worker needs of a runtime."""

    @property
    def store(self) -> Store: ...

    async def work(self, run_id: str, agent: Agent) -> Result_co: ...


async def work_due_once(
    runtime: Works[Result],
    agents: Mapping[str, Agent],
    *,
    on_result: Callable[[Result], Any] = lambda result: None,
) -> int:
    """Work on every run that is due now and whose agent is among `agents` (by name), one by one.

    Returns how many were worked on. A run that another worker holds, or that cannot be worked on
    here, is left as it is, with a log line that says why. Raises StoreUnavailable.
    """
    done = 0
    seen: set[RunId] = set()
    while True:
        # More with each round: runs that cannot be worked on here must not hide the others.
        found = await runtime.store.due(limit=len(seen) + BATCH)
        batch = [run_id for run_id in found if run_id not in seen]
        if not batch:
            return done
        for run_id in batch:
            seen.add(run_id)
            result = await _work_on(runtime, agents, run_id)
            if result is not None:
                done += 1
                on_result(result)


async def _work_on(
    runtime: Works[Result], agents: Mapping[str, Agent], run_id: RunId
) -> Result | None:
    try:
        head = await runtime.store.head(run_id)
        told = codec.decode_snapshot(head.snapshot)
        name = told.agent
        if told.parent:
            # Its parent's worker drives it; that one may not have heard that it can go on.
            await rouse(runtime.store, told.parent, run_id, f"{head.seq}-{head.mail}")
            return None
        if name not in agents:
            log.info("worker.run_skipped", run_id=run_id, agent=name, why="no such agent here")
            return None
        return await runtime.work(run_id, agents[name])
    except (RunBusy, RunClosed, LeaseLost, NewerRecord) as error:
        log.info("worker.run_skipped", run_id=run_id, why=str(error))
    except StoreUnavailable:
        raise
    except (AgentError, CheckpointError) as error:
        log.error("worker.run_failed", run_id=run_id, why=str(error))
    except Exception as error:
        # A bug of one agent's code must not stop the others' runs; this one was given back.
        log.error("worker.run_failed", run_id=run_id, why=repr(error), exc_info=True)
    return None
