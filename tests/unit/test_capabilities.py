"""What capabilities are made of: lists as models write them, phases, output types."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent import Agent, tool
from fsm_agent.capabilities.output import Misfit, Output, json_of
from fsm_agent.capabilities.phase import Capability, Phase
from fsm_agent.capabilities.research import research
from fsm_agent.capabilities.solve import solve
from fsm_agent.capabilities.steps import MAX_STEP_CHARS, listed, reads_steps
from fsm_agent.errors import BadAgent, UsageError
from fsm_agent.labels.protocol import DEFAULT, LabelProtocol
from fsm_agent.run.record import Run

STEPS = ("Look it up.", "Write it down.")


@pytest.mark.parametrize(
    "text",
    [
        "1. Look it up.\n2. Write it down.",
        "1) Look it up.\n\n2) Write it down.\n",
        "- Look it up.\n- Write it down.",
        "* Look it up.\n* Write it down.",
        "Here is my plan:\n\n1. Look it up.\n2. Write it down.",
        "Step 1: Look it up.\nStep 2: Write it down.",
        "Look it up.\nWrite it down.",
        '["Look it up.", "Write it down."]',
        '```json\n["Look it up.", "Write it down."]\n```',
        "```\n1. Look it up.\n2. Write it down.\n```",
        "1. Look\n   it up.\n2. Write it\n   down.",
        "1、Look it up.\n2、Write it down.",
        "(1) Look it up.\n(2) Write it down.",
    ],
)
def test_a_list_is_read_in_the_ways_that_models_write_one(text: str) -> None:
    assert listed(text) == STEPS


def test_what_is_indented_below_an_item_belongs_to_it() -> None:
    text = "1. Look it up.\n     - in the archive\n     - on the net\n2. Write it down."

    assert listed(text) == ("Look it up. - in the archive - on the net", "Write it down.")


def test_a_number_or_dash_inside_a_line_makes_no_item() -> None:
    assert listed("Compare 3.5 with 4 - and say why") == ("Compare 3.5 with 4 - and say why",)
    assert listed("It was cold:\n-5 degrees") == ("It was cold:", "-5 degrees")
    assert listed("About\n1.5 million") == ("About", "1.5 million")


@given(st.lists(st.text(alphabet=st.characters(categories=("L",)), min_size=1), min_size=1))
def test_a_numbered_list_comes_back_as_it_was_written(words: list[str]) -> None:
    text = "\n".join(f"{number}. {word}" for number, word in enumerate(words, 1))

    assert listed(text) == tuple(words)


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert all(item.strip() == item for item in listed(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no items"),
        ("\n \n", "no items"),
        ("1. a\n2. b\n3. c", "3 items, 2 are possible"),
        ("1. " + "x" * (MAX_STEP_CHARS + 1), f"{MAX_STEP_CHARS} are possible"),
    ],
)
def test_a_plan_that_cannot_be_one_is_answered_with_what_is_wrong(text: str, said: str) -> None:
    problem = reads_steps("plan", 2)(Run(run_id="r"), text)

    assert isinstance(problem, str)
    assert said in problem


# -- phases ---------------------------------------------------------------------------------------


def test_a_run_stands_in_the_first_phase_then_in_the_one_on_record() -> None:
    agent = solve("s")

    assert agent.offer(Run(run_id="r")).phase.name == "plan"
    assert agent.offer(Run(run_id="r", phase="answer")).phase.name == "answer"


def test_a_phase_that_the_agent_does_not_have_is_the_operators_to_mend() -> None:
    with pytest.raises(UsageError, match=r"the phase 'gone'.*it has: plan, step, answer"):
        solve("s").offer(Run(run_id="r", phase="gone"))


def test_a_forced_finish_is_made_in_the_last_phase_without_tools() -> None:
    @tool(effect="read")
    def look() -> str:
        return ""

    offer = solve("s", tools=[look]).offer(Run(run_id="r", phase="step", final_turns_left=2))

    assert (offer.labels, offer.tools) == (("FINISH",), ())


def test_replan_is_offered_as_long_as_there_are_replans() -> None:
    agent = solve("s", replans=1)

    def labels(plans: int) -> tuple[str, ...]:
        return agent.offer(Run(run_id="r", phase="step", plans=plans)).labels

    assert labels(1) == ("THINK", "FINISH", "REPLAN")
    assert labels(2) == ("THINK", "FINISH")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Capability(), "at least one phase"),
        (lambda: Capability(Phase(name="a", protocol=None), Phase(name="a", protocol=None)), "a"),
        (lambda: Capability(Phase(name="a", protocol=None, reads={"X": lambda r, t: ""})), "no"),
        (
            lambda: Capability(Phase(name="a", protocol=DEFAULT, reads={"X": lambda r, t: ""})),
            "does not allow",
        ),
        (
            lambda: Capability(
                Phase(
                    name="a",
                    protocol=LabelProtocol(allowed=("T",), intermediate=frozenset({"T"})),
                )
            ),
            "no terminal label",
        ),
        (
            lambda: Agent("a", capability=Capability(Phase(name="x", protocol=None, tools=("t",)))),
            "offers t, which is none of its tools",
        ),
        (lambda: solve("a", max_steps=0), "max_steps"),
        (lambda: solve("a", replans=-1), "replans"),
        (lambda: research("a", questions=0), "questions"),
    ],
)
def test_a_capability_that_cannot_work_is_refused_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(BadAgent, match=said):
        make()


def test_a_fingerprint_is_that_of_the_tools_and_all_protocols() -> None:
    assert solve("a").fingerprint() == solve("b").fingerprint()
    assert solve("a").fingerprint() != Agent("a").fingerprint()


def test_a_label_may_be_given_a_meaning_of_its_own() -> None:
    told = solve("s").capability.phases[1].protocol
    assert told

    assert "``FINISH``: this step is done" in told.describe()
    assert "REPLAN" not in told.only(("FINISH",)).describe()


# -- output ---------------------------------------------------------------------------------------


class Place(msgspec.Struct):
    city: str
    people: int


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "Bern", "people": 134000}',
        '```json\n{"city": "Bern", "people": 134000}\n```',
        'Here it is:\n```\n{"city": "Bern", "people": 134000}\n```\nAnything else?',
        '{"city": "Bern", "people": "134000"}',
    ],
)
def test_a_value_is_read_from_where_models_put_it(text: str) -> None:
    assert Output(Place).read(text) == Place("Bern", 134000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Bern", "not JSON"),
        ("", "not JSON"),
        ('{"city": "Bern"}', "people"),
        ('{"city": "Bern", "people": "many"}', "people"),
        ('[{"city": "Bern", "people": 1}]', "object"),
        ("[" * 10_000, "object"),
        ("```\n{}\n```\n```\n{}\n```", "not JSON"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(Misfit, match=said):
        Output(Place).read(text)


def test_nesting_without_end_is_a_misfit_and_no_crash() -> None:
    with pytest.raises(Misfit, match="not JSON"):
        Output(dict[str, Any] | list[Any]).read("[" * 100_000)


def test_the_model_is_told_the_schema_where_the_run_can_end_and_only_there() -> None:
    agent = solve("s", output=Place)

    assert '"people"' in agent.offer(Run(run_id="r", phase="answer")).instructions
    assert '"people"' not in agent.offer(Run(run_id="r", phase="step")).instructions


def test_a_type_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(BadAgent, match="cannot be the type of an answer"):
        Agent("a", output=type("Odd", (), {}))


def test_the_json_of_an_answer_is_its_one_fenced_block() -> None:
    assert json_of("```json\n1\n```") == "1"
    assert json_of(" 1 ") == "1"
