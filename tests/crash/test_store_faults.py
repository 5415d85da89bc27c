"""Every fault of the vocabulary, at a read, a claim and a commit; all requests are a command:

fsm-agent crashtest --demo --faults all --jobs 2
"""

from __future__ import annotations

import pytest

from fsm_agent.testing.crash import Plan, Report, Scenario, sweep
from fsm_agent.testing.crash.network import faults_of
from fsm_agent.testing.faults import CRASHES, ERROR_LINES, NETWORK, Fault
from tests.crash.desk import DeskModel, make_desk

STRUCK = ("wire claim#1", "wire XRANGE#1", "wire commit#3")
# A cluster's and a replica's answers: this server is neither.
ELSEWHERE = {Fault.MOVED, Fault.ASK, Fault.TRYAGAIN, Fault.CLUSTERDOWN, Fault.MASTERDOWN}


@pytest.fixture(scope="module")
def report() -> Report:
    scenario = Scenario(make_agent=make_desk, make_model=DeskModel, task="Refund order A7.")
    plan = Plan(at=("store_ops",), only=lambda point: point in STRUCK, jobs=3)
    return sweep(scenario, plan=plan)


def test_no_fault_changes_the_answer_or_an_effect(report: Report) -> None:
    report.passed()
    report.effect_once("hold")
    report.effect_once("refund")


def test_a_fault_before_the_tools_asks_nobody(report: Report) -> None:
    early = [o for o in report.in_doubt if o.case.strikes[0].point != "wire commit#3"]

    assert early == []


def test_every_fault_that_can_meet_a_commit_does(report: Report) -> None:
    met = {o.case.strikes[0].fault for o in report.outcomes}

    assert met == (NETWORK | set(ERROR_LINES) | {Fault.CANCELLED_AWAIT}) - ELSEWHERE
    assert not met & CRASHES


def test_a_fault_that_passes_is_survived_by_the_process_that_meets_it(report: Report) -> None:
    stops = {Fault.NOAUTH, Fault.NOPERM, Fault.CANCELLED_AWAIT, Fault.LATE_REQUEST}
    passing = [
        outcome
        for outcome in report.outcomes
        if not outcome.case.strikes[0].lasts and outcome.case.strikes[0].fault not in stops
    ]

    assert passing
    assert [o.case for o in passing if len(o.endings) != 1] == []


def test_reads_meet_no_faults_that_only_writes_can() -> None:
    of_read = {fault for fault, _ in faults_of("wire XRANGE#1")}

    assert not of_read & {Fault.OOM, Fault.READONLY, Fault.NOSCRIPT, Fault.LATE_REQUEST}
    assert {Fault.LOADING, Fault.LOST_REQUEST, Fault.NOPERM} <= of_read
