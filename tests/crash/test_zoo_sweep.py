"""A tool of every kind, killed around each call: in threads, tasks, processes and child agents."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fsm_agent.capabilities.load import load_agent
from fsm_agent.testing.crash import Plan, Report, Scenario, approving_only, sweep
from fsm_agent.testing.crash.case import parse
from fsm_agent.testing.scripted import scripted_model

ZOO = Path(__file__).parent / "zoo.py"
OTHERS = ("signal#", "release#", "create#2")  # of the child run


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    agent = load_agent(f"{ZOO}:agent")
    module = sys.modules["fsm_agent_file_zoo"]
    return Scenario(
        make_agent=agent, make_model=lambda: scripted_model(module.script), task=module.TASK
    )


@pytest.fixture(scope="module")
def report(scenario: Scenario) -> Report:
    plan = Plan(only=lambda point: point.startswith(("tool ", *OTHERS)), jobs=2)
    return sweep(scenario, plan=plan)


def test_every_kind_of_tool_is_killed_around_its_calls(report: Report) -> None:
    killed = {o.case.strikes[0].point.partition("#")[0] for o in report.outcomes}

    assert killed >= {"tool look", "tool send", "tool isolated", "tool book", "tool pay"}
    assert report.uncalled == ()
    report.passed()


def test_effects_are_counted_although_no_tool_knows_of_a_ledger(report: Report) -> None:
    rows = {row.tool: row for row in report.effects()}

    assert {tool: row.effect for tool, row in rows.items()} == {
        "look": "read",
        "send": "keyed",
        "isolated": "idempotent",
        "book": "probed",
        "pay": "unsafe",
    }
    for tool in ("send", "book", "pay"):
        report.effect_once(tool)
    assert rows["send"].most_sent == 2
    with pytest.raises(AssertionError, match=r"look \(read\) took effect"):
        report.effect_once("look")


def test_only_the_tool_that_nobody_can_check_needs_a_person(report: Report) -> None:
    report.asks_human_only_for("pay")
    assert len(report.in_doubt) == 2  # before and after its call
    with pytest.raises(AssertionError, match="tool pay#1:after=kill"):
        report.asks_human_only_for("book")


@pytest.mark.parametrize(
    "line",
    [
        "tool isolated#1:before=kill; tool isolated#1:before=kill",
        "tool book#1:after=kill; claim#1:after=kill",
        "tool pay#1:before=kill; tool pay#1:after=kill",
    ],
)
def test_two_deaths_in_one_run_change_nothing_either(scenario: Scenario, line: str) -> None:
    report = sweep(scenario, plan=Plan(replay=parse(line)[0]))

    report.passed()
    assert [ending.how for ending in report.outcomes[0].endings] == ["killed", "killed", "done"]


def test_a_person_who_refuses_is_heard_in_every_case(scenario: Scenario) -> None:
    from dataclasses import replace

    refusing = replace(scenario, decide=approving_only(frozenset()))
    report = sweep(refusing, plan=Plan(only=lambda point: point.startswith("decide#1")))

    report.passed()
    assert "pay" not in {row.tool for row in report.effects()}
