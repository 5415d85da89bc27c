"""`crashtest`: what becomes of an agent's run that is killed at every write, and of its effects."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from fsm_agent.capabilities.agent import Agent
from fsm_agent.cli import asjson, failures, remembered
from fsm_agent.cli.clean import cleaned
from fsm_agent.cli.failures import USAGE, CliError
from fsm_agent.cli.process import Stopped, put, say
from fsm_agent.cli.settings import Words, current, json_only
from fsm_agent.errors import UsageError
from fsm_agent.llm.model import Model

if TYPE_CHECKING:
    from fsm_agent.testing.crash import Case, Outcome, Person, Plan, Report, Scenario

LIMIT_S = 30.0
_FAULTS = {
    "kill": ("transitions", "tools"),
    "store": ("store_ops",),
    "all": ("transitions", "tools", "store_ops"),
}


class _Span(click.ParamType):  # type: ignore[type-arg]
    """A length of time, such as 90, 60s or 5m."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from fsm_agent.testing.crash.span import seconds

        try:
            return seconds(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True)
class _Subject:
    """What is tested, and the words with which it is asked for again."""

    agent: Agent
    make_agent: Callable[[], Agent]
    make_model: Callable[[], Model]
    task: str
    words: str  # of the command line, but for the case


@click.command("crashtest")
@click.argument("path", metavar="[PATH:NAME]", required=False)
@click.option("--task", type=Words(), help="What the agent should do.")
@click.option(
    "--script",
    metavar="PATH:NAME",
    help="A fsm_agent.testing.Script that plays the model.  [default: the configured model]",
)
@click.option("--demo", is_flag=True, help="Test the demo's refund desk, with its script.")
@click.option(
    "--faults",
    type=click.Choice(list(_FAULTS)),
    default="kill",
    help="SIGKILL at every write and tool, or faults of the store.  [default: kill]",
)
@click.option(
    "--pairs",
    type=click.Choice(["none", "adjacent", "all"]),
    default="none",
    help="Kill the process that takes over too: soon, or everywhere.  [default: none]",
)
@click.option(
    "--approve",
    metavar="all|none|TOOL,…",
    default="all",
    help="What the person of the test lets run.  [default: all]",
)
@click.option("--budget", type=_Span(), help="Begin no case after so long, such as 60s or 5m.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=1,
    help="Cases side by side, if the tools can stand it.  [default: 1]",
)
@click.option("--replay", metavar="CASE", help="Only this case, from the line of a failure.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of random.  [default: 0]")
@click.option(
    "--limit",
    type=_Span(),
    default=LIMIT_S,
    help="No process of a case may take longer.  [default: 30s]",
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page to this file."
)
@json_only
def crashtest_command(
    path: str | None,
    task: str | None,
    script: str | None,
    demo: bool,
    faults: str,
    pairs: str,
    approve: str,
    budget: float | None,
    jobs: int,
    replay: str | None,
    seed: int,
    limit: float,
    html: Path | None,
) -> int:
    """Kill your own agent at every write, and count what its tools did.

    The run is played undisturbed, then once for each point at which its process could die; another
    process goes on with it. The answer must be the same, and each effect, counted in a file
    outside the store, must happen once. The store is a temporary one.

    The tools really run, once or more for each case: let them work on a copy. Each case has a
    folder of its own for that, named by FSM_AGENT_CRASH_DIR.

    \b
    fsm-agent crashtest desk.py:agent --script script.py:script --task "Refund order A7."
    """
    if current().is_store_given:
        raise CliError("a crash test has a store of its own. Leave --store out.", USAGE)
    if html is not None and not html.parent.is_dir():
        raise CliError(f"there is no folder {html.parent} for {html.name}.", USAGE)
    from fsm_agent.testing.crash import Scenario
    from fsm_agent.testing.crash.case import parse

    case, given_seed = parse(replay) if replay is not None else (None, None)
    with ExitStack() as stack:
        stack.enter_context(_stoppable())
        subject = _demo() if demo else _own(stack, path, task, script)
        scenario = Scenario(
            make_agent=subject.make_agent,
            make_model=subject.make_model,
            task=subject.task,
            decide=_person(approve, subject.agent),
            time_limit_s=limit,
            seed=seed if given_seed is None else given_seed,
        )
        plan = _plan(faults, pairs, budget, jobs, case)
        began = time.monotonic()
        report = _swept(scenario, plan)
    report.replay_line = _replay_line(subject.words + _given(approve, limit))
    return _told(report, subject, html, time.monotonic() - began)


# -- what is tested -------------------------------------------------------------------------------


def _own(stack: ExitStack, path: str | None, task: str | None, script: str | None) -> _Subject:
    if not path:
        words = "name the agent, as FILE.py:NAME, or use --demo."
        raise CliError(words, USAGE)
    if not task or not task.strip():
        raise CliError('say what the agent should do: --task "…".', USAGE)
    agent = remembered.load(path)
    words = f"fsm-agent crashtest {shlex.quote(path)} --task {shlex.quote(task)}"
    if script:
        words += f" --script {shlex.quote(script)}"
        return _Subject(agent, lambda: agent, _scripted(script), task, words)
    return _Subject(agent, lambda: agent, _configured(stack, agent), task, words)


