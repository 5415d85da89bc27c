"""Breadth first through everything that can happen: what breaks, breaks in the fewest moves."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .moves import Explored
from .rules import Bounds, Rules
from .state import State, beginning


@dataclass(frozen=True)
class Finding:
    """What an exploration came to."""

    broken: str  # the promise that does not hold, or ''
    states: int
    depth: int  # moves to the broken promise, or of the longest way
    is_exhaustive: bool  # nothing was left out
    took_s: float
    way: tuple[str, ...] = ()  # the moves that lead there

    @property
    def result(self) -> str:
        """In words."""
        if self.broken:
            return self.broken
        return "safe, exhaustive" if self.is_exhaustive else "safe as far as it went"


def explore(rules: Rules, bounds: Bounds, *, max_states: int = 5_000_000) -> Finding:
    """All states within the bounds, or until a promise is broken or there are `max_states`."""
    began = time.perf_counter()
    world = Explored(rules, bounds)
    start = beginning(bounds)
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    layer, depth = [start], 0

    def found(broken: str, depth: int, last: State, *more: str, is_all: bool = False) -> Finding:
        took_s = time.perf_counter() - began
        way = (*_way(came_from, last), *more) if broken else ()
        return Finding(broken, len(came_from), depth, is_all, took_s, way)

    while layer:
        following: list[State] = []
        for state in layer:
            is_end = True
            for move in world.moves(state):
                is_end = False
                if move.broken:
                    return found(move.broken, depth + 1, state, move.words)
                if move.state not in came_from:
                    came_from[move.state] = (state, move.words)
                    following.append(move.state)
            if is_end and (why := world.stuck(state)):
                return found(why, depth, state)
            if len(came_from) > max_states:
                return found("", depth, state)
        layer, depth = following, depth + 1
    return found("", depth - 1, start, is_all=True)


def _way(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    words: list[str] = []
    while step := came_from[state]:
        state, said = step
        words.append(said)
    return words[::-1]
