"""What the pytest fixture `crash_sweep` is: a sweep with a test's words, and its replay lines."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fsm_agent.capabilities.agent import Agent
from fsm_agent.errors import UsageError
from fsm_agent.llm.model import Model
from fsm_agent.testing.script import AnswerFunction, Script

from .case import Case, parse
from .people import Person, truthful_person
from .report import Report
from .scenario import MakeAgent, Scenario
from .span import seconds
from .sweep import Plan, sweep

if TYPE_CHECKING:
    from .sweep import Where


class CrashSweep:
    """Sweeps for one test. `replay` is what `--crash-replay` says."""

    def __init__(self, *, test: str = "", replay: str | None = None) -> None:
        self._test, self._replay = test, replay

    def __call__(
        self,
        agent: Agent | MakeAgent,
        *,
        task: str,
        script: Script | AnswerFunction | None = None,
        model: Callable[[], Model] | None = None,
        at: str | Iterable[Where] = "transitions,tools",
        pairs: Literal["none", "adjacent", "all"] = "none",
        budget: str | float | None = None,
        decide: Person = truthful_person,
        jobs: int = 1,
        seed: int = 0,
        limit: str | float = "30s",
    ) -> Report:
        """Play the run undisturbed, then once for each case, and judge every one.

        `agent` is an Agent, or a function that makes one; if it takes an argument, that is the
        ledger. `script` plays the model; or give a function that makes a `model`; else it is the
        configured one, asked once for each different request. `at` and `pairs` are those of Plan.
        `budget` (such as '60s') begins no case after so long, `limit` ends a process that takes
        longer. `decide` is the person. The tools really run, in each case: FSM_AGENT_CRASH_DIR
        names a folder that is new in every one.

        Raises SweepFailed if the undisturbed run does not end well.
        """
        if script is not None and model is not None:
            raise UsageError("give crash_sweep a script or a model, not both.")
        case, given_seed = parse(self._replay) if self._replay else (None, None)
        names: Any = at.split(",") if isinstance(at, str) else at
        places = tuple(name.strip() for name in names)
        plan = Plan(
            at=("transitions", "tools", "store_ops") if case else places,
            pairs=pairs,
            replay=case,
            budget_s=None if budget is None else seconds(budget),
            jobs=jobs,
        )
        with tempfile.TemporaryDirectory(prefix="fsm-crash-model-") as folder:
            scenario = Scenario(
                make_agent=agent,
                make_model=_maker(script, model, Path(folder)),
                task=task,
                decide=decide,
                time_limit_s=seconds(limit),
                seed=seed if given_seed is None else given_seed,
            )
            report = sweep(scenario, plan=plan)
        report.replay_line = self._line
        return report

    def _line(self, case: Case, seed: int) -> str:
        told = f"seed={seed}; {case}" if seed else str(case)
        return f"pytest {shlex.quote(self._test)} --crash-replay {shlex.quote(told)}"


def _maker(
    script: Script | AnswerFunction | None, model: Callable[[], Model] | None, folder: Path
) -> Callable[[], Model]:
    if model is not None:
        return model
    if script is not None:
        from fsm_agent.testing.scripted import scripted_model

        return lambda: scripted_model(script)
    from fsm_agent.llm.client import OpenAIModel
    from fsm_agent.llm.connections import preload

    from .memory import RememberingModel

    preload()  # once here, and not in each of some hundred processes
    return lambda: RememberingModel(OpenAIModel(), folder)
