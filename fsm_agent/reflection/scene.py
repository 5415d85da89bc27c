"""What policies may look at besides the run, and the settings they go by."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fsm_agent.errors import BadAgent
from fsm_agent.run.delta import Assessed
from fsm_agent.run.record import KEPT_SCORES, Run

from .verdict import Verdict


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn's progress is scored, and what follows from scores that stay low.

    A score is 0 to 1, the weighted mean of five parts: `tools` (how many different ones of late),
    `arguments` (calls that were not made before), `information` (results that say something new),
    `confidence` (what the model says of itself, in English or Chinese) and `retries` (nothing
    that has failed is tried again as it was). A turn is low when the mean of the last `window`
    scores is below `threshold`. `warn`, `steer` and `stop` are how many low turns in a row lead
    to each step of the ladder; 0 leaves a step out.
    """

    tools: float = 0.05
    arguments: float = 0.3
    information: float = 0.5
    confidence: float = 0.05
    retries: float = 0.1
    window: int = 3
    threshold: float = 0.3
    warn: int = 2
    steer: int = 4
    stop: int = 6

    def __post_init__(self) -> None:
        weights = (self.tools, self.arguments, self.information, self.confidence, self.retries)
        if min(weights) < 0 or sum(weights) <= 0:
            raise BadAgent("the weights of Progress must be 0 or more, and not all of them 0.")
        if not 1 <= self.window <= KEPT_SCORES or not 0 <= self.threshold <= 1:
            raise BadAgent(f"Progress: window must be 1 to {KEPT_SCORES}, threshold 0 to 1.")
        if min(self.warn, self.steer, self.stop) < 0:
            raise BadAgent("Progress: warn, steer and stop must be 0 or more turns.")


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy gets besides the run. `allowed` are labels, for the words of a correction."""

    now_ms: int = 0
    allowed: tuple[str, ...] = ()
    may_rescue: bool = True
    next_reserve_tokens: int = 0  # what the next model call would set aside
    next_reserve_micros: int = 0  # of money
    progress: Progress = Progress()
    may_repeat: tuple[str, ...] = ()  # tools whose repeats are no loop, such as one that waits
    assessed: Assessed | None = None  # of the turn just made; None: it is not scored


Policy = Callable[[Run, Scene], Verdict]
