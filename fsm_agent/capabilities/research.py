"""Research: questions, each looked into by a run of its own, then a report with sources.

```text
clarify ──▶ outline ──▶ research ──▶ report
 asks the    a list of   child runs,   cites [1], [2] …
 person      questions   in parallel
```

A child run that finds a question which nobody asked hands it up with the label APPEND; it is looked
into as well, boundedly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fsm_agent.errors import BadAgent
from fsm_agent.labels.protocol import LabelProtocol
from fsm_agent.run.content import Source
from fsm_agent.run.delta import AnyDelta, Entered, Planned, Raised, Replied, Stepped, StepStatus
from fsm_agent.run.limits import Limits
from fsm_agent.run.record import Run
from fsm_agent.tools.ask_user import ask_user
from fsm_agent.tools.registry import Tool
from fsm_agent.tools.rule import Approval

from .agent import Agent, as_tools
from .phase import Capability, Phase, Wanted
from .steps import MAX_STEP_CHARS, accepted, listed, plan_tool, reads_steps, shown

OUTLINE_TOOL, RESEARCH_TOOL = "outline", "research"
SHOWN_SOURCES = 100
MAX_RAISED = 20  # questions of one reply
_STATUS: dict[str, StepStatus] = {"success": "done", "duplicate": "done", "partial": "partial"}

CLARIFY = LabelProtocol(
    allowed=("TOOL", "BRIEF"),
    terminal=frozenset({"BRIEF"}),
    tool_label="TOOL",
    meanings={"BRIEF": "the text says in your words what is to be found out."},
)
OUTLINE = LabelProtocol(
    allowed=("THINK", "OUTLINE"),
    terminal=frozenset({"OUTLINE"}),
    intermediate=frozenset({"THINK"}),
    meanings={"OUTLINE": "the text is the list of questions, one a line, numbered."},
)
RESEARCH = LabelProtocol(
    allowed=("THINK", "TOOL", "APPEND", "FINISH"),
    terminal=frozenset({"FINISH"}),
    intermediate=frozenset({"THINK", "APPEND"}),
    final=frozenset({"FINISH"}),
    tool_label="TOOL",
    meanings={
        "APPEND": "the text lists further questions, one a line, that somebody else should look "
        "into; you go on with your own in the next turn.",
        "FINISH": "what you found out, with all that a report needs of it.",
    },
)
REPORT = LabelProtocol(
    allowed=("THINK", "FINISH"),
    terminal=frozenset({"FINISH"}),
    intermediate=frozenset({"THINK"}),
    final=frozenset({"FINISH"}),
    meanings={"FINISH": "the whole report, as the person should read it."},
)


def research(
    name: str,
    instructions: str = "You research a question and write a report.",
    *,
    tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
    questions: int = 5,
    appended: int = 3,
    clarify: bool = True,
    review: Approval = "never",
    share: float = 0.8,
    researcher_limits: Limits | None = None,
    **settings: Any,
) -> Agent:
    """An agent that splits a task into questions, researches them side by side, and reports.

    The child runs have `tools`, and `researcher_limits` each (default: 15 turns); together they may
    spend `share` of the tokens that are left. At most `questions` are looked into, and `appended`
    more that come up. With `clarify` the person may be asked first. `review` is the approval rule
    of the list of questions, as in `solve`. `settings` are those of Agent, for parent and children
    alike where they say how the model is asked.
    """
    if questions < 1 or appended < 0:
        raise BadAgent(f"agent {name!r}: questions must be 1 or more, appended 0 or more.")
    asked = {key: settings[key] for key in _OF_MODEL if key in settings}
    child = Agent(
        f"{name[:50]}-researcher",
        "You look into one question. Use your tools, keep to what you find, and say what stays "
        "unknown.",
        tools=as_tools(tools),
        capability=Capability(Phase(name="", protocol=RESEARCH, advance=_after_append)),
        limits=researcher_limits or Limits(turns=15),
        **asked,
    )
    outlining = Phase(
        name="outline",
        protocol=OUTLINE,
        tells=lambda run: _how_to_outline(questions),
        tools=(),
        reads={"OUTLINE": reads_steps(OUTLINE_TOOL, questions)},
        advance=_after_outline,
    )
    researching = Phase(
        name="research",
        protocol=None,  # the model is not asked in it
        tools=(),
        calls=_open_questions,
        advance=lambda run: _after_research(run, questions + appended),
    )
    reporting = Phase(
        name="report",
        protocol=REPORT,
        tells=_how_to_report,
        tools=(),
        objects=_uncited,
        finishes=_with_list,
    )
    phases = [_clarifying()] if clarify else []
    return Agent(
        name,
        instructions,
        tools=[
            ask_user,
            plan_tool(OUTLINE_TOOL, questions, review),
            child.as_tool(name=RESEARCH_TOOL, share=share),
        ],
        capability=Capability(*phases, outlining, researching, reporting),
        **settings,
    )


_OF_MODEL = ("model", "max_tokens", "temperature", "context_tokens")


# -- clarify and outline --------------------------------------------------------------------------


def _clarifying() -> Phase:
    return Phase(
        name="clarify",
        protocol=CLARIFY,
        tells=lambda run: (
            "First make sure what is wanted. Ask the person with ask_user only if the task can be "
            "read in ways that lead to different reports."
        ),
        tools=(ask_user.name,),
        advance=_after_brief,
    )


def _after_brief(run: Run) -> tuple[AnyDelta, ...]:
    is_brief = isinstance(run.last, Replied) and run.last.label == "BRIEF" and not run.calls
    return (Entered("outline"),) if is_brief else ()


def _how_to_outline(most: int) -> str:
    return (
        f"Split the task into at most {most} questions that can be looked into side by side. Each "
        "is complete: whoever gets it sees nothing else."
    )


def _after_outline(run: Run) -> tuple[AnyDelta, ...]:
    steps = accepted(run, OUTLINE_TOOL)
    return (Planned(steps), Entered("research")) if steps else ()


# -- research -------------------------------------------------------------------------------------


def _open_questions(run: Run) -> tuple[Wanted, ...]:
    return tuple(Wanted(RESEARCH_TOOL, {"task": run.plan[n].text}) for n in run.open_steps)


def _after_append(run: Run) -> tuple[AnyDelta, ...]:
    """Of a child run: questions that it hands up."""
    if run.calls or not isinstance(run.last, Replied) or run.last.label != "APPEND":
        return ()
    found = tuple(q for q in listed(run.last.text) if len(q) <= MAX_STEP_CHARS)[:MAX_RAISED]
    return (Raised(found),) if found else ()


def _after_research(run: Run, most: int) -> tuple[AnyDelta, ...]:
    if not run.calls:
        return ()
    ended: list[AnyDelta] = []
    raised: dict[str, None] = {}
    for step, call in zip(run.open_steps, run.calls, strict=True):
        result = call.result.status if call.result else ""
        ended.append(Stepped(step, _STATUS.get(result, "failed")))
        raised |= dict.fromkeys(call.detail.raised if call.detail else ())
    known = {step.text.casefold() for step in run.plan}
    new = [text for text in raised if text.casefold() not in known][: most - len(run.plan)]
    if new:
        return (*ended, Planned(tuple(new), is_more=True))
    return (*ended, Entered("report", _what_there_is(run.sources)))


# -- report ---------------------------------------------------------------------------------------


def _what_there_is(sources: tuple[Source, ...]) -> str:
    if not sources:
        return "All questions are looked into. Write the report. No sources were recorded."
    told = "\n".join(_numbered(sources[:SHOWN_SOURCES]))
    return f"All questions are looked into. Write the report, and cite these as [1]:\n{told}"


def _numbered(sources: Iterable[Source]) -> Iterator[str]:
    for number, source in enumerate(sources, 1):
        yield f"[{number}] {' '.join(filter(None, (source.title, source.url)))}"


def _how_to_report(run: Run) -> str:
    return (
        f"{shown(run)}\nWrite the report from the results, and from nothing else. Cite each claim's"
        " source by its number in brackets. Say which questions stayed open."
    )


_CITED = re.compile(r"\[(\d{1,3})\]")


def _cited(text: str) -> list[int]:
    return sorted({int(number) for number in _CITED.findall(text)})


def _uncited(run: Run, report: str) -> str:
    """What is wrong with the citations, once: a report is not thrown away for them."""
    count, cited = len(run.sources), _cited(report)
    if run.repairs or not count:
        return ""
    if not cited:
        return f"The report cites none of its {count} sources. Cite them by number, such as [1]."
    strange = [number for number in cited if not 0 < number <= count]
    if strange:
        listed_ = ", ".join(f"[{number}]" for number in strange)
        return f"The report cites {listed_}, and the sources are [1] to [{count}]."
    return ""


def _with_list(run: Run, report: str) -> str:
    """The report with its sources below it: those that it cites, or all if it cites none."""
    if not run.sources:
        return report
    cited = _cited(report)
    lines = list(_numbered(run.sources))
    shown_ = [lines[number - 1] for number in cited if 0 < number <= len(lines)]
    strange = [number for number in cited if not 0 < number <= len(lines)]
    shown_ += [f"[{number}] is not among the sources of this run" for number in strange]
    return f"{report.rstrip()}\n\nSources\n" + "\n".join(shown_ or lines)
