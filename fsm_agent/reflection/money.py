"""What model calls cost, by a table of prices that the user supplies."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from fsm_agent.errors import BadAgent

ANY_MODEL = "*"


class Price(msgspec.Struct, frozen=True):
    """Prices of a model for a million tokens, in any one currency."""

    input: float
    output: float
    cached: float | None = None  # of input that the provider had kept; None: as `input`

    def __post_init__(self) -> None:
        for amount in (self.input, self.output, self.cached or 0.0):
            if not math.isfinite(amount) or amount < 0:
                raise BadAgent(f"{amount} is no price for a million tokens. Use 0 or more.")

    def micros(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> int:
        """The cost in millionths of the currency, rounded up."""
        cached = min(cached_tokens, prompt_tokens)
        kept = self.input if self.cached is None else self.cached
        return math.ceil(
            (prompt_tokens - cached) * self.input + cached * kept + completion_tokens * self.output
        )


Prices = Mapping[str, Price]


def price_of(prices: Prices, model: str | None) -> Price | None:
    """The price of a model; "*" in the table stands for every other one."""
    return prices.get(model or ANY_MODEL) or prices.get(ANY_MODEL)
