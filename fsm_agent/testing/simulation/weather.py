"""What may go wrong in a simulated network and its machines, and how much of it a seed brings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Fault(StrEnum):
    """The faults of this layer."""

    LOST_REQUEST = "lost_request"
    LOST_REPLY = "lost_reply_after_apply"
    DUPLICATE = "duplicate_request"
    LATE = "late_request"
    SLOW_REPLY = "slow_reply"
    CONN_RESET = "conn_reset"
    READONLY = "READONLY"
    LOADING = "LOADING"
    OOM = "OOM"
    NOREPLICAS = "NOREPLICAS"
    BUSY = "BUSY"
    NOSCRIPT = "NOSCRIPT"
    PARTITION = "partition"
    CRASH = "crash"
    PAUSE = "pause"
    CLOCK_JUMP = "clock_jump"
    MODEL = "5xx"


REFUSALS = frozenset(
    {Fault.READONLY, Fault.LOADING, Fault.OOM, Fault.NOREPLICAS, Fault.BUSY, Fault.NOSCRIPT}
)
ON_THE_WAY = (
    *(Fault.LOST_REQUEST, Fault.LOST_REPLY, Fault.DUPLICATE, Fault.LATE, Fault.SLOW_REPLY),
    *(Fault.CONN_RESET, Fault.READONLY, Fault.LOADING, Fault.OOM, Fault.NOREPLICAS),
    *(Fault.BUSY, Fault.NOSCRIPT),
)


@dataclass(frozen=True)
class Event:
    """Something that befalls a machine at a time, in seconds since the beginning."""

    at_s: float
    fault: Fault
    worker: int  # which of those that live then
    length_s: float


@dataclass(frozen=True)
class Weather:
    """All that a seed brings. After `storm_s` nothing goes wrong any more."""

    storm_s: float
    rate: float  # of commands that something happens to on the way
    model_rate: float
    tool_rate: float  # of moments around an effect at which its machine dies or pauses
    events: tuple[Event, ...]

    @property
    def moves_the_clock(self) -> bool:
        """Then locks may open early: what they hold back is held back by nothing else."""
        return any(event.fault is Fault.CLOCK_JUMP for event in self.events)


CALM = Weather(storm_s=0.0, rate=0.0, model_rate=0.0, tool_rate=0.0, events=())


def drawn(chance: Random, *, lease_s: float) -> Weather:
    """The weather of a seed."""
    storm_s = chance.uniform(3.0, 15.0)
    kinds = [Fault.CRASH, Fault.CRASH, Fault.PARTITION]
    # Never both: a lock that a jump has opened holds back no worker that was paused.
    kinds += [Fault.CLOCK_JUMP] if chance.random() < 0.25 else [Fault.PAUSE, Fault.PAUSE]
    events = []
    for _ in range(chance.randint(0, 6)):
        fault = chance.choice(kinds)
        length_s = chance.uniform(1.1 * lease_s, 3 * lease_s)
        if fault is Fault.CLOCK_JUMP:
            length_s = chance.choice([-1.0, 1.0]) * chance.uniform(lease_s, 60.0)
        events.append(Event(chance.uniform(0.0, storm_s), fault, chance.randrange(9), length_s))
    return Weather(
        storm_s=storm_s,
        rate=chance.choice([0.0, 0.02, 0.05, 0.15]),
        model_rate=chance.choice([0.0, 0.0, 0.1]),
        tool_rate=chance.choice([0.0, 0.1, 0.2]),
        events=tuple(events),
    )
