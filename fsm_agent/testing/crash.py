"""Killing an agent's process at every point that matters, and counting what it did to the world.

A sweep runs a scenario once undisturbed and writes down every point it passes: before and after
each writing call to the store, around each tool, and after each effect. Then it runs it again
for each point in a child process that kills itself there with SIGKILL, lets other processes finish
the run, and compares.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from checkpoints.connect import open_store
from checkpoints.errors import AskExpired, AskLocked, RunBusy, RunClosed
from checkpoints.store import Store
from fsm_agent.capabilities.agent import Agent
from fsm_agent.capabilities.delegate import AgentTool
from fsm_agent.engine.deps import EngineSettings
from fsm_agent.llm.model import Model
from fsm_agent.run.delta import Asked, Intended, Settled
from fsm_agent.runtime import Request, Result, Runtime
from fsm_agent.tools.ask_user import is_question
from fsm_agent.tools.registry import Tool

# What changes the store. Reading twice is no fault, so reads are no points.
WRITES = ("create", "claim", "commit", "release", "signal", "decide", "put_blob")
LOOK_S = 0.02


class Points:
    """Counts the named points that a process passes, and kills it at one of them.

    Every point is written to `trace` as it is reached, so that it is known after a SIGKILL.
    """

    def __init__(self, trace: Path, kill_at: str | None = None) -> None:
        self._trace = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._kill_at = kill_at
        self._counts: Counter[str] = Counter()

    def reach(self, name: str, moment: str) -> None:
        """Pass a point: its full name is `name#N:moment`, N counting the name's passes from 1."""
        if moment == "before":
            self._counts[name] += 1
        point = f"{name}#{self._counts[name]}:{moment}"
        os.write(self._trace, f"{point}\n".encode())
        if point == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class PointedStore:
    """A store whose writing calls are points: before it is sent, and after it was acknowledged."""

    def __init__(self, store: Store, points: Points) -> None:
        self._store, self._points = store, points

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._pointed(name, found) if name in WRITES else found

    def _pointed(
        self, name: str, call: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def pointed(*args: Any, **kwargs: Any) -> Any:
            self._points.reach(name, "before")
            answer = await call(*args, **kwargs)
            self._points.reach(name, "after")
            return answer

        return pointed


def pointed_tool(tool: Tool[..., Any], points: Points) -> Tool[..., Any]:
    """The tool with a point before it starts and one after it has returned."""
    if isinstance(tool, AgentTool):
        return replace(tool, agent=pointed_agent(tool.agent, points))
    if tool.isolation == "process" or is_question(tool):
        return tool  # its process has no points, and finds its function by name; nor has a question
    name = f"tool {tool.name}"

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        points.reach(name, "before")
        value = await tool.function(*args, **kwargs)
        points.reach(name, "after")
        return value

    def run(*args: Any, **kwargs: Any) -> Any:
        points.reach(name, "before")
        value = tool.function(*args, **kwargs)
        points.reach(name, "after")
        return value

    return replace(tool, function=run_async if tool.is_async else run)


def pointed_agent(agent: Agent, points: Points) -> Agent:
    """The agent with every tool pointed."""
    return agent.with_tools([pointed_tool(tool, points) for tool in agent.registry])


class Ledger:
    """Effects in a file outside the store, as the world would see them: one line each, appended.

    `points` makes the moment right after an effect a point.
    """

    def __init__(self, path: Path, points: Points | None = None) -> None:
        self.path, self._points = path, points

    def record(self, tool: str, key: str) -> None:
        """An effect happens now. `key` is what the other side would tell repeats by."""
        line = json.dumps({"tool": tool, "key": key, "pid": os.getpid()}) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        if self._points:
            self._points.reach(f"effect {tool}", "before")

    def effects(self) -> list[tuple[str, str]]:
        """Every effect as (tool, key), in order."""
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [(line["tool"], line["key"]) for line in lines]

    def raw(self, tool: str) -> int:
        """How often the tool's effect was sent."""
        return sum(name == tool for name, _ in self.effects())

    def by_key(self, tool: str) -> int:
        """How many effects a receiver that honours keys would have seen."""
        return len({key for name, key in self.effects() if name == tool})


MakeAgent = Callable[[Ledger], Agent]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What a sweep runs: an agent made for a ledger, its model, a task, and a person.

    `decide` says what the person answers to a request, given the ledger: the verb, and for
    `happened` the result. The default approves, and settles what is in doubt by looking at the
    ledger.
    """

    make_agent: MakeAgent
    make_model: Callable[[], Model]
    task: str
    store_url: str
    lease_s: float = 0.3
    doubt_grace_s: float = 0.1
    time_limit_s: float = 30.0
    decide: Callable[[Request, Ledger], tuple[str, str | None]] = field(
        default_factory=lambda: truthful_person
    )


def truthful_person(request: Request, ledger: Ledger) -> tuple[str, str | None]:
    """Approves everything, and answers 'did it happen?' by what the ledger says."""
    if request.question.kind == "in_doubt":
        happened = ledger.raw(request.question.tool) > 0
        return ("happened", "confirmed by a look at the ledger") if happened else ("rerun", None)
    if request.question.kind == "question":
        return "answer", "yes"
    return "approve", None


@dataclass(frozen=True)
class Outcome:
    """What came of one run of the sweep."""

    killed_at: str | None
    result: Result
    ledger: Ledger
    asked_in_doubt: tuple[str, ...]  # tools
    takeovers: int
    calls: dict[str, int]  # results on record per call id
    starts: dict[str, int]  # intents on record per tool


@dataclass
class Report:
    """What a sweep found."""

    undisturbed: Outcome
    points: list[str]
    outcomes: list[Outcome] = field(default_factory=list)
    never_reached: list[str] = field(default_factory=list)


def sweep(scenario: Scenario, folder: Path, *, only: Callable[[str], bool] | None = None) -> Report:
    """Run the scenario undisturbed, then once for each point with a SIGKILL there.

    `only` narrows the points. A point at which the child did not die is listed as never reached,
    which no caller should accept. Forks: call it where no event loop runs in this thread.
    """
    calm, points = _run(scenario, folder / "calm", None)
    report = Report(undisturbed=calm, points=[p for p in points if only is None or only(p)])
    for number, point in enumerate(report.points):
        outcome, _ = _run(scenario, folder / f"kill-{number}", point)
        if outcome.killed_at is None:
            report.never_reached.append(point)
        report.outcomes.append(outcome)
    return report


def _run(scenario: Scenario, folder: Path, kill_at: str | None) -> tuple[Outcome, list[str]]:
    """One run to its end: a first process that may be killed, and a second one that finishes."""
    folder.mkdir(parents=True)
    trace, ledger_path = folder / "points", folder / "ledger"
    run_id = f"sweep-{os.getpid()}-{folder.name}-{os.urandom(4).hex()}"

    def first() -> None:
        points = Points(trace, kill_at)
        asyncio.run(_live(scenario, run_id, Ledger(ledger_path, points), points))

    was_killed = in_child(first, time_limit_s=scenario.time_limit_s) == -signal.SIGKILL
    passed = trace.read_text().splitlines()
    if kill_at is None and was_killed:
        raise AssertionError("the undisturbed run was killed: its time limit is too short")
    calm = Ledger(ledger_path)
    with asyncio.Runner() as runner:
        outcome = runner.run(_finish(scenario, run_id, calm, kill_at if was_killed else None))
    return outcome, passed


def in_child(body: Callable[[], None], *, time_limit_s: float = 30.0) -> int:
    """Run `body` in a forked child and wait for it. Its exit code, or minus the signal."""
    return wait_for(fork(body, time_limit_s=time_limit_s))


def fork(body: Callable[[], None], *, time_limit_s: float = 30.0) -> int:
    """Start `body` in a forked child; its process id. What it raises goes to stderr, as code 1.

    A child that outlives the limit is killed with SIGALRM. Call it where no event loop runs.
    """
    pid = os.fork()
    if pid == 0:
        _become_child(body, time_limit_s)
    return pid


def wait_for(pid: int) -> int:
    """Wait for a child to end. Its exit code, or minus the signal."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _become_child(body: Callable[[], None], time_limit_s: float) -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, time_limit_s)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    code = 1
    try:
        body()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


async def _live(scenario: Scenario, run_id: str, ledger: Ledger, points: Points) -> Result:
    """Start the run and see it to its end, as worker and as person."""
    store = await open_store(scenario.store_url)
    try:
        pointed: Any = PointedStore(store, points)
        agent = pointed_agent(scenario.make_agent(ledger), points)
        async with _runtime(scenario, pointed) as runtime:
            return await _to_the_end(scenario, runtime, agent, run_id, ledger)
    finally:
        await store.aclose()


async def _finish(
    scenario: Scenario, run_id: str, ledger: Ledger, killed_at: str | None
) -> Outcome:
    """Take over what the first process left, and look at the whole."""
    store = await open_store(scenario.store_url)
    try:
        async with _runtime(scenario, store) as runtime:
            agent = scenario.make_agent(ledger)
            async with asyncio.timeout(scenario.time_limit_s):
                result = await _to_the_end(scenario, runtime, agent, run_id, ledger)
            return await _look(runtime, result, ledger, killed_at)
    finally:
        await store.aclose()


def _runtime(scenario: Scenario, store: Any) -> Any:
    settings = EngineSettings(lease_s=scenario.lease_s, doubt_grace_s=scenario.doubt_grace_s)
    return Runtime.open(store, model=scenario.make_model(), settings=settings, is_live=False)


async def _to_the_end(
    scenario: Scenario, runtime: Runtime, agent: Agent, run_id: str, ledger: Ledger
) -> Result:
    await runtime.start(agent, scenario.task, run_id=run_id, requester="sweep")
    while True:
        try:
            result = await runtime.work(run_id, agent)
        except RunClosed:
            return await runtime.result(run_id)
        except RunBusy:
            await asyncio.sleep(LOOK_S)  # until the dead worker's lease has run out
            continue
        if result.status in ("done", "error"):
            return result
        for request in await runtime.requests(run_id):
            await _decide(scenario, runtime, request, ledger)


async def _decide(scenario: Scenario, runtime: Runtime, request: Request, ledger: Ledger) -> None:
    verb, answer = scenario.decide(request, ledger)
    number = len(request.votes)  # where several people must agree, the next one
    person = f"person {number}" if number else "person"
    while True:
        try:
            await runtime.decide(
                request.run_id,
                request.ask_id,
                verb,  # type: ignore[arg-type]
                by=person,
                answer=answer,
                decision_id=f"{person}-{request.ask_id}",  # who clicks again means the same
            )
            return
        except AskLocked:
            await asyncio.sleep(LOOK_S)
        except AskExpired:
            return  # time has decided; the run is due


async def _look(runtime: Runtime, result: Result, ledger: Ledger, killed_at: str | None) -> Outcome:
    history = await runtime.history(result.run_id)
    deltas = [delta for event in history for delta in event.record.deltas]
    names = {call.call_id: call.name for delta in deltas for call in getattr(delta, "calls", ())}
    doubts = [names[d.call_id] for d in deltas if isinstance(d, Asked) and d.kind == "in_doubt"]
    return Outcome(
        killed_at=killed_at,
        result=result,
        ledger=ledger,
        asked_in_doubt=tuple(doubts),
        takeovers=sum(getattr(delta, "is_takeover", False) for delta in deltas),
        calls=Counter(d.call_id for d in deltas if isinstance(d, Settled)),
        starts=Counter(names[d.call_id] for d in deltas if isinstance(d, Intended)),
    )
