"""Crash reports, as `fsm-agent crashtest` writes them: JSON, read loosely."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from fsm_agent.inbox.problems import Problem, not_found

MAX_BYTES = 5_000_000
MAX_CASES = 20_000
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}\.jsonl?")
_GREEN = ("ok", "green", "pass", "passed", "same", "done", "true")
_AMBER = ("asked", "amber", "in_doubt", "in doubt", "waiting", "unknown", "person")

Colour = Literal["green", "amber", "red"]
_WORDS: dict[Colour, str] = {"green": "ended alike", "amber": "asked a person", "red": "failed"}


class Cell(NamedTuple):
    """One try: a fault at a point."""

    colour: Colour
    word: str
    words: str
    replay: str


class Report(NamedTuple):
    """A grid of points and faults."""

    name: str
    is_ok: bool | None
    totals: dict[str, Any]
    faults: list[str]
    rows: list[tuple[str, list[Cell | None]]]
    failures: list[tuple[str, str, Cell]]


class Listed(NamedTuple):
    """A report in the folder."""

    name: str
    at_ms: int
    size_bytes: int


def listed(folder: Path) -> list[Listed]:
    """The reports of a folder, newest first. A folder that is not there holds none."""
    try:
        with os.scandir(folder) as found:
            kept = [
                Listed(each.name, each.stat().st_mtime_ns // 1_000_000, each.stat().st_size)
                for each in found
                if _NAME.fullmatch(each.name) and each.is_file(follow_symlinks=False)
            ]
    except OSError:
        return []
    return sorted(kept, key=lambda each: each.at_ms, reverse=True)[:200]


def read(folder: Path, name: str) -> Report:
    """A report by its name. Raises Problem: 404 or 422."""
    raw = _bytes(folder, name)
    try:
        objects = _objects(raw)
    except (ValueError, RecursionError) as error:
        raise Problem(422, "bad-report", f"{name} is not a crash report: {error}") from error
    totals: dict[str, Any] = {}
    cases: list[dict[str, Any]] = []
    for each in objects:
        nested = [v for v in each.values() if isinstance(v, list) and v and _are_cases(v)]
        cases += [case for found in nested for case in found]
        if not nested and _place(each)[0]:
            cases.append(each)
        else:
            totals |= {
                name: value
                for name, value in each.items()
                if name != "event" and isinstance(value, (int, float, str, bool))
            }
    return _report(name, totals, cases[:MAX_CASES])


def _bytes(folder: Path, name: str) -> bytes:
    if not _NAME.fullmatch(name):
        raise not_found("There is no such report.")
    try:
        home = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # By the folder's handle and never through a link: no name leads out of it.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=home)
        finally:
            os.close(home)
    except OSError:
        raise not_found("There is no such report.") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise not_found("There is no such report.")
    with open(file, "rb") as opened:
        raw = opened.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise Problem(422, "bad-report", f"{name} is larger than {MAX_BYTES:,} bytes.")
    return raw


def _objects(raw: bytes) -> list[dict[str, Any]]:
    try:
        found = [msgspec.json.decode(raw)]
    except msgspec.MsgspecError:
        found = [json.loads(line) for line in raw.splitlines() if line.strip()]
    return [each for each in found if isinstance(each, dict)]


def _are_cases(values: Iterable[Any]) -> bool:
    return all(isinstance(each, dict) and _place(each)[0] for each in values)


def _place(case: dict[str, Any]) -> tuple[str, str]:
    """Point and fault of a case; '' for what is none. `commit#3:before=kill` says both."""
    if point := _first(case, "point", "at", "where"):
        return point, _first(case, "fault", "kind") or "kill"
    point, _, fault = _first(case, "case").rpartition("=")
    return point or fault, fault if point else "kill"


def _first(case: dict[str, Any], *names: str) -> str:
    for name in names:
        value = case.get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)
        if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            return " + ".join(value)
    return ""


def _cell(case: dict[str, Any]) -> Cell:
    told = _first(case, "colour", "verdict", "outcome", "status").lower()
    is_bad = case.get("ok") is False or bool(case.get("problems"))
    is_asked = bool(case.get("in_doubt") or case.get("asked")) or told in _AMBER
    is_good = case.get("ok") is True or told in _GREEN
    colour: Colour = "red" if is_bad else "amber" if is_asked else "green" if is_good else "red"
    words = _first(case, "problem", "problems", "reasons", "message", "detail", "why")
    return Cell(colour, _WORDS[colour], words, _first(case, "replay"))


def _report(name: str, totals: dict[str, Any], cases: list[dict[str, Any]]) -> Report:
    points = list(dict.fromkeys(_place(case)[0] for case in cases))
    faults = list(dict.fromkeys(_place(case)[1] for case in cases))
    cells: dict[tuple[str, str], Cell] = {}
    worst = {"green": 0, "amber": 1, "red": 2}
    for case in cases:
        place = _place(case)
        cell = _cell(case)
        if place not in cells or worst[cell.colour] > worst[cells[place].colour]:
            cells[place] = cell
    rows = [(point, [cells.get((point, fault)) for fault in faults]) for point in points]
    failures = [(*place, cell) for place, cell in cells.items() if cell.colour == "red"]
    is_ok = totals.pop("ok", None)
    return Report(name, is_ok if isinstance(is_ok, bool) else None, totals, faults, rows, failures)
