"""Whether an agent's code may go on with a run that other code began."""

from __future__ import annotations

import structlog

from fsm_agent.capabilities.agent import Agent
from fsm_agent.errors import CodeChanged
from fsm_agent.run.delta import Versioned
from fsm_agent.run.record import Run
from fsm_agent.run.versions import changes

log = structlog.get_logger(__name__)


def changes_for(run: Run, agent: Agent) -> tuple[str, ...]:
    """In what the agent differs from the code that worked on the run last. Nothing for a run
    that does not say."""
    return changes(run.versioned.parts, agent.parts()) if run.versioned else ()


def taken_up(run: Run, agent: Agent, *, accepted_by: str) -> Versioned | None:
    """The fact to record where the code is not the one that worked on the run last.

    Raises CodeChanged, naming each part, where the agent's policy is to park and nobody accepted.
    """
    found = changes_for(run, agent)
    if accepted_by and (found or not run.versioned or not run.versioned.by):
        return Versioned(agent.parts(), accepted_by)
    if not found:
        return None
    if agent.on_change == "park":
        raise CodeChanged(parked(run, found))
    if agent.on_change == "warn":
        log.warning("run.code_changed", run_id=run.run_id, seq=run.seq, changes=list(found))
    return Versioned(agent.parts())


def parked(run: Run, found: tuple[str, ...]) -> str:
    """Why the run waits for an operator, in words."""
    return (
        f"run {run.run_id!r} stands in {run.state} after entry {run.seq}, and the code of its agent"
        f" {run.agent!r} is another one now: {', '.join(found)}. Go on with the code that had it,"
        " or accept the change: resume --accept-changes"
    )


def has_let_go(versioned: Versioned | None, tool: str) -> bool:
    """Whether a person accepted that the tool is gone."""
    return bool(versioned and versioned.by and f"tool {tool}" not in versioned.parts)
