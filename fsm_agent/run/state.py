"""Which trigger leads where: the table of the machine, and the one machine built from it.

The machine is synchronous and shared by all runs: it drives a throw-away cursor and knows no
run, because transitions' awaited triggers turn a cancellation into `False`, and because a
machine per run costs more than a transition.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, cast

from transitions import Event, EventData, Machine, MachineError, Transition

from fsm_agent.errors import IllegalTransition


class State(StrEnum):
    """Where a run stands. DONE and ERROR accept nothing more."""

    OBSERVE = "OBSERVE"
    THINK = "THINK"
    ACT = "ACT"
    REFLECT = "REFLECT"
    DONE = "DONE"
    ERROR = "ERROR"


class Trigger(StrEnum):
    """Why a run moves: the name of an arrow, and of the entry that records it."""

    OBSERVED = "observed"
    BEGAN = "began"
    CALLS = "calls"
    REPLIED = "replied"
    ANSWERED = "answered"
    FAILED = "failed"
    PROGRESSED = "progressed"
    ACTED = "acted"
    TERMINATED = "terminated"
    CONTINUED = "continued"
    FINISHED = "finished"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"


FINAL = frozenset({State.DONE, State.ERROR})


class Guarded(Protocol):
    """What guards ask of a run, after the deltas of the entry and before the state moves."""

    @property
    def has_attempt(self) -> bool: ...
    @property
    def has_calls(self) -> bool: ...
    @property
    def has_unsettled_calls(self) -> bool: ...
    @property
    def has_answer(self) -> bool: ...
    @property
    def has_failure(self) -> bool: ...


class Arrow(NamedTuple):
    """One row of the table. `guard` names a property of Guarded, with '!' for its negation."""

    trigger: Trigger
    sources: tuple[State, ...]
    dest: State
    guard: str | None = None


_S, _T = State, Trigger
TABLE: tuple[Arrow, ...] = (
    Arrow(_T.OBSERVED, (_S.OBSERVE,), _S.THINK),
    Arrow(_T.BEGAN, (_S.THINK,), _S.THINK, "has_attempt"),
    Arrow(_T.BEGAN, (_S.REFLECT,), _S.REFLECT, "has_attempt"),  # the critic's call
    Arrow(_T.BEGAN, (_S.OBSERVE,), _S.OBSERVE, "has_attempt"),  # sound is put into words
    Arrow(_T.CALLS, (_S.THINK,), _S.ACT, "has_calls"),
    Arrow(_T.REPLIED, (_S.THINK,), _S.REFLECT, "!has_calls"),
    Arrow(_T.ANSWERED, (_S.THINK,), _S.DONE, "has_answer"),
    Arrow(_T.FAILED, (_S.THINK,), _S.ERROR, "has_failure"),
    Arrow(_T.PROGRESSED, (_S.ACT,), _S.ACT, "has_calls"),
    Arrow(_T.ACTED, (_S.ACT,), _S.REFLECT, "!has_unsettled_calls"),
    Arrow(_T.TERMINATED, (_S.ACT,), _S.DONE, "has_answer"),
    Arrow(_T.CONTINUED, (_S.REFLECT,), _S.OBSERVE),
    Arrow(_T.FINISHED, (_S.REFLECT,), _S.DONE, "has_answer"),
    Arrow(_T.EXHAUSTED, (_S.REFLECT,), _S.ERROR, "has_failure"),
    Arrow(_T.CANCELLED, (_S.OBSERVE, _S.THINK, _S.ACT, _S.REFLECT), _S.ERROR, "has_failure"),
)


class _Cursor:
    """A throw-away model: the state it stands in, and the run that guards look at."""

    __slots__ = ("run", "state")

    def __init__(self, state: State, run: Guarded) -> None:
        self.state, self.run = state, run


class _Guard:
    """A condition of the machine: one property of the run, by the name it has in the table."""

    def __init__(self, name: str) -> None:
        self.__name__ = name  # what the diagram shows
        self._wanted = not name.startswith("!")
        self._property = name.lstrip("!")

    def __call__(self, event: Any) -> bool:
        return bool(getattr(event.model.run, self._property)) is self._wanted


def machine_transitions() -> list[dict[str, Any]]:
    """The table in the form that `transitions` takes."""
    return [
        {
            "trigger": arrow.trigger.value,
            "source": list(arrow.sources),
            "dest": arrow.dest,
            "conditions": [_Guard(arrow.guard)] if arrow.guard else [],
        }
        for arrow in TABLE
    ]


class _BareTransition(Transition):
    """An arrow that asks its conditions and moves. There are no callbacks to look for."""

    def execute(self, event_data: Any) -> bool:
        for condition in self.conditions:
            if cast(_Guard, condition.func)(event_data) is not condition.target:
                return False
        event_data.model.state = State(str(self.dest))
        return True


class _BareEvent(Event):
    """An event that tries its arrows. There is no queue to wait in, and nobody else to tell."""

    def trigger(self, model: Any, *args: Any, **kwargs: Any) -> bool:
        arrows = self.transitions.get(model.state)
        if arrows is None:
            raise MachineError(f"{self.name} has no arrow from {model.state}")
        event = EventData(None, self, self.machine, model, args, kwargs)
        return any(arrow.execute(event) for arrow in arrows)


class _BareMachine(Machine):
    """A machine without callbacks: not given, they cost more than the transition itself."""

    transition_cls = _BareTransition
    event_cls = _BareEvent


_MACHINE = _BareMachine(
    model=None,
    states=State,
    transitions=machine_transitions(),
    initial=State.OBSERVE,
    auto_transitions=False,
    send_event=True,
)


def _arrows_of(machine: Machine) -> Mapping[tuple[State, str], State]:
    return {
        (State(source), name): State(str(arrow.dest))
        for name, event in machine.events.items()
        for source, arrows in event.transitions.items()
        for arrow in arrows
    }


# Replay asks only where an arrow leads, not whether it was allowed: that was decided when it was
# recorded. A look-up is ten times cheaper than a trigger, and a run of 1000 turns has 6000.
_ARROWS = _arrows_of(_MACHINE)


def advance(state: State, trigger: Trigger, run: Guarded) -> State:
    """The state that `trigger` leads to from `state`, for `run` as it is after the entry's deltas.

    Raises IllegalTransition if the table has no such arrow, or the arrow's guard refuses it.
    """
    cursor = _Cursor(state, run)
    try:
        moved = _MACHINE.events[trigger].trigger(cursor)
    except MachineError:
        raise IllegalTransition(
            f"{trigger.value!r} is not allowed in {state.value}."
            f" Allowed: {', '.join(allowed(state))}."
        ) from None
    if not moved:
        guard = next(a.guard for a in TABLE if a.trigger is trigger)
        raise IllegalTransition(
            f"{trigger.value!r} in {state.value} was refused by its guard {guard!r}."
        )
    return cursor.state


def destination(state: State, trigger: Trigger) -> State | None:
    """Where a recorded arrow led, without asking its guard; None if there is no such arrow."""
    return _ARROWS.get((state, trigger.value))


def allowed(state: State) -> tuple[str, ...]:
    """The triggers that have an arrow from `state`, in the table's order."""
    return tuple(a.trigger.value for a in TABLE if state in a.sources) or ("none",)
