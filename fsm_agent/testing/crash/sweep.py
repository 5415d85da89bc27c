"""A sweep: the run undisturbed, then once for each point and fault, then for pairs of kills."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from fsm_agent.errors import AgentError, UsageError, did_you_mean

from .case import WIRE, Case, Strike, kill
from .cases import Player
from .children import fork, not_outliving, refuse_event_loop
from .evidence import Outcome
from .keeper import kept_store, let_go_of_keepers, scratch
from .ledger import Ledger
from .network import faults_of
from .oracles import judged
from .report import Report
from .scenario import Scenario
from .store import WRITES

Where = Literal["transitions", "tools", "store_ops"]
Pairs = Literal["none", "adjacent", "all"]
NEAR = 3  # points of a process that takes over, for `adjacent`
LOOK_S = 0.05
LANE_S = 86_400.0

Progress = Callable[[int, int], None]  # cases done, and how many there are by now


class SweepFailed(AgentError):
    """The run does not end well even where nobody disturbs it: there is nothing to compare with."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep tries.

    `at`: kills around `transitions` (each write to the store) and `tools` (each call, each effect),
    and faults of `store_ops` (each request to the store, with every fault that can meet it).
    `pairs`: the process that takes over dies as well, at its first points or at `all` of them.
    `only` narrows the points, `replay` to one case. `budget_s` starts no case after so long.
    `jobs` cases run side by side.
    """

    at: tuple[Where, ...] = ("transitions", "tools")
    pairs: Pairs = "none"
    only: Callable[[str], bool] | None = None
    replay: Case | None = None
    budget_s: float | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        for name in self.at:
            if name not in get_args(Where):
                hint = did_you_mean(name, get_args(Where))
                raise UsageError(f"at={name!r} is none of {', '.join(get_args(Where))}.{hint}")
        if self.pairs not in get_args(Pairs):
            hint = did_you_mean(self.pairs, get_args(Pairs))
            raise UsageError(f"pairs={self.pairs!r} is none of {', '.join(get_args(Pairs))}.{hint}")
        if self.jobs < 1 or not self.at:
            raise UsageError("a sweep needs 1 job or more, and something in `at`.")

    def has(self, point: str) -> bool:
        """Whether a point is to be struck."""
        if self.only is not None and not self.only(point):
            return False
        if self.replay is not None and point not in self.replay.places:
            return False
        if point.startswith(WIRE):
            return "store_ops" in self.at
        name = point.partition("#")[0]
        return ("transitions" if name in WRITES else "tools") in self.at


def sweep(
    scenario: Scenario,
    folder: Path | None = None,
    plan: Plan | None = None,
    *,
    only: Callable[[str], bool] | None = None,
    on_progress: Progress | None = None,
) -> Report:
    """Run the scenario undisturbed, twice, and then each case of the plan; judge every one.

    Everything is in `folder`, which is kept, or in a temporary one. `only` is the plan's, for
    short. The tools really run, once or more for each case.

    Raises SweepFailed if the undisturbed run does not end well, UsageError inside an event loop.
    """
    refuse_event_loop()
    plan = plan or Plan(only=only)
    with ExitStack() as stack:
        place = stack.enter_context(scratch())
        socket = stack.enter_context(kept_store(place / "store"))
        cases = place / "cases"
        if folder is not None:
            cases = folder
        sweeping = _Sweep(scenario, plan, Player(scenario, socket, cases), on_progress)
        report = sweeping.run()
        if folder is None:
            report.let_go_of_folders()
        return report


class _Sweep:
    def __init__(
        self, scenario: Scenario, plan: Plan, player: Player, on_progress: Progress | None
    ) -> None:
        self._scenario, self._plan, self._player = scenario, plan, player
        self._on_progress = on_progress or (lambda done, total: None)
        self._ends_at = time.monotonic() + plan.budget_s if plan.budget_s else float("inf")
        self._done = self._total = 0

    def run(self) -> Report:
        calm, again = self._undisturbed("calm"), self._undisturbed("calm-again")
        points = [point for point in calm.traces[0] if self._plan.has(point)]
        wires = [wire for wire in calm.wires if self._plan.has(wire)]
        report = Report(
            undisturbed=calm,
            points=points,
            wires=wires,
            is_comparable=calm.result.answer == again.result.answer,
            seed=self._scenario.seed,
            uncalled=self._uncalled(calm),
        )
        if self._plan.replay:
            self._play([self._plan.replay], report)
            return report
        if not points and not wires:
            raise UsageError("the plan leaves no point to strike at: nothing would be tested.")
        kills = [Case((kill(point),)) for point in points]
        struck = [
            Case((Strike(wire, fault, lasts),))
            for wire in wires
            for fault, lasts in faults_of(wire)
        ]
        self._play(kills + struck, report)
        if self._plan.pairs != "none":
            self._play(list(self._pairs(report.outcomes)), report)
        return report

    def _undisturbed(self, name: str) -> Outcome:
        calm = self._player.play(Case(), name, is_wired="store_ops" in self._plan.at)
        if calm.endings[-1].how != "done" or calm.evidence is None:
            raise SweepFailed(f"the undisturbed run does not end: {calm.last_words}")
        if problems := judged(calm, calm, is_comparable=True):
            raise SweepFailed(f"the undisturbed run is wrong already: {problems[0].text}")
        result = calm.result
        if result.status != "done":
            raise SweepFailed(
                f"the undisturbed run fails ({result.reason}: {result.message}). "
                "Let it succeed first: fsm-agent run."
            )
        return calm

    def _uncalled(self, calm: Outcome) -> tuple[str, ...]:
        """Tools of the agent that the undisturbed run never called: nothing is shown of them."""
        agent = self._scenario.agent(Ledger(Path(os.devnull)))
        assert calm.evidence
        called = set(calm.evidence.tool_of.values())
        return tuple(name for name in agent.registry.names if name not in called)

    def _pairs(self, singles: Iterable[Outcome]) -> Iterator[Case]:
        found = []
        for single in singles:
            first = single.case.strikes[0]
            if len(single.traces) < 2 or not first.is_kill or not single.is_reached:
                continue
            seconds = list(dict.fromkeys(single.traces[1]))
            if self._plan.pairs == "adjacent":
                at = seconds.index("claim#1:after") if "claim#1:after" in seconds else 0
                seconds = seconds[at : at + NEAR]
            found += [Case((first, kill(second))) for second in seconds]
        # Mixed, so that a budget that does not reach for all of them cuts off no part of the run.
        random.Random(self._scenario.seed).shuffle(found)
        yield from found

    # -- playing them -------------------------------------------------------------------------

    def _play(self, cases: Sequence[Case], report: Report) -> None:
        self._total += len(cases)
        offset = self._done
        jobs = min(self._plan.jobs, len(cases))
        found = self._alone(cases, offset) if jobs <= 1 else self._in_lanes(cases, offset, jobs)
        for case, outcome in zip(cases, found, strict=True):
            if outcome is None:
                report.skipped.append(case)
                continue
            problems = judged(outcome, report.undisturbed, is_comparable=report.is_comparable)
            if not outcome.is_passed and not problems and not self._plan.replay:
                report.unsteady.append(case)
                continue
            report.outcomes.append(msgspec.structs.replace(outcome, problems=problems))

    def _alone(self, cases: Sequence[Case], offset: int) -> list[Outcome | None]:
        found = []
        for number, case in enumerate(cases, offset):
            found.append(self._in_time(case, number))
            self._done += 1
            self._on_progress(self._done, self._total)
        return found

    def _in_time(self, case: Case, number: int) -> Outcome | None:
        if time.monotonic() > self._ends_at:
            return None
        return self._player.play(case, f"case-{number}")

    def _in_lanes(self, cases: Sequence[Case], offset: int, jobs: int) -> list[Outcome | None]:
        """Play them in so many processes, each of which forks and waits for its own cases."""
        files = [self._player.folder / f"outcome-{offset + i}" for i in range(len(cases))]

        def lane(first: int) -> None:
            let_go_of_keepers()
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of its own children
            for i in range(first, len(cases), jobs):
                outcome = self._in_time(cases[i], offset + i)
                draft = files[i].with_suffix(".draft")
                draft.write_bytes(msgspec.msgpack.encode(outcome))
                draft.rename(files[i])

        output = str(self._player.folder / "lanes")
        lanes = {
            fork(lambda n=n: lane(n), time_limit_s=LANE_S, output=output)  # type: ignore[misc]
            for n in range(jobs)
        }
        with not_outliving(*lanes):
            self._await_lanes(set(lanes), files)
        missing = [file.name for file in files if not file.exists()]
        if missing:
            raise SweepFailed(f"a process of the sweep died: {Path(output).read_text()[-500:]}")
        kind = Outcome | None
        return [msgspec.msgpack.decode(file.read_bytes(), type=kind) for file in files]

    def _await_lanes(self, lanes: set[int], files: list[Path]) -> None:
        before = self._done
        while lanes:
            time.sleep(LOOK_S)
            lanes -= {pid for pid in lanes if os.waitpid(pid, os.WNOHANG)[0]}
            self._done = before + sum(file.exists() for file in files)
            self._on_progress(self._done, self._total)
