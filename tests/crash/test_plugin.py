"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

ROOT = Path(__file__).parents[2]
SUITE = '''
import uuid
from fsm_agent import Agent, ToolContext, keyed, tool
from fsm_agent.testing import Script, call, when

script = Script(
    when(tool="refund").then("Paid back.", label="FINISH"),
    when(user="refund").then(tool_calls=[call("refund", order="A7")], label="TOOL"),
)


def make_agent(ledger):
    @tool(effect=EFFECT)
    def refund(order: str, ctx: ToolContext) -> str:
        """Pay an order back."""
        ledger.record("refund", KEY)
        return "paid"

    return Agent("desk", "Refund.", tools=[refund])


def test_refund(crash_sweep):
    report = crash_sweep(make_agent, task="refund order A7", script=script, AT)
    report.same_answer()
    report.asks_human_only_for(ASKED)
    report.reached_all_points()
    report.effect_once("refund")
'''


def suite(*, effect: str, key: str, asked: str = "", at: str = "") -> str:
    words = {"EFFECT": effect, "KEY": key, "ASKED": asked, ", AT": at}
    text = SUITE
    for name, value in words.items():
        text = text.replace(name, value)
    return text


@pytest.fixture
def pytester(pytester: pytest.Pytester) -> pytest.Pytester:
    # Its own settings: those of this repository are not a user's.
    pytester.makeini("[pytest]\n")
    return pytester


def test_an_agent_that_keeps_its_promises_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(suite(effect='"unsafe"', key="order", asked='"refund"'))

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(passed=1)


def test_a_key_of_the_tools_own_is_caught_and_its_line_plays_it_again(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(suite(effect="keyed(ttl_s=60)", key="uuid.uuid4().hex"))

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "refund (keyed) took effect 2 times, not 1" in text
    assert "tool refund#1:after=kill" in text
    (line, *_) = re.findall(r"replay: pytest (.*)", text)
    again = pytester.runpytest_subprocess(*shlex.split(line))
    again.assert_outcomes(failed=1)
    assert "1 of 1 cases" in again.stdout.str()


def test_a_replayed_point_that_does_not_exist_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(suite(effect='"unsafe"', key="order", asked='"refund"'))

    result = pytester.runpytest_subprocess("--crash-replay", "commit#99:after=kill")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*never reached*"])


def test_a_sweep_may_kill_twice_and_strike_the_store(pytester: pytest.Pytester) -> None:
    at = ', at="tools", pairs="adjacent", budget="120s", jobs=2'
    pytester.makepyfile(suite(effect='"unsafe"', key="order", asked='"refund"', at=at))

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(passed=1)


def test_a_budget_that_is_too_small_is_no_pass(pytester: pytest.Pytester) -> None:
    at = ', budget="0.001s"'
    pytester.makepyfile(suite(effect='"unsafe"', key="order", asked='"refund"', at=at))

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(failed=1)


def test_a_run_that_does_not_use_it_imports_nothing_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing(request):
            assert "fsm_agent.testing.plugin" in sys.modules
            heavy = {"fsm_agent.runtime", "fsm_agent.testing.script", "checkpoints", "openai"}
            assert heavy & set(sys.modules) == set()
        """
    )

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(passed=1)


def test_the_fixture_is_listed_without_any_setting(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--fixtures", "-q")

    result.stdout.fnmatch_lines(["crash_sweep*"])


def test_the_plugin_is_declared() -> None:
    code = (
        "from importlib.metadata import entry_points;"
        "(found,) = entry_points(group='pytest11', name='fsm-agent'); print(found.value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "fsm_agent.testing.plugin"
