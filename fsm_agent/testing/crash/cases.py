"""Playing one case: process after process, until the run is over or nothing more helps."""

from __future__ import annotations

import secrets
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from .case import Case, Strike
from .children import fork, not_outliving, wait_for
from .evidence import Ending, Evidence, Outcome
from .life import Life
from .scenario import Scenario

TRIES = 3  # of a case whose point was not reached: parallel calls may pass theirs in another order


@dataclass(frozen=True)
class Player:
    """Plays cases of one scenario on one store, each in a namespace and folder of its own."""

    scenario: Scenario
    socket: Path
    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(4))  # no run id comes twice

    def play(self, case: Case, name: str, *, is_wired: bool = False) -> Outcome:
        """What came of the case. One whose fault did not fall is tried again."""
        is_wired = is_wired or any(not strike.is_kill for strike in case.strikes)
        for attempt in range(TRIES):
            outcome = self._once(case, f"{name}-{attempt}", is_wired)
            if outcome.is_reached:
                break
        return outcome

    def _once(self, case: Case, name: str, is_wired: bool) -> Outcome:
        folder = self.folder / name
        folder.mkdir(parents=True)
        run_id = f"crash-{self.token}-{name}"
        began = time.monotonic()
        endings: list[Ending] = []
        # One more than the strikes lets the run be, and is the last.
        for number, strike in enumerate((*case.strikes, None), 1):
            life = Life(self.scenario, self.socket, run_id, folder, number, strike, is_wired)
            endings.append(self._lived(life))
            if endings[-1].how in ("done", "timed out"):
                break
        struck = sum(
            _has_struck(strike, ending, folder / f"hit-{number}")
            for number, (strike, ending) in enumerate(zip(case.strikes, endings, strict=False), 1)
        )
        return Outcome(
            case=case,
            folder=str(folder),
            is_reached=struck == len(case.strikes),
            is_passed=all(
                _has_passed(strike, folder, number) for number, strike in enumerate(case.strikes, 1)
            ),
            endings=tuple(endings),
            evidence=_read_evidence(folder),
            traces=tuple(_lines(folder / f"points-{n}") for n in range(1, len(endings) + 1)),
            wires=_lines(folder / "wire-1"),
            took_s=time.monotonic() - began,
        )

    def _lived(self, life: Life) -> Ending:
        pid = fork(
            life.live,
            time_limit_s=self.scenario.time_limit_s,
            output=str(life.folder / f"output-{life.number}"),
        )
        with not_outliving(pid):
            code = wait_for(pid)
        if code == -signal.SIGKILL:
            return Ending("killed")
        if code == -signal.SIGALRM:
            limit = f"it took over {self.scenario.time_limit_s:g} s"
            return Ending("timed out", "TimeoutError", limit)
        written = life.folder / f"end-{life.number}"
        if not written.exists():
            return Ending("failed", "SystemExit", f"exit code {code}: {_last_words(life)}")
        return msgspec.json.decode(written.read_bytes(), type=Ending)


def _has_struck(strike: Strike, ending: Ending, hit: Path) -> bool:
    return ending.how == "killed" if strike.is_kill else hit.exists()


def _has_passed(strike: Strike, folder: Path, number: int) -> bool:
    if strike.is_kill:
        return strike.kill_at in _lines(folder / f"points-{number}")
    return strike.point in _lines(folder / f"wire-{number}")


def _read_evidence(folder: Path) -> Evidence | None:
    file = folder / "evidence"
    if not file.exists():
        return None
    return msgspec.msgpack.decode(file.read_bytes(), type=Evidence)


def _lines(file: Path) -> tuple[str, ...]:
    return tuple(file.read_text().splitlines()) if file.exists() else ()


def _last_words(life: Life) -> str:
    lines = _lines(life.folder / f"output-{life.number}")
    return lines[-1] if lines else "it left no word"
