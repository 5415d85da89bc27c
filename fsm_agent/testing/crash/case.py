"""Which faults strike a run, process after process, and the one line that says so."""

from __future__ import annotations

import re

import msgspec

from fsm_agent.errors import UsageError, did_you_mean
from fsm_agent.testing.faults import CRASHES, Fault

_STRIKE = re.compile(r"(?P<point>.+#\d+)(:(?P<moment>before|after))?(?P<lasts>\+)?=(?P<fault>\S+)")
_MOMENTS = {"before": Fault.CRASH_BEFORE, "after": Fault.CRASH_AFTER}
WIRE = "wire "  # begins the name of a point that is a request on its way to the store


class Strike(msgspec.Struct, frozen=True):
    """One fault at one point. A wire's fault that `lasts` strikes all later requests too."""

    point: str  # such as `commit#3`, `tool refund#1` or `wire commit#3`
    fault: Fault
    lasts: bool = False

    @property
    def is_kill(self) -> bool:
        return self.fault in CRASHES

    @property
    def kill_at(self) -> str | None:
        """The moment at which the process kills itself, as points are traced."""
        if not self.is_kill:
            return None
        return f"{self.point}:{'before' if self.fault is Fault.CRASH_BEFORE else 'after'}"

    def __str__(self) -> str:
        if self.is_kill:
            return f"{self.kill_at}=kill"
        return f"{self.point}{'+' if self.lasts else ''}={self.fault.value}"


def kill(moment: str) -> Strike:
    """A kill at a point as points are traced: `commit#3:before`."""
    point, _, when = moment.rpartition(":")
    return Strike(point, _MOMENTS[when])


class Case(msgspec.Struct, frozen=True):
    """A run of the sweep: the first strike is for its first process, and so on; then none."""

    strikes: tuple[Strike, ...] = ()

    @property
    def places(self) -> frozenset[str]:
        """Where it strikes, as an undisturbed run traces its points and requests."""
        return frozenset(strike.kill_at or strike.point for strike in self.strikes)

    def __str__(self) -> str:
        return "; ".join(map(str, self.strikes)) or "undisturbed"


def parse(line: str) -> tuple[Case, int | None]:
    """The case that a replay line tells, and its seed if it has one.

    Raises UsageError, which says how such a line looks.
    """
    strikes: list[Strike] = []
    seed: int | None = None
    for part in filter(None, map(str.strip, line.split(";"))):
        if part.startswith("seed="):
            if not part[5:].isdigit():
                raise _unreadable(part, "the seed is not a number")
            seed = int(part[5:])
        else:
            strikes.append(_strike(part))
    if not strikes:
        raise _unreadable(line, "it names no fault")
    return Case(tuple(strikes)), seed


def _strike(part: str) -> Strike:
    found = _STRIKE.fullmatch(part)
    if found is None:
        raise _unreadable(part, "it is not POINT=FAULT")
    point, moment, name = found["point"], found["moment"], found["fault"]
    lasts = bool(found["lasts"])
    is_wire = point.startswith(WIRE)
    if name == "kill":
        if moment is None or is_wire or lasts:
            raise _unreadable(part, "a kill needs :before or :after, and a point in the process")
        return Strike(point, _MOMENTS[moment])
    known = [fault.value for fault in Fault]
    if name not in known:
        raise _unreadable(part, f"there is no fault {name!r}", did_you_mean(name, known))
    if moment is not None or not is_wire or Fault(name) in CRASHES:
        raise _unreadable(part, f"{name} strikes requests to the store: wire NAME#N={name}")
    return Strike(point, Fault(name), lasts)


def _unreadable(part: str, why: str, hint: str = "") -> UsageError:
    return UsageError(
        f"replay line {part!r}: {why}.{hint} Write 'tool refund#1:after=kill' or"
        " 'wire commit#3=lost_request', several processes with ';' between them."
    )
