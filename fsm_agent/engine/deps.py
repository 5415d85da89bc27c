"""What the engine reaches the world through: handed in, so that a test can hand in another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from checkpoints.leases import Heartbeat
from checkpoints.store import Store
from fsm_agent.clock import Clock, SystemClock
from fsm_agent.llm.model import Model
from fsm_agent.run.event import Event


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Times of the engine, in seconds. The defaults are safe on a laptop."""

    lease_s: float = 15.0  # a run whose worker died is taken over after this long
    doubt_grace_s: float = 5.0  # added to a tool's deadline before 'run it again' unlocks
    park_after_s: float = 5.0  # longer waits release the run instead of holding a worker
    retry_base_s: float = 0.5  # first back-off after a model failure, doubled each time
    retry_cap_s: float = 60.0
    max_recoveries: int = 5  # takeovers without progress before the run is given up
    inline_chars: int = 32_000  # longer tool output is kept as a blob, and cut for the model


def _nobody(event: Event) -> None:
    """The listener of a run that nobody watches."""


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
