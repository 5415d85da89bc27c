"""What a sweep found, and the assertions that a test makes about it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from .case import Case
from .evidence import Outcome
from .ledger import Counts

Colour = Literal["green", "amber", "red"]
MAX_LISTED = 10  # failures in one message
MOST_UNSTEADY = 0.2  # of all cases


class Effects(NamedTuple):
    """How often a tool's effect happened: undisturbed, and at least and at most in all cases."""

    tool: str
    effect: str
    expected: int
    least: int
    most: int
    most_sent: int  # with the same key again: what a receiver of keyed calls recognises


def pasteable(case: Case, seed: int = 0) -> str:
    """The command that plays just this case again, but for the agent."""
    line = f"seed={seed}; {case}" if seed else str(case)
    return f"fsm-agent crashtest … --replay {shlex.quote(line)}"


@dataclass
class Report:
    """Every case with what came of it. The methods raise AssertionError with lines to replay."""

    undisturbed: Outcome
    points: list[str]  # kills, as traced: `commit#3:before`
    wires: list[str] = field(default_factory=list)  # requests to the store
    outcomes: list[Outcome] = field(default_factory=list)
    skipped: list[Case] = field(default_factory=list)  # the budget was used up
    unsteady: list[Case] = field(default_factory=list)  # of points that not every run passes
    uncalled: tuple[str, ...] = ()  # tools that the run never called
    is_comparable: bool = True
    seed: int = 0
    replay_line: Callable[[Case, int], str] = pasteable

    @property
    def never_reached(self) -> list[str]:
        """The cases whose fault did not fall."""
        return [str(outcome.case) for outcome in self.outcomes if not outcome.is_reached]

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if colour_of(outcome) == "red"]

    @property
    def in_doubt(self) -> list[Outcome]:
        """The runs in which a person was asked what became of a call."""
        return [outcome for outcome in self.outcomes if outcome.asked_in_doubt]

    @property
    def skipped_singles(self) -> list[Case]:
        return [case for case in self.skipped if len(case.strikes) < 2]

    @property
    def is_steady(self) -> bool:
        """Whether runs pass the same points, but for results that come together or apart."""
        return len(self.unsteady) <= MOST_UNSTEADY * (len(self.outcomes) + len(self.unsteady))

    @property
    def is_ok(self) -> bool:
        is_whole = self.is_steady and not self.skipped_singles and bool(self.outcomes)
        return is_whole and not self.failed

    def effects(self) -> list[Effects]:
        """How often each tool took effect, over all cases."""
        assert self.undisturbed.evidence
        calm = self.undisturbed.ledger
        ledgers = [outcome.ledger for outcome in self.outcomes] or [calm]
        rows = []
        for tool in calm.tools():
            effect = self.undisturbed.evidence.classes.get(tool, "unsafe")
            counts = [_counted(each, tool, effect) for each in ledgers]
            expected = _counted(calm, tool, effect)
            sent = max(each.raw(tool) for each in ledgers)
            rows.append(Effects(tool, effect, expected, min(counts), max(counts), sent))
        return rows

    def let_go_of_folders(self) -> None:
        """Keep what is needed of the files, which are about to be deleted."""
        self.undisturbed = _kept(self.undisturbed)
        self.outcomes = [_kept(outcome) for outcome in self.outcomes]

    # -- what a test says ---------------------------------------------------------------------

    def same_answer(self) -> None:
        """Every run ends as the undisturbed one; other words only where a person was asked."""
        if not self.is_comparable:
            raise AssertionError(
                "two undisturbed runs gave different answers, so that nothing can be compared:"
                " let tools and script say the same each time."
            )
        self._refuse("does not end as undisturbed", ("answer", "ends", "journal", "counted"))

    def effect_once(self, tool: str) -> None:
        """The tool took effect as often as undisturbed, in every run: not twice, not lost."""
        row = next((row for row in self.effects() if row.tool == tool), None)
        if row is None:
            known = ", ".join(row.tool for row in self.effects()) or "none"
            raise AssertionError(f"{tool!r} was never called. Called: {known}.")
        wrong = [o for o in self.outcomes if _count(o, tool, row.effect) != row.expected]
        counts = sorted({_count(outcome, tool, row.effect) for outcome in wrong})
        some = " or ".join(map(str, counts))
        self._raise(f"{tool} ({row.effect}) took effect {some} times, not {row.expected}", wrong)

    def asks_human_only_for(self, *tools: str) -> None:
        """A person was asked 'did it happen?' for calls of these tools, and of no others."""
        wrong = [o for o in self.outcomes if set(o.asked_in_doubt) - set(tools)]
        self._raise(f"a person was asked about others than {', '.join(tools) or 'none'}", wrong)

    def reached_all_points(self) -> None:
        """Every fault fell where it was meant to, and the budget was enough for all of them."""
        if not self.outcomes:
            raise AssertionError("no case was run: nothing is shown.")
        wrong = [outcome for outcome in self.outcomes if not outcome.is_reached]
        self._raise("never reached", wrong)
        if not self.is_steady:
            some = ", ".join(map(str, self.unsteady[:MAX_LISTED]))
            raise AssertionError(
                f"each run takes another way: {len(self.unsteady)} cases never came to their point,"
                f" such as {some}. Let tools and script do the same each time."
            )
        if skipped := self.skipped_singles:
            some = ", ".join(map(str, skipped[:MAX_LISTED]))
            raise AssertionError(
                f"the budget was used up before {len(skipped)} cases, such as {some}. Raise it."
            )

    def passed(self) -> None:
        """All of it: no judge found anything, and every point was reached."""
        self._raise("cases failed", [outcome for outcome in self.outcomes if outcome.problems])
        self.reached_all_points()

    def _refuse(self, words: str, oracles: Iterable[str]) -> None:
        wanted = set(oracles)
        wrong = [o for o in self.outcomes if any(p.oracle in wanted for p in o.problems)]
        self._raise(words, wrong)

    def _raise(self, words: str, wrong: list[Outcome]) -> None:
        if not wrong:
            return
        lines = [f"{words}: {len(wrong)} of {len(self.outcomes)} cases"]
        for outcome in wrong[:MAX_LISTED]:
            lines.append(f"  {outcome.case}")
            lines += [f"    {text}" for text in reasons(outcome)]
            lines.append(f"    replay: {self.replay_line(outcome.case, self.seed)}")
        if len(wrong) > MAX_LISTED:
            lines.append(f"  and {len(wrong) - MAX_LISTED} more")
        raise AssertionError("\n".join(lines))


def reasons(outcome: Outcome) -> list[str]:
    """Why a case is not green, in words."""
    found = [f"{problem.oracle}: {problem.text}" for problem in outcome.problems]
    if not outcome.is_reached:
        found.append("never reached: the fault did not fall")
    if not found and outcome.asked_in_doubt:
        found.append(f"a person was asked about {', '.join(outcome.asked_in_doubt)}")
    return found


def colour_of(outcome: Outcome) -> Colour:
    """Green; amber where a person was asked what happened; red."""
    if outcome.problems or not outcome.is_reached:
        return "red"
    return "amber" if outcome.asked_in_doubt else "green"


def _count(outcome: Outcome, tool: str, effect: str) -> int:
    return _counted(outcome.ledger, tool, effect)


def _counted(ledger: Counts, tool: str, effect: str) -> int:
    """How often the world was changed: a receiver of keyed calls tells repeats by the key."""
    return ledger.by_key(tool) if effect == "keyed" else ledger.raw(tool)


def _kept(outcome: Outcome) -> Outcome:
    return msgspec.structs.replace(outcome, entries=tuple(outcome.ledger.entries()))
