"""A tool in a process of its own: whatever it does there ends as the result of its call."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import stamina

from fsm_agent.errors import BadAgent
from fsm_agent.run.content import Source
from fsm_agent.tools import ToolContext, tool
from fsm_agent.tools.dispatch import Result, run_call
from fsm_agent.tools.isolation import Resources, place_of
from fsm_agent.tools.registry import Registry
from tests.unit import isolated

CONTEXT = ToolContext(run_id="r", call_id="c7", idempotency_key="k9")
is_linux = sys.platform == "linux"


async def call(made: Any, context: ToolContext = CONTEXT, **arguments: Any) -> Result:
    with stamina.set_testing(True, attempts=100, cap=True):
        return await run_call(made, made.bind(json.dumps(arguments)), context)


async def test_arguments_and_results_go_there_and_back_and_prints_go_nowhere():
    result = await call(isolated.add, a=2)

    assert (result.status, result.text) == ("success", '{"sum": 3}')


async def test_the_context_goes_along_and_progress_comes_back():
    heard: list[str] = []
    context = ToolContext(
        run_id="r", call_id="c7", idempotency_key="k9", attempt=2, on_progress=heard.append
    )

    result = await call(isolated.add_async, context, a=2)

    assert result.text == '[2, "k9", "c7", 2, true]'
    assert heard == ["adding 2"]


async def test_outcomes_come_back_as_they_are():
    partial, over, asks, nan, none = [
        await call(isolated.show, what=what)
        for what in ("partial", "terminate", "pause", "nan", "nothing")
    ]

    assert (partial.status, partial.text) == ("partial", "[1]\n[Not all of it: half]")
    assert (over.ends, over.text, over.sources) == (
        True,
        "over",
        (Source("http://a", "http://a"),),
    )
    assert asks.question is not None
    assert (asks.question.question, asks.question.options) == ("Who?", ("a",))
    assert "NaN and infinity are not JSON" in nan.text
    assert none.text == "(no result)"


async def test_a_long_result_is_cut_here_and_kept_whole():
    result = await call(isolated.show, what="big")

    assert len(result.text) <= 20_000
    assert len(result.full or b"") == 3_000_000


async def test_much_progress_blocks_nothing():
    heard: list[str] = []
    context = ToolContext(run_id="r", call_id="c", idempotency_key="k", on_progress=heard.append)

    result = await call(isolated.progress_forever, context)

    assert (result.text, len(heard)) == ("told", 500)


async def test_only_allowed_variables_and_no_descriptors_are_inherited(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("openai_api_key", "secret")
    monkeypatch.setenv("FSM_SEEN", "yes")
    ours, theirs = os.pipe()
    os.set_inheritable(ours, True)

    environment = json.loads((await call(isolated.show, what="environment")).text)
    files = json.loads((await call(isolated.show, what="files")).text)

    os.close(ours)
    os.close(theirs)
    assert environment["FSM_SEEN"] == "yes"
    assert not {name for name in environment if name.lower() == "openai_api_key"}
    assert set(environment) <= {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "FSM_SEEN"}
    assert len(files) <= 5  # the three standard ones, the line to us, and the listing itself


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "ZeroDivisionError: division by zero"),
        ("exit", "SystemExit: 4"),
        ("_exit", "its process ended with exit code 3 before it had a result"),
        ("segfault", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("memory", "MemoryError"),
        ("write", "OSError"),
        ("spin", "more than 2 s of CPU time"),
        ("interrupt", "KeyboardInterrupt"),
        ("close", "before it had a result"),
        pytest.param(
            "bomb",
            "more than 8 processes",
            marks=pytest.mark.skipif(not is_linux, reason="counts in /proc"),
        ),
    ],
)
async def test_whatever_it_does_ends_as_its_result(how, words):
    result = await call(isolated.misbehave, how=how)

    assert result.status == "error"
    alternatives = (words, "BlockingIOError") if how == "bomb" else (words,)
    assert any(each in result.text for each in alternatives), result.text
    assert not result.is_effect_unknown
    if is_linux:
        assert _left_of("tests.unit.isolated") == []


def _left_of(word: str) -> list[str]:
    """Command lines of our own children that are still there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
        except (OSError, ValueError):
            continue
        if parent == os.getpid() and "fsm_agent.tools.child" in line:
            found.append(line)
    return found


async def test_a_loop_that_never_yields_is_killed_at_its_time_limit():
    began = time.monotonic()

    result = await call(isolated.spin_async)

    assert (result.status, result.is_still_running) == ("timeout", False)
    assert time.monotonic() - began < 4


