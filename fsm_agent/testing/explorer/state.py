"""One moment of the explored world."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .rules import Bounds
from .scripts import Entry, Nonce, Request, Stored

Place = Literal[
    "idle",  # looks for a run to claim
    "claiming",
    "committing",
    "may start",  # its intent is acknowledged. A pause can always come here, after every check
    "dead",
    "left",  # it met a store that forgot, and works on this run no more
]


class Worker(NamedTuple):
    """A worker, and what it believes."""

    place: Place = "idle"
    claims: int = 0
    token: int = 0
    view: tuple[Entry, ...] = ()  # the journal as far as it knows
    pending: Request | None = None
    attempt: int = 0  # of the call under way: an answer to an earlier one is not heard
    known: int = 0  # the highest seq that it was told is stored


class Sent(NamedTuple):
    """A request on its way: a claim, or a commit."""

    worker: int
    nonce: Nonce
    attempt: int
    commit: Request | None = None


class Answer(NamedTuple):
    """An answer on its way."""

    worker: int
    attempt: int
    word: str
    token: int
    writes: int


class Left(NamedTuple):
    """The faults that may still happen."""

    messages: int
    expired: int
    crashes: int
    stops: int
    failovers: int


class State(NamedTuple):
    """Everything. Equal states have equal futures."""

    stored: Stored
    workers: tuple[Worker, Worker]
    sent: tuple[Sent, ...]
    answers: tuple[Answer, ...]
    effects: tuple[tuple[str, ...], ...]  # keys under which each step's effect was sent
    left: Left
    before: tuple[Stored, ...] = ()  # what a failover may bring back, newest last
    is_rerun_asked: bool = False


def beginning(bounds: Bounds) -> State:
    """A run that was created and that nobody has claimed."""
    left = Left(
        messages=bounds.messages,
        expired=bounds.expired,
        crashes=bounds.crashes,
        stops=bounds.stops,
        failovers=bounds.failovers,
    )
    return State(Stored(), (Worker(), Worker()), (), (), ((),) * bounds.steps, left)