def _demo() -> _Subject:
    """The refund desk, with a copy of its files for each case."""
    os.environ["REFUND_DESK_PACE_S"] = "0"  # read when the agent's file is loaded
    from fsm_agent.cli.demo.script import SCRIPT, TASK
    from fsm_agent.cli.demo.stage import examples
    from fsm_agent.testing.crash.life import WORLD
    from fsm_agent.testing.scripted import scripted_model

    source = examples()
    agent = remembered.load(f"{source / 'refund_desk.py'}:agent")

    def make_agent() -> Agent:
        if WORLD in os.environ:
            desk = Path(os.environ[WORLD]) / "desk"
            shutil.copytree(
                source / "refund_desk_data",
                desk,
                ignore=shutil.ignore_patterns("ledger.jsonl"),
                dirs_exist_ok=True,
            )
            os.environ["REFUND_DESK_DIR"] = str(desk)
        return agent

    return _Subject(
        agent, make_agent, lambda: scripted_model(SCRIPT), TASK, "fsm-agent crashtest --demo"
    )


def _scripted(place: str) -> Callable[[], Model]:
    from fsm_agent.testing.model_server import load_script
    from fsm_agent.testing.scripted import scripted_model

    try:
        script = load_script(place)
    except (ValueError, OSError, ImportError) as error:
        raise CliError(str(error), USAGE) from error
    except Exception as error:  # whatever the file does when it is run
        cause = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        raise CliError(f"{place} fails when imported: {cause}. Mend the file.", USAGE) from error
    return lambda: scripted_model(script)


def _configured(stack: ExitStack, agent: Agent) -> Callable[[], Model]:
    from fsm_agent.cli.opening import check_model
    from fsm_agent.llm.client import OpenAIModel
    from fsm_agent.llm.connections import preload
    from fsm_agent.testing.crash.memory import RememberingModel

    check_model(agent)
    preload()  # once here, and not in each of some hundred processes
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fsm-crash-model-")))
    say("note: no --script, so the configured model is asked: once for each different request.")
    return lambda: RememberingModel(OpenAIModel(), folder)


def _person(approve: str, agent: Agent) -> Person:
    from fsm_agent.testing.crash import approving_only, truthful_person

    if approve == "all":
        return truthful_person
    names = frozenset() if approve == "none" else frozenset(map(str.strip, approve.split(",")))
    for name in names:
        agent.registry.get(name)  # raises UnknownTool, which names what may have been meant
    return approving_only(names)


def _plan(faults: str, pairs: str, budget: float | None, jobs: int, case: Case | None) -> Plan:
    from fsm_agent.testing.crash import Plan

    at: Any = _FAULTS["all"] if case else _FAULTS[faults]
    if pairs != "none" and faults == "store":
        raise CliError("--pairs are pairs of kills: they need --faults kill or all.", USAGE)
    chosen: Any = pairs
    return Plan(at=at, pairs=chosen, budget_s=budget, jobs=jobs, replay=case)


# -- running and telling --------------------------------------------------------------------------


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM unwinds, so that no folder and no process is left behind."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _swept(scenario: Scenario, plan: Plan) -> Report:
    from fsm_agent.testing.crash import sweep

    is_live = sys.stderr.isatty() and not current().is_json
    shown = 0

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if is_live:
            sys.stderr.write(f"\r{done} of {total} cases")
            sys.stderr.flush()
        elif done * 4 // total > shown:
            shown = done * 4 // total
            say(f"{done} of {total} cases")

    say("crashtest: playing the run undisturbed, then once for each case …")
    try:
        return sweep(scenario, plan=plan, on_progress=progress)
    finally:
        if is_live:
            sys.stderr.write("\r\x1b[K")


def _given(approve: str, limit_s: float) -> str:
    """The options that a case depends on, where they are not the default."""
    words = "" if approve == "all" else f" --approve {shlex.quote(approve)}"
    return words if limit_s == LIMIT_S else f"{words} --limit {limit_s:g}s"


def _replay_line(words: str) -> Callable[[Case, int], str]:
    def line(case: Case, seed: int) -> str:
        told = f"seed={seed}; {case}" if seed else str(case)
        return f"{words} --replay {shlex.quote(told)}"

    return line


def _told(report: Report, subject: _Subject, html: Path | None, took_s: float) -> int:
    from fsm_agent.testing.crash.html import page
    from fsm_agent.testing.crash.table import lines

    if html is not None:
        text = page(report, agent=subject.agent.name, task=subject.task, took_s=took_s)
        html.write_text(text, encoding="utf-8")
        say(f"written to {html}")
    if current().is_json:
        for outcome in report.outcomes:
            put(asjson.line(_case(report, outcome)))
        put(asjson.line(_summary(report, took_s)))
    else:
        for line in lines(report, took_s=took_s):
            put(cleaned(line))
    return failures.DONE if report.is_ok else failures.FAILED


def _case(report: Report, outcome: Outcome) -> dict[str, object]:
    from fsm_agent.testing.crash.report import colour_of, reasons

    return {
        "event": "case",
        "case": str(outcome.case),
        "colour": colour_of(outcome),
        "asked": list(outcome.asked_in_doubt),
        "reasons": reasons(outcome),
        "replay": report.replay_line(outcome.case, report.seed),
        "took_ms": round(outcome.took_s * 1000),
    }


def _summary(report: Report, took_s: float) -> dict[str, object]:
    return {
        "event": "crashtest",
        "ok": report.is_ok,
        "points": len(report.points) + len(report.wires),
        "runs": len(report.outcomes),
        "effects": {row.tool: row._asdict() for row in report.effects()},
        "in_doubt": len(report.in_doubt),
        "failed": [str(outcome.case) for outcome in report.failed],
        "never_reached": report.never_reached,
        "skipped": len(report.skipped),
        "unsteady": list(map(str, report.unsteady)),
        "uncalled": list(report.uncalled),
        "seed": report.seed,
        "took_ms": round(took_s * 1000),
    }
