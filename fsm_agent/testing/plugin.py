"""The pytest plugin: the fixture `crash_sweep`. It imports nothing until a test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fsm_agent.testing.crash.fixture import CrashSweep


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --crash-replay."""
    group = parser.getgroup("fsm-agent", "crash tests of agents")
    group.addoption(
        "--crash-replay",
        metavar="CASE",
        help="play only this case of each crash_sweep, from the line of a failure",
    )


@pytest.fixture
def crash_sweep(request: pytest.FixtureRequest) -> CrashSweep:
    """Kill an agent's process at every point, and count what its tools did.

    report = crash_sweep(agent, task="refund order 7", script=script)
    """
    from fsm_agent.testing.crash.fixture import CrashSweep

    return CrashSweep(
        test=request.node.nodeid, replay=request.config.getoption("--crash-replay", None)
    )
