"""The sweep proves itself: wrong runtimes must be caught by the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsm_agent.engine import act, calls
from fsm_agent.testing.crash import Report, Scenario, sweep
from tests.crash.desk import DeskModel, make_desk


def swept(folder: Path, point: str) -> Report:
    scenario = Scenario(
        make_agent=make_desk,
        make_model=DeskModel,
        task="Refund order A7.",
        store_url=f"embedded:{folder / 'store'}",
    )
    report = sweep(scenario, folder, only=lambda name: name == point)
    assert report.points == [point]
    assert report.never_reached == []
    return report


def test_a_runtime_that_starts_before_its_intent_is_on_record_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgetful(self: Any, works: list[calls.Work]) -> None:
        for work in works:
            self._seen.forget(work.call_id)

    monkeypatch.setattr(act._Batch, "_put_intents_on_record", forgetful)

    (outcome,) = swept(tmp_path, "effect refund#1:before").outcomes

    assert outcome.result.answer == "Order A7 was refunded."  # which alone would have passed it
    assert outcome.ledger.raw("refund") == 2


def test_a_runtime_whose_keys_change_with_the_attempt_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_position = calls.Scene._key

    def by_attempt(self: calls.Scene, call: Any, tool: Any, bound: Any) -> str:
        return f"{by_position(self, call, tool, bound)}-{call.starts}"

    monkeypatch.setattr(calls.Scene, "_key", by_attempt)
    monkeypatch.setattr(calls.Scene, "_change_of", lambda *_: "")

    (outcome,) = swept(tmp_path, "effect hold#1:before").outcomes

    assert outcome.ledger.by_key("hold") == 2


def test_a_point_that_is_never_reached_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsm_agent.testing import crash

    monkeypatch.setattr(crash.Points, "reach", _only_traces)

    scenario = Scenario(
        make_agent=make_desk,
        make_model=DeskModel,
        task="Refund order A7.",
        store_url=f"embedded:{tmp_path / 'store'}",
    )
    report = sweep(scenario, tmp_path, only=lambda name: name == "create#1:before")

    assert report.never_reached == ["create#1:before"]


def _only_traces(self: Any, name: str, moment: str) -> None:
    """A hook that forgets to kill."""
    import os

    if moment == "before":
        self._counts[name] += 1
    os.write(self._trace, f"{name}#{self._counts[name]}:{moment}\n".encode())
