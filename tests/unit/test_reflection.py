"""The policies of REFLECT: when a run goes on, is corrected, warned, made to finish, or stopped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fsm_agent.reflection import budgets, loops, repair
from fsm_agent.reflection.policy import reflect
from fsm_agent.reflection.verdict import Continue, Finalise, Finish, Repair, Stop, Warn
from fsm_agent.run.content import Call, Usage
from fsm_agent.run.delta import ModelFailed, Replied
from fsm_agent.run.limits import Limits
from fsm_agent.run.record import KEPT_STEPS, Run, fold

ALLOWED = ("THINK", "TOOL", "FINISH")


def run_with(limits: Limits | None = None, **fields: Any) -> Run:
    return Run(run_id="r", limits=limits or Limits(), **fields)


def verdict(run: Run, now_ms: int = 0, *, may_rescue: bool = True, reserve: int = 0) -> Any:
    return reflect(run, now_ms, allowed=ALLOWED, may_rescue=may_rescue, next_reserve_tokens=reserve)


def good(text: str = "hm") -> Replied:
    return Replied("THINK", text, Usage(1, 1))


def bad(violation: str = "missing_label", text: str = "draft") -> Replied:
    return Replied(None, text, Usage(1, 1), violation=violation, detail="said so")


# -- budgets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "limits", "why"),
    [
        ({"turns": 5}, Limits(turns=5), "turns"),
        ({"spent_tokens": 91}, Limits(tokens=100), "tokens"),
        ({"tool_calls": 3}, Limits(tool_calls=3), "tool_calls"),
        ({"begun_ms": 1, "waited_ms": 0}, Limits(wall_s=60.0), "wall_time"),
    ],
)
@pytest.mark.parametrize("on_exhausted", ["finalise", "error"])
def test_each_budget_ends_with_its_own_reason_as_the_limits_say(
    fields: dict[str, Any], limits: Limits, why: str, on_exhausted: Any
) -> None:
    run = run_with(replace(limits, on_exhausted=on_exhausted), last=good(), **fields)

    found = verdict(run, 60_001, reserve=10)

    if on_exhausted == "error":
        assert isinstance(found, Stop)
        assert found.reason == why
    else:
        assert isinstance(found, Finalise)
        assert found.why == why


def test_a_budget_that_is_just_not_used_up_lets_the_run_go_on() -> None:
    limits = Limits(turns=5, tokens=100, tool_calls=3, wall_s=60.0)
    run = run_with(limits, last=good(), turns=4, spent_tokens=90, tool_calls=2)

    assert verdict(run, 59_999, reserve=10) == Continue()


def test_waiting_is_not_working_time() -> None:
    run = run_with(Limits(wall_s=60.0), last=good(), begun_ms=1, waited_ms=3_600_000)

    assert verdict(run, 3_600_000 + 59_000) == Continue()
    assert isinstance(verdict(run, 3_600_000 + 60_001), Finalise)


def test_errors_in_a_row_stop_even_where_a_finish_could_be_forced() -> None:
    failing = run_with(Limits(errors=4), errors=4, last=good())

    assert verdict(failing) == Stop("errors", "Every call failed in 4 turns in a row.")


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_run_goes_on_only_if_the_next_call_fits(spent: int, reserve: int, limit: int) -> None:
    run = run_with(Limits(tokens=limit), spent_tokens=spent)

    found = budgets.check(run, 0, next_reserve_tokens=reserve)

    assert isinstance(found, Continue) is (spent + reserve <= limit)


# -- loops --------------------------------------------------------------------------------------


def test_the_same_step_is_warned_of_and_then_ends() -> None:
    assert loops.check(run_with(steps=("x", "a"))) == Continue()
    assert isinstance(loops.check(run_with(steps=("x", "a", "a"))), Warn)
    assert isinstance(loops.check(run_with(steps=("x", "a", "a", "a"))), Finalise)
    stopped = loops.check(run_with(Limits(on_exhausted="error"), steps=("a", "a", "a")))
    assert isinstance(stopped, Stop)
    assert stopped.reason == "loop"


def test_two_steps_in_turn_are_a_loop() -> None:
    assert loops.check(run_with(steps=tuple("abab"))) == Warn(
        "The same two steps were taken in turn 2 times in a row, with nothing new. "
        "Do something else, or answer with what you have."
    )
    assert isinstance(loops.check(run_with(steps=tuple("xababab"))), Finalise)


@given(st.lists(st.sampled_from("abcdef"), max_size=KEPT_STEPS), st.integers(2, 6))
def test_a_loop_is_found_exactly_where_the_tail_repeats(steps: list[str], limit: int) -> None:
    run = run_with(Limits(repeats=limit), steps=tuple(steps))

    found = loops.check(run)

    is_loop = any(
        len(steps) >= period * limit and steps[-period * limit :] == steps[-period:] * limit
        for period in (1, 2)
    )
    assert isinstance(found, Finalise) is is_loop


@given(st.lists(st.integers(), unique=True, max_size=KEPT_STEPS))
def test_different_steps_are_never_an_alarm(steps: list[int]) -> None:
    assert loops.check(run_with(steps=tuple(map(str, steps)))) == Continue()


def test_calls_with_other_arguments_are_other_steps_and_prose_around_calls_is_none() -> None:
    def step(arguments: str, text: str = "") -> str:
        calls = (Call("c1-0", "look", arguments),)
        return fold(run_with(), Replied("TOOL", text, Usage(1, 1), calls)).steps[-1]

    assert step('{"q":1}') != step('{"q":2}')
    assert step('{"q":1}', "first") == step('{"q":1}', "second")


# -- repair -------------------------------------------------------------------------------------


def test_a_violation_is_corrected_with_its_fault_and_the_allowed_labels() -> None:
    found = repair.check(run_with(last=bad(), repairs=1), ALLOWED, may_rescue=True)

    assert isinstance(found, Repair)
    assert "cannot be used. said so" in found.text
    assert "``THINK``, ``TOOL``, ``FINISH``" in found.text


def test_a_violation_without_a_text_of_its_own_still_has_words() -> None:
    found = repair.check(run_with(last=bad("host_check"), repairs=1), (), may_rescue=True)

    assert found == Repair("Your last reply cannot be used. said so Answer again.")


@given(st.integers(0, 5), st.integers(1, 8), st.booleans())
def test_repair_is_bounded(limit: int, repairs: int, may_rescue: bool) -> None:
    run = run_with(Limits(repairs=limit), last=bad(), repairs=repairs)

    found = verdict(run, may_rescue=may_rescue)

    if repairs <= limit:
        assert isinstance(found, Repair)
    elif may_rescue:
        assert found == Finish("draft", is_completed=False, why="repairs")
    else:
        assert isinstance(found, Stop)
        assert found.reason == "repairs"


@pytest.mark.parametrize(
    "reply", [bad("missing_label", "  "), bad("refusal", "text"), bad("truncated", "text")]
)
def test_only_a_whole_unlabelled_text_is_rescued(reply: Replied) -> None:
    found = verdict(run_with(Limits(repairs=0), last=reply, repairs=1))

    assert isinstance(found, Stop)


def test_a_budget_that_ends_counts_before_another_correction() -> None:
    found = verdict(run_with(Limits(turns=1), last=bad(), repairs=1, turns=1))

    assert isinstance(found, Finalise)


def test_a_model_failure_is_no_loop_and_no_violation() -> None:
    run = run_with(last=ModelFailed("timeout", "late", True), steps=("a", "a", "a"))

    assert verdict(run) == Continue()


# -- forced finish ------------------------------------------------------------------------------


def test_a_forced_finish_goes_on_while_turns_are_left_and_then_falls_back() -> None:
    going = run_with(last=good("nearly"), final_turns_left=1, final_why="turns")
    over = run_with(last=good("nearly"), final_turns_left=0, final_why="tool_calls")
    silent = run_with(last=good("  "), final_turns_left=0, final_why="wall_time")

    assert verdict(going) == Continue()
    assert verdict(over) == Finish(
        "nearly\n\n[Stopped by the limit on tool calls; this was not confirmed as an answer.]",
        is_completed=False,
        why="tool_calls",
    )
    assert verdict(silent) == Finish(
        "[No answer: stopped by the limit on wall time, and the model gave no closing text.]",
        is_completed=False,
        why="wall_time",
    )


def test_without_final_turns_the_fallback_comes_at_once() -> None:
    found = verdict(run_with(Limits(turns=1, final_turns=0), turns=1, last=good("so far")))

    assert isinstance(found, Finish)
    assert found.text.startswith("so far\n")
    assert "limit on turns" in found.text


@given(
    st.integers(0, 3), st.booleans(), st.sampled_from(["", " ", "text"]), st.integers(0, 5),
    st.sampled_from(["turns", "tokens", "loop"]),
)  # fmt: skip
def test_a_forced_finish_never_ends_with_an_empty_answer(
    left: int, is_bad: bool, text: str, repairs: int, why: str
) -> None:
    last = bad(text=text) if is_bad else good(text)
    run = run_with(last=last, final_turns_left=left, final_why=why, repairs=repairs)

    found = verdict(run)

    if isinstance(found, Finish):
        assert found.text.strip()
        assert not found.is_completed
    else:
        assert left > 0
        assert isinstance(found, (Continue, Repair))