async def test_the_whole_group_dies_at_a_timeout_and_after_a_result(tmp_path):
    slow = asyncio.create_task(call(isolated.leave_children, folder=str(tmp_path)))
    quick = await call(isolated.leave_a_child_and_return, folder=str(tmp_path))
    timed_out = await slow
    await asyncio.sleep(3.2)

    assert (quick.text, timed_out.status) == ("returned", "timeout")
    assert (tmp_path / "began-hang").exists()
    assert not (tmp_path / "late-hang").exists()
    assert not (tmp_path / "late-return").exists()


async def test_cancelling_the_call_kills_it(tmp_path):
    running = asyncio.create_task(call(isolated.leave_children, folder=str(tmp_path)))
    while not (tmp_path / "began-hang").exists():
        await asyncio.sleep(0.02)

    running.cancel()
    await asyncio.wait([running])
    await asyncio.sleep(3.2)

    assert running.cancelled()
    assert not (tmp_path / "late-hang").exists()


async def test_a_death_midway_leaves_an_effect_unknown_unless_it_was_harmless():
    unsafe, keyed = await call(isolated.die_unsafe), await call(isolated.die_keyed)

    assert (unsafe.status, unsafe.is_effect_unknown) == ("error", True)
    assert (keyed.status, keyed.is_effect_unknown) == ("error", True)
    assert "Its effect may have happened." in unsafe.text


# -- where the function is found ------------------------------------------------------------------


AGENT_FILE = """
from fsm_agent import Agent, tool
from dataclasses import dataclass

from beside import FACTOR

@dataclass
class Order:
    number: int

@tool(effect="read", isolation="process")
def double(order: Order) -> int:
    return order.number * FACTOR

if __name__ == "__main__":
    raise SystemExit("must not run")

agent = Agent("filed", tools=[double])
"""


async def test_a_tool_of_an_agent_file_works(tmp_path):
    from fsm_agent.capabilities.load import load_agent

    (tmp_path / "beside.py").write_text("FACTOR = 2\n")
    (tmp_path / "filed.py").write_text(AGENT_FILE)
    agent = load_agent(f"{tmp_path / 'filed.py'}:agent")

    result = await call(agent.registry.get("double"), order={"number": 21})

    assert result.text == "42"


def test_a_tool_of_a_script_is_found_by_its_file(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        AGENT_FILE.replace('    raise SystemExit("must not run")', "    pass")
        + "\nimport asyncio\nfrom fsm_agent.tools.dispatch import run_call\n"
        "from fsm_agent.tools import ToolContext\n"
        'if __name__ == "__main__":\n'
        "    made = agent.registry.get('double')\n"
        "    c = ToolContext(run_id='r', call_id='c', idempotency_key='k')\n"
        '    bound = made.bind(\'{"order":{"number":4}}\')\n'
        "    print(asyncio.run(run_call(made, bound, c)).text)\n"
    )
    (tmp_path / "beside.py").write_text("FACTOR = 2\n")
    import subprocess

    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)

    assert done.stdout.strip() == "8", done.stderr


def local_tool() -> Any:
    def inner() -> None: ...

    return inner


class Shop:
    def find(self) -> None: ...


def shadowed() -> None: ...


first_shadowed = shadowed


def shadowed() -> None: ...  # type: ignore[no-redef]


@pytest.mark.parametrize(
    "function", [local_tool(), lambda: None, Shop().find, functools.partial(shadowed)]
)
def test_a_function_that_cannot_be_found_is_refused_at_its_declaration(function):
    with pytest.raises(BadAgent, match="isolation='process'"):
        tool(function, name="t", isolation="process")


def test_a_name_that_means_something_else_is_refused_when_an_agent_gets_it():
    made = tool(first_shadowed, isolation="process")

    with pytest.raises(BadAgent, match="something else"):
        Registry([made])


def test_a_module_without_a_file_is_refused():
    exec_globals: dict[str, Any] = {"__name__": "nowhere_at_all"}
    exec("def f() -> None: ...", exec_globals)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("nowhere_at_all", None)
    )
    module.f = exec_globals["f"]  # type: ignore[attr-defined]
    sys.modules["nowhere_at_all"] = module
    try:
        with pytest.raises(BadAgent, match="has no file"):
            place_of(exec_globals["f"], "t")
    finally:
        del sys.modules["nowhere_at_all"]


@pytest.mark.parametrize(
    "settings",
    [
        {"isolation": "proces"},
        {"resources": Resources()},
        {"isolation": "process", "resources": Resources(memory_mb=1)},
        {"isolation": "process", "resources": Resources(cpu_s=0)},
    ],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(BadAgent):
        tool(shadowed, **settings)
