"""How well loops are told from long honest work: `./dev bench loops`.

Plays each transcript of tests/loops to the policies of REFLECT, as a run would, and looks for the
first verdict that makes it end. A loop counts as stopped if that comes by the end of its third
round; on an honest transcript any word, even a warning, is a false alarm.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fsm_agent.reflection import progress
from fsm_agent.reflection.policy import reflect
from fsm_agent.reflection.scene import Scene
from fsm_agent.reflection.verdict import Continue, Finalise, Finish, Repair, Stop
from fsm_agent.run.content import Call, Usage, canonical_json
from fsm_agent.run.delta import AnyDelta, Created, Observed, Replied, Settled
from fsm_agent.run.limits import Limits
from fsm_agent.run.record import Run, fold

FOLDER = Path(__file__).parents[1] / "tests" / "loops"
ROUNDS = 3
LIMITS = Limits(turns=10_000, tokens=10**9, tool_calls=10_000)  # only the shape of the run counts


class Outcome(NamedTuple):
    """What the policies made of a transcript: steps are counted from 0."""

    transcript: dict[str, Any]
    first_word: int | None  # a warning or more; corrections of the protocol are none
    stop: int | None
    why: str

    @property
    def is_right(self) -> bool:
        if self.transcript["kind"] == "honest":
            return self.first_word is None
        begins, period = self.transcript["begins"], self.transcript["period"]
        return self.stop is not None and begins <= self.stop < begins + ROUNDS * period


def transcripts() -> Iterator[dict[str, Any]]:
    """All of them, the generated ones and those written by hand."""
    for path in sorted(FOLDER.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def judged(transcript: dict[str, Any]) -> Outcome:
    """Play a transcript until a policy ends it."""
    run = fold(Run(run_id="r"), Created("a", "task", LIMITS))
    scene = Scene(may_repeat=tuple(transcript.get("may_repeat", ())))
    first_word = None
    for number, step in enumerate(transcript["steps"]):
        for delta in deltas_of(step, number):
            run = fold(msgspec.structs.replace(run, seq=run.seq + 1), delta)
        if "said" in step:
            continue
        assessed = progress.assess(run, scene)
        if assessed:
            run = fold(run, assessed)
        verdict = reflect(run, msgspec.structs.replace(scene, assessed=assessed))
        if isinstance(verdict, (Stop, Finalise, Finish)):
            return Outcome(transcript, first_word, number, _reason(verdict))
        if not isinstance(verdict, (Continue, Repair)) and first_word is None:
            first_word = number
    return Outcome(transcript, first_word, None, "")


def deltas_of(step: dict[str, Any], number: int) -> Iterator[AnyDelta]:
    """The facts that a run would have on record of a step."""
    if "said" in step:
        yield Observed(step["said"], f"s{number}")
        return
    calls = tuple(
        Call(f"c{number}-{n}", name, canonical_json(arguments))
        for n, (name, arguments) in enumerate(step["calls"])
    )
    violation = step.get("violation")
    yield Replied(step["label"], step["text"], Usage(1, 1), calls, violation=violation)
    for call, (status, text) in zip(calls, step["results"], strict=True):
        yield Settled(call.call_id, status, text)


def _reason(verdict: Stop | Finalise | Finish) -> str:
    return verdict.reason if isinstance(verdict, Stop) else verdict.why


def main() -> None:
    """Print a row for each shape, and the sums."""
    rows: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for transcript in transcripts():
        rows[transcript["kind"], transcript["shape"]].append(judged(transcript))
    print(f"{'kind':8}{'shape':32}{'right':>8}  stopped after (rounds), or why not")
    for (kind, shape), outcomes in rows.items():
        right = sum(outcome.is_right for outcome in outcomes)
        print(f"{kind:8}{shape:32}{right:>4}/{len(outcomes):<3}  {_told(outcomes)}")
    for kind, words in (("loop", "loops stopped within 3 rounds"), ("honest", "without alarm")):
        all_of = [o for (k, _), outcomes in rows.items() if k == kind for o in outcomes]
        right = sum(outcome.is_right for outcome in all_of)
        print(f"{kind}: {right} of {len(all_of)} {words} ({100 * right / len(all_of):.1f} %)")


def _told(outcomes: list[Outcome]) -> str:
    words = []
    for outcome in outcomes:
        if outcome.transcript["kind"] == "loop" and outcome.stop is not None:
            rounds = (outcome.stop + 1 - outcome.transcript["begins"]) / outcome.transcript[
                "period"
            ]
            words.append(f"{rounds:.3g} {outcome.why}")
        elif outcome.transcript["kind"] == "loop":
            words.append("never")
        elif not outcome.is_right:
            words.append(f"alarm at step {outcome.first_word or outcome.stop}")
    return ", ".join(words)


if __name__ == "__main__":
    main()
