"""What the engine reaches the world through: handed in, so that a test can hand in another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from checkpoints.leases import Heartbeat
from checkpoints.model import RunId
from checkpoints.store import Store
from fsm_agent.capabilities.agent import Agent
from fsm_agent.clock import Clock, SystemClock
from fsm_agent.llm.model import Model
from fsm_agent.run.event import Event
from fsm_agent.run.record import Run
from fsm_agent.run.redaction import Redactor

from .outcome import Park


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Times of the engine, in seconds. The defaults are safe on a laptop."""

    lease_s: float = 15.0  # a run whose worker died is taken over after this long
    doubt_grace_s: float = 5.0  # added to a tool's deadline before 'run it again' unlocks
    park_after_s: float = 5.0  # longer waits release the run instead of holding a worker
    retry_base_s: float = 0.5  # first back-off after a model failure, doubled each time
    retry_cap_s: float = 60.0
    outage_retry_s: float = 900.0  # until a worker looks again after `limits.failures` in a row
    unconfirmed_retry_s: float = 5.0  # until a call is tried again that the store did not confirm
    # How long a finished run is kept, where its agent does not say; None: until it is purged. A run
    # that works for another one is kept until then too: its parent may read it late.
    keep_s: float | None = None
    tidy_s: float = (
        30.0  # between two looks at finished runs: fold them, remove the expired; 0: none
    )
    max_recoveries: int = 5  # takeovers without progress before the run is given up


def _nobody(event: Event) -> None:
    """The listener of a run that nobody watches."""


class WorkOn(Protocol):
    """Claims a run and drives it: see `fsm_agent.engine.resume.work_on`."""

    def __call__(
        self, run_id: RunId, agent: Agent, deps: Deps, *, owner: str
    ) -> Awaitable[tuple[Run, Park | None]]: ...


async def _nobody_works(
    run_id: RunId, agent: Agent, deps: Deps, *, owner: str
) -> tuple[Run, Park | None]:
    raise RuntimeError("these Deps were made without work_on: no child run can be driven")


T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True)
class Deps:
    """Everything that a handler may use besides the run itself."""

    store: Store
    model: Model
    heartbeat: Heartbeat
    new_id: Callable[[], str]
    clock: Clock = field(default_factory=SystemClock)
    jitter: Callable[[], float]  # 0 to 1
    emit: Callable[[Event], None] = _nobody
    settings: EngineSettings = field(default_factory=EngineSettings)
    on_notices: Callable[[], None] | None = None  # notices were committed; None: nobody is told
    accepted_by: str = ""  # who lets runs go on with changed code; '': as `Agent.on_change` says
    redactor: Redactor | None = None  # takes secrets out of all that is put on record
    work_on: WorkOn = _nobody_works  # resume's own: a child run is driven like any other

    def clean(self, struct: T) -> T:
        """A struct of texts without secrets, as it may be kept."""
        return self.redactor.struct(struct) if self.redactor else struct

    def clean_words(self, text: str) -> str:
        """Words of a person or a tool without secrets."""
        return self.redactor.text(text) if self.redactor else text
