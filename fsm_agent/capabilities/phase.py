"""What a phase of a run is, and a capability: the phases that a run goes through.

A capability is settings that the one loop reads. Its functions are pure functions of the run, so
what they say is the same after a crash; what follows from it is on record as facts: `Entered`,
`Planned`, `Stepped`, `Proposed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fsm_agent.errors import BadAgent, UsageError
from fsm_agent.labels.protocol import LabelProtocol
from fsm_agent.run.delta import AnyDelta, Entered
from fsm_agent.run.record import Run


class Wanted(NamedTuple):
    """A call that is to be made without the model writing it as one."""

    tool: str
    arguments: dict[str, Any]


Reader = Callable[[Run, str], Sequence[Wanted] | str]
"""Reads a reply's text as calls, or says what is wrong with it, in words for the model."""


def _nothing(run: Run) -> tuple[()]:
    return ()


def _no_words(run: Run) -> str:
    return ""


def _no_objection(run: Run, answer: str) -> str:
    return ""


def _as_it_is(run: Run, answer: str) -> str:
    return answer


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What the model is told, offered and allowed in one phase, and what comes after it.

    `tells` is added to the agent's instructions, anew for each request. `tools` are the names of
    those that are offered; None offers all. `allows` are the labels of the protocol that may be
    used now; None allows all. The text under a label of `reads` is not words but calls, of any
    tool of the agent. `calls` are due by what is on record: they are made without asking the
    model. `advance` is asked after each good reply and after each batch, while
    `run.last` and `run.calls` still hold them, and returns the facts that follow, such as Entered;
    () stays in the phase. In the last phase a terminal label ends the run: `objects` says what is
    wrong with the answer ('' for nothing), and `finishes` makes of it what the user gets; neither
    is asked about an answer that is data (`Agent(output=…)`).

    All of them are pure functions of the run: no clock, no state of their own, no I/O.
    """

    name: str
    protocol: LabelProtocol | None
    tells: Callable[[Run], str] = _no_words
    tools: tuple[str, ...] | None = None
    allows: Callable[[Run], Iterable[str]] | None = None
    reads: Mapping[str, Reader] = field(default_factory=dict)
    calls: Callable[[Run], Sequence[Wanted]] = _nothing
    advance: Callable[[Run], tuple[AnyDelta, ...]] = _nothing
    objects: Callable[[Run, str], str] = _no_objection
    finishes: Callable[[Run, str], str] = _as_it_is


class Capability:
    """The phases of a run, in order of first appearance; only the last one can end it.

    Raises BadAgent for no phase, a name that two share, or labels that contradict each other.
    """

    def __init__(self, *phases: Phase) -> None:
        if not phases:
            raise BadAgent("a capability needs at least one phase.")
        names = [phase.name for phase in phases]
        if len(set(names)) < len(names):
            raise BadAgent(f"two phases of a capability share a name: {', '.join(names)}.")
        for phase in phases:
            _check(phase)
        if phases[-1].protocol and not phases[-1].protocol.terminal:
            raise BadAgent(f"phase {names[-1]!r} is the last one and has no terminal label.")
        self.phases = phases

    @property
    def first(self) -> Phase:
        return self.phases[0]

    @property
    def last(self) -> Phase:
        """The one whose terminal labels end the run, and in which a finish is forced."""
        return self.phases[-1]

    @property
    def spoken(self) -> frozenset[str]:
        """Labels under which the agent says something to the person and goes on."""
        protocols = [phase.protocol for phase in self.phases if phase.protocol]
        return frozenset[str]().union(*(each.final & each.intermediate for each in protocols))

    def check(self, facts: Iterable[AnyDelta]) -> None:
        """Raise UsageError for a phase that is not there, before anything leads into it."""
        known = [phase.name for phase in self.phases]
        for fact in facts:
            if isinstance(fact, Entered) and fact.phase not in known:
                raise UsageError(
                    f"a phase leads to {fact.phase!r}, and this agent has: {', '.join(known)}. "
                    "Mend its capability; the run is kept as it was."
                )

    def phase(self, run: Run) -> Phase:
        """The phase that the run is in: the last one while a finish is forced.

        Raises UsageError if the run stands in a phase that this capability does not have.
        """
        if run.final_turns_left is not None:
            return self.last
        if not run.phase:
            return self.first
        for phase in self.phases:
            if phase.name == run.phase:
                return phase
        known = ", ".join(phase.name for phase in self.phases)
        raise UsageError(
            f"run {run.run_id!r} is in the phase {run.phase!r}, and its agent has none of that name"
            f" (it has: {known}). Work on it with the version that began it."
        )


def _check(phase: Phase) -> None:
    if phase.reads and phase.protocol is None:
        raise BadAgent(f"phase {phase.name!r} reads labels and has no protocol.")
    unknown = set(phase.reads).difference(phase.protocol.allowed if phase.protocol else ())
    if unknown:
        raise BadAgent(
            f"phase {phase.name!r} reads {', '.join(sorted(unknown))}, which its protocol does not "
            "allow."
        )
