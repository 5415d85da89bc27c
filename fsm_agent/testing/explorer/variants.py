"""The protocol, what it is without each of its checks, and what each of these must come to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .rules import Bounds, Rules

TWICE = "the effect of an unsafe tool happened twice"
STALE = "a stale owner's commit was accepted"
STUCK = "an owner was refused although nobody took the run over"
DOUBLED = "an entry is in the journal twice"
TOLD = "a worker that had lost the run was told that its entry counts"
KEYS = "the effect of a keyed tool happened twice"
GIVEN_BACK = "an entry was added after the run was given back"


@dataclass(frozen=True)
class Variant:
    """A protocol with its bounds. `broken` is the promise that it must be found to break."""

    name: str
    rules: Rules
    bounds: Bounds = field(default_factory=Bounds)
    broken: str = ""


FULL = Rules()
_STOPS = Bounds(stops=1, expired=1, crashes=0)
_FAILS_OVER = Bounds(failovers=1, expired=1, messages=0)

VARIANTS = (
    Variant("full protocol, unsafe tool", FULL),
    Variant("full protocol, keyed tool", replace(FULL, tool="keyed")),
    Variant("full protocol, workers are stopped", FULL, _STOPS),
    Variant("no token check", replace(FULL, fence="none"), broken=STALE),
    Variant("no op marks", replace(FULL, op_marks=False), broken=STUCK),
    Variant("no seq check", replace(FULL, seq=False)),
    Variant("no seq, no chain", replace(FULL, seq=False, chain=False)),
    Variant(
        "no seq, no chain, no op marks",
        replace(FULL, seq=False, chain=False, op_marks=False),
        broken=DOUBLED,
    ),
    Variant("no chain", replace(FULL, chain=False)),
    Variant(
        "a lost run's repeat is a success", replace(FULL, tells_lost_repeats=False), broken=TOLD
    ),
    Variant("no look at 'released'", replace(FULL, released=False), _STOPS, broken=GIVEN_BACK),
    Variant("no intent", replace(FULL, has_intent=False), broken=TWICE),
    Variant("key per attempt", replace(FULL, tool="keyed", key="attempt"), broken=KEYS),
    Variant("a person may say 'run it again'", replace(FULL, person_reruns=True), broken=TWICE),
    Variant("failover, integer token", replace(FULL, fence="token"), _FAILS_OVER, broken=STALE),
    Variant("failover, unsafe tool, no WAIT", FULL, _FAILS_OVER, broken=TWICE),
    Variant("failover, unsafe tool, WAIT each commit", replace(FULL, waits=True), _FAILS_OVER),
    Variant("failover, keyed tool, no WAIT", replace(FULL, tool="keyed"), _FAILS_OVER),
)
