"""What a run has spent on each tool so far: calls that may run, and sums of their numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

Numbers = dict[str, int | float]  # by argument
_MOST = 2**63 - 1  # what a record can hold as a whole number


class SoFar(msgspec.Struct, frozen=True):
    """What a rule may look at besides a call's arguments: `so_far["amount"]` is a sum.

    It counts the calls of the same tool, in the same run, that ran or were approved.
    """

    calls: int = 0
    sums: Numbers = {}

    def __getitem__(self, argument: str) -> int | float:
        return self.sums.get(argument, 0)

    def plus(self, numbers: Numbers) -> SoFar:
        """With one more call. A number below zero adds nothing: it would make room for others."""
        sums = dict(self.sums)
        for name, number in numbers.items():
            sums[name] = sums.get(name, 0) + max(0, number)
        return SoFar(self.calls + 1, sums)


def numbers_of(arguments: Mapping[str, Any]) -> Numbers:
    """The arguments that can be summed. Not booleans, and nothing inside of lists or objects."""
    found: Numbers = {}
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if isinstance(value, int) and abs(value) > _MOST:
            value = math.copysign(1e300, value)  # beyond every limit, whatever is added to it
        found[name] = value
    return found
