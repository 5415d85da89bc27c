"""What model calls do to a run's accounts: reserves, tokens, money, and what estimates learn."""

from __future__ import annotations

from msgspec.structs import replace

from .content import Usage
from .delta import Began, ModelFailed, Reserved
from .value import Run

SHRINK = 0.6  # of a request that was too long for the model
LEARNING = 0.5  # how much of a new token count goes into the correction of estimates
SCALES = (0.25, 4.0)  # beyond them a count says nothing of how text becomes tokens


def spend_reserve(run: Run) -> Run:
    """A reserve that nobody settled is that of an attempt that died: perhaps billed."""
    return replace(
        run,
        spent_tokens=run.spent_tokens + run.reserved_tokens,
        reserved_tokens=0,
        spent_micros=run.spent_micros + run.reserved_micros,
        reserved_micros=0,
    )


def fold_attempt(run: Run, began: Began) -> Run:
    run = replace(
        spend_reserve(run),
        attempts=began.attempt,
        reserved_tokens=began.reserve_tokens,
        wake_ms=0,
        purpose="turn",
        asked_tokens=0,
    )
    if not isinstance(began, Reserved):
        return run
    return replace(
        run,
        reserved_micros=began.micros,
        purpose=began.purpose,
        asked_tokens=began.prompt_tokens,
    )


def settled_call(run: Run, usage: Usage) -> Run:
    """A model call has ended: it cost this, and its reserve is free again."""
    return replace(
        run,
        spent_tokens=run.spent_tokens + usage.total_tokens,
        reserved_tokens=0,
        reserved_micros=0,
        token_scale=_learned(run, usage),
        asked_tokens=0,
    )


def ceiling(run: Run, failed: ModelFailed) -> int:
    """What a request may hold from here on: clearly less than what the model has refused."""
    if failed.kind != "context_length" or not run.asked_tokens:
        return run.most_tokens
    return max(1, int(run.asked_tokens * SHRINK))


def _learned(run: Run, usage: Usage) -> float:
    """How the provider's count of the request corrects our estimates from here on."""
    if usage.is_estimate or not run.asked_tokens or not usage.prompt_tokens:
        return run.token_scale
    counted = usage.prompt_tokens / run.asked_tokens
    if not SCALES[0] <= counted <= SCALES[1]:
        return run.token_scale
    return round(run.token_scale + LEARNING * (counted - run.token_scale), 3)
