"""How an agent's history is brought into its model's window: the settings, which combine."""

from __future__ import annotations

import msgspec

from fsm_agent.errors import BadAgent

SUMMARISE = (
    "You keep the notes of an agent whose conversation has become too long. Write down what is "
    "needed to go on without the earlier part: what was asked, what was found (names, numbers, "
    "paths, ids as they are), what was decided and why, what failed, what is still to do. "
    "No preamble, no advice."
)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What is left out is summed up by a model: a call of its own, on record and budgeted.

    `model` None means the agent's own.
    """

    max_tokens: int = 700
    model: str | None = None
    instructions: str = SUMMARISE


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What happens when the messages no longer fit, in this order.

    1. Results of tools that are older than the newest `fresh` groups are shown with their first
       and last parts, `trimmed_chars` in all. A group is a message, or a call with its results.
    2. The oldest groups are left out until `keep` of the budget is used, so that many turns share
       one beginning. The task stays, and so do pinned groups, the newest first, up to `pin_share`
       of the budget: what people said, and the results of `pin_tools`.
    3. With `summary`, a model sums up what was left out; else a note says how much it was.
    4. What is still too long is cut by the character: results first, the words of people only
       after the model has refused the request as too long.
    """

    keep: float = 0.75
    fresh: int = 6
    trimmed_chars: int = 600
    pin_share: float = 0.25
    pin_tools: tuple[str, ...] = ()
    summary: Summary | None = None

    def __post_init__(self) -> None:
        if not 0.1 <= self.keep <= 1 or not 0 <= self.pin_share <= 0.9:
            raise BadAgent("Context: keep must be 0.1 to 1, pin_share 0 to 0.9.")
        if self.fresh < 1 or self.trimmed_chars < 40:
            raise BadAgent("Context: fresh must be 1 or more, trimmed_chars 40 or more.")
        if self.summary and self.summary.max_tokens < 50:
            raise BadAgent("Summary: max_tokens must be 50 or more.")
