"""The machine against an independent copy of its table: what is legal, and what guards say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.errors import IllegalTransition
from fsm_agent.run import graph
from fsm_agent.run.state import FINAL, TABLE, State, Trigger, advance, allowed, destination

# Written from design.md §3, not from the code.
DESIGN = """
observed    OBSERVE  THINK
began       THINK    THINK
calls       THINK    ACT
replied     THINK    REFLECT
answered    THINK    DONE
failed      THINK    ERROR
progressed  ACT      ACT
acted       ACT      REFLECT
terminated  ACT      DONE
continued   REFLECT  OBSERVE
began       REFLECT  REFLECT
began       OBSERVE  OBSERVE
finished    REFLECT  DONE
exhausted   REFLECT  ERROR
cancelled   OBSERVE  ERROR
cancelled   THINK    ERROR
cancelled   ACT      ERROR
cancelled   REFLECT  ERROR
"""
ARROWS = {
    (source, trigger): dest
    for trigger, source, dest in (line.split() for line in DESIGN.strip().splitlines())
}
# What each guard wants of a run, by the meaning that the table gives the trigger.
WANTS = {
    "began": ("has_attempt", True),
    "calls": ("has_calls", True),
    "replied": ("has_calls", False),
    "answered": ("has_answer", True),
    "failed": ("has_failure", True),
    "progressed": ("has_calls", True),
    "acted": ("has_unsettled_calls", False),
    "terminated": ("has_answer", True),
    "finished": ("has_answer", True),
    "exhausted": ("has_failure", True),
    "cancelled": ("has_failure", True),
}
NAMES = ("has_attempt", "has_calls", "has_unsettled_calls", "has_answer", "has_failure")

facts = st.fixed_dictionaries({name: st.booleans() for name in NAMES})


def agreeable(trigger: str) -> SimpleNamespace:
    """A run that the trigger's guard lets through."""
    name, wanted = WANTS.get(trigger, ("", False))
    return SimpleNamespace(**(dict.fromkeys(NAMES, False) | {name: wanted}))


@given(st.sampled_from(State), st.sampled_from(Trigger), facts)
def test_a_trigger_is_accepted_exactly_where_the_design_has_an_arrow_and_its_guard_agrees(
    state: State, trigger: Trigger, about: dict[str, bool]
) -> None:
    expected = ARROWS.get((state.value, trigger.value))
    name, wanted = WANTS.get(trigger.value, (None, None))
    is_legal = expected is not None and (name is None or about[name] is wanted)

    try:
        reached = advance(state, trigger, SimpleNamespace(**about))
    except IllegalTransition:
        assert not is_legal
    else:
        assert is_legal
        assert reached.value == expected


@given(st.lists(st.sampled_from(Trigger), max_size=40))
def test_any_sequence_of_triggers_walks_as_the_design_says_and_stays_in_done_and_error(
    triggers: list[Trigger],
) -> None:
    state, model = State.OBSERVE, "OBSERVE"
    for trigger in triggers:
        expected = ARROWS.get((model, trigger.value))
        if expected is None:
            with pytest.raises(IllegalTransition):
                advance(state, trigger, agreeable(trigger))
            continue
        was_final = state in FINAL
        state, model = advance(state, trigger, agreeable(trigger)), expected
        assert not was_final
        assert state.value == model


@pytest.mark.parametrize("state", sorted(FINAL))
@pytest.mark.parametrize("trigger", Trigger)
def test_nothing_leaves_done_or_error(state: State, trigger: Trigger) -> None:
    with pytest.raises(IllegalTransition, match="Allowed: none"):
        advance(state, trigger, agreeable(trigger))
    assert destination(state, trigger) is None


def test_replay_finds_the_same_arrows_as_the_machine() -> None:
    found = {
        (state.value, trigger.value): dest.value
        for state in State
        for trigger in Trigger
        if (dest := destination(state, trigger))
    }

    assert found == ARROWS


def test_a_refusal_names_the_trigger_the_state_and_what_is_allowed() -> None:
    with pytest.raises(IllegalTransition) as refused:
        advance(State.OBSERVE, Trigger.ACTED, agreeable("acted"))

    assert "'acted' is not allowed in OBSERVE" in str(refused.value)
    assert "observed, began, cancelled" in str(refused.value)


def test_a_guard_that_refuses_is_named() -> None:
    nothing = SimpleNamespace(**dict.fromkeys(NAMES, False))

    with pytest.raises(IllegalTransition, match="has_answer"):
        advance(State.THINK, Trigger.ANSWERED, nothing)


def test_the_allowed_triggers_of_each_state_are_those_of_the_design() -> None:
    for state in State:
        wanted = {trigger for source, trigger in ARROWS if source == state.value} or {"none"}

        assert set(allowed(state)) == wanted


def test_the_graph_texts_hold_every_arrow_of_the_table() -> None:
    mermaid, dot = graph.mermaid(), graph.dot()

    for arrow in TABLE:
        for source in arrow.sources:
            line = next(
                (
                    x
                    for x in mermaid.splitlines()
                    if f"{source} --> {arrow.dest}" in x and arrow.trigger.value in x
                ),
                None,
            )
            assert line, (source, arrow)
            assert f'{source} -> {arrow.dest} [label="{arrow.trigger.value}"' in dot
    assert mermaid.startswith("stateDiagram")


def test_a_graph_lights_the_path_and_the_current_state() -> None:
    path = [(State.OBSERVE, State.THINK), (State.THINK, State.ACT)]

    mermaid = graph.mermaid(path, State.ACT)

    assert "class OBSERVE visited" in mermaid
    assert "class THINK visited" in mermaid
    assert "class ACT current" in mermaid
    assert "class REFLECT" not in mermaid
