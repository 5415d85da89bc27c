"""Solve: a plan, its steps one after the other, then the answer.

```text
plan ──▶ step ──▶ step … ──▶ answer
  ◀── REPLAN ──┘ (bounded)
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fsm_agent.errors import BadAgent
from fsm_agent.labels.protocol import LabelProtocol
from fsm_agent.run.delta import AnyDelta, Entered, Planned, Replied, Stepped
from fsm_agent.run.record import Run
from fsm_agent.tools.registry import Tool
from fsm_agent.tools.rule import Approval

from .agent import Agent, as_tools
from .phase import Capability, Phase
from .steps import accepted, plan_tool, reads_steps, shown

TOOL = "plan"
INSTRUCTIONS = "You solve the task that you are given."

PLANNING = LabelProtocol(
    allowed=("THINK", "PLAN"),
    terminal=frozenset({"PLAN"}),
    intermediate=frozenset({"THINK"}),
    meanings={"PLAN": "the text is the plan, one step a line, numbered."},
)
STEP = LabelProtocol(
    allowed=("THINK", "TOOL", "FINISH", "REPLAN"),
    terminal=frozenset({"FINISH", "REPLAN"}),
    intermediate=frozenset({"THINK"}),
    tool_label="TOOL",
    meanings={
        "FINISH": "this step is done; the text is what came of it.",
        "REPLAN": "the rest of the plan will not work; the text says why, and you plan anew.",
    },
)
ANSWER = LabelProtocol(
    allowed=("FINISH",),
    terminal=frozenset({"FINISH"}),
    final=frozenset({"FINISH"}),
    meanings={"FINISH": "the answer, as the person should read it."},
)


def solve(
    name: str,
    instructions: str = INSTRUCTIONS,
    *,
    tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
    max_steps: int = 12,
    replans: int = 2,
    review: Approval = "never",
    **settings: Any,
) -> Agent:
    """An agent that plans, does each step with `tools`, and answers from what came of them.

    A plan has at most `max_steps` steps, and is made anew at most `replans` times: after that the
    label REPLAN is gone. `review` is the approval rule of a plan: 'always' shows it to a person,
    who approves it, edits its steps, or rejects it with a reason, upon which a new one is made.
    `settings` are those of Agent.
    """
    if max_steps < 1 or replans < 0:
        raise BadAgent(f"agent {name!r}: max_steps must be 1 or more, replans 0 or more.")
    own = as_tools(tools)
    planning = Phase(
        name="plan",
        protocol=PLANNING,
        tells=lambda run: _how_to_plan(run, max_steps),
        tools=(),
        reads={"PLAN": reads_steps(TOOL, max_steps)},
        advance=_after_plan,
    )
    stepping = Phase(
        name="step",
        protocol=STEP,
        tells=_how_to_step,
        tools=tuple(each.name for each in own),
        allows=lambda run: [x for x in STEP.allowed if x != "REPLAN" or run.plans <= replans],
        advance=_after_step,
    )
    answering = Phase(name="answer", protocol=ANSWER, tells=_how_to_answer, tools=())
    return Agent(
        name,
        instructions,
        tools=[*own, plan_tool(TOOL, max_steps, review)],
        capability=Capability(planning, stepping, answering),
        **settings,
    )


def _how_to_plan(run: Run, max_steps: int) -> str:
    again = f"{shown(run)}\nMake a new plan for what is still open.\n" if run.plan else ""
    return (
        f"{again}First make a plan: at most {max_steps} steps, in the order in which they are to be"
        " done. Each step has one result that the next ones can use. Do not begin to carry it out."
    )


def _how_to_step(run: Run) -> str:
    return f"{shown(run)}\nDo the step that is marked [now], and nothing of the steps after it."


def _how_to_answer(run: Run) -> str:
    return f"{shown(run)}\nAnswer the task from what came of the steps. Say what did not work."


def _after_plan(run: Run) -> tuple[AnyDelta, ...]:
    steps = accepted(run, TOOL)
    if steps is None:
        return ()
    note = f"Step 1 of {len(steps)}: {steps[0]}"
    return (Planned(steps), Entered("step", note))


def _after_step(run: Run) -> tuple[AnyDelta, ...]:
    if run.calls or not isinstance(run.last, Replied):
        return ()
    step, *later = run.open_steps
    if run.last.label == "REPLAN":
        return (Stepped(step, "dropped"), Entered("plan", "Make a new plan for what is open."))
    if run.last.label != "FINISH":
        return ()
    if not later:
        return (Stepped(step, "done"), Entered("answer", "All steps are done. Answer now."))
    note = f"Step {later[0] + 1} of {len(run.plan)}: {run.plan[later[0]].text}"
    return (Stepped(step, "done"), Entered("step", note))
