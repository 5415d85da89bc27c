"""The policies of REFLECT: when a run goes on, is corrected, warned, made to finish, or stopped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.loops import judged, transcripts
from fsm_agent.errors import BadAgent
from fsm_agent.reflection import budgets, loops, progress, repair
from fsm_agent.reflection.critic import Critic, verdict_of
from fsm_agent.reflection.money import Price, price_of
from fsm_agent.reflection.policy import POLICIES, reflect
from fsm_agent.reflection.scene import Progress, Scene
from fsm_agent.reflection.verdict import (
    Continue,
    Finalise,
    Finish,
    Repair,
    Steer,
    Stop,
    Warn,
)
from fsm_agent.run.content import Call, ResultStatus, Usage, canonical_json
from fsm_agent.run.delta import (
    Assessed,
    Barred,
    Charged,
    Created,
    ModelFailed,
    Observed,
    Replied,
    Reserved,
    Settled,
)
from fsm_agent.run.limits import Limits
from fsm_agent.run.record import KEPT_STEPS, Run, fold
from fsm_agent.run.step import Step, call_digest, stable, what

ALLOWED = ("THINK", "TOOL", "FINISH")


def run_with(limits: Limits | None = None, **fields: Any) -> Run:
    return Run(run_id="r", limits=limits or Limits(), **fields)


def verdict(run: Run, now_ms: int = 0, *, may_rescue: bool = True, reserve: int = 0) -> Any:
    return reflect(
        run,
        Scene(now_ms=now_ms, allowed=ALLOWED, may_rescue=may_rescue, next_reserve_tokens=reserve),
    )


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

    found = budgets.check(run, Scene(next_reserve_tokens=reserve))

    assert isinstance(found, Continue) is (spent + reserve <= limit)


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**7))
def test_money_is_a_budget_like_tokens(spent: int, reserve: int, limit: int) -> None:
    run = run_with(Limits(money=limit / 1_000_000), spent_micros=spent, last=good())

    found = budgets.check(run, Scene(next_reserve_micros=reserve))

    most = run.limits.micros
    assert most is not None
    assert isinstance(found, Continue) is (spent + reserve <= most)
    if isinstance(found, Finalise):
        assert found.why == "money"


def test_a_call_costs_what_the_table_says_and_cached_tokens_cost_less() -> None:
    price = Price(input=3.0, output=15.0, cached=0.3)

    assert price.micros(1_000_000, 0) == 3_000_000
    assert price.micros(1_000, 100) == 4_500
    assert price.micros(1_000, 100, cached_tokens=1_000) == 1_800
    assert price.micros(10, 0, cached_tokens=99) == 3  # no more is cached than was sent
    assert Price(1.0, 1.0).micros(10, 0, cached_tokens=10) == 10


def test_a_model_without_a_price_of_its_own_has_that_of_all_others() -> None:
    prices = {"small": Price(1, 1), "*": Price(9, 9)}

    assert price_of(prices, "small") == Price(1, 1)
    assert price_of(prices, "large") == price_of(prices, None) == Price(9, 9)
    assert price_of({"small": Price(1, 1)}, None) is None


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf")])
def test_a_price_that_is_none_is_refused(amount: float) -> None:
    with pytest.raises(BadAgent, match="no price"):
        Price(1.0, amount)


def test_the_money_of_a_dead_attempt_is_spent_and_a_settled_one_costs_what_it_did() -> None:
    run = fold(run_with(), Reserved(1, 100, micros=70))
    run = fold(run, Reserved(2, 100, micros=70))
    for delta in (good(), Charged(30)):
        run = fold(run, delta)

    assert (run.spent_micros, run.reserved_micros) == (100, 0)


# -- loops --------------------------------------------------------------------------------------


def step(
    name: str, arguments: str = "{}", result: str = "found", status: ResultStatus = "success"
) -> Step:
    calls = (Call("c1-0", name, arguments),)
    reply = Replied("TOOL", "", Usage(1, 1), calls)
    return Step(reply, (Settled("c1-0", status, result),))


def called(names: str) -> tuple[Step, ...]:
    """A step for each letter: its own tool, with its own result."""
    return tuple(step(name, result=f"result {name}") for name in names)


def looped(steps: tuple[Step, ...], limits: Limits | None = None, **scene: Any) -> Any:
    return loops.check(run_with(limits, steps=steps), Scene(**scene))


def test_the_same_step_is_warned_of_and_then_ends() -> None:
    assert looped(called("xa")) == Continue()
    assert isinstance(looped(called("xaa")), Warn)
    assert isinstance(looped(called("xaaa")), Finalise)
    stopped = looped(called("aaa"), Limits(on_exhausted="error"))
    assert isinstance(stopped, Stop)
    assert stopped.reason == "loop"


def test_two_steps_in_turn_are_a_loop() -> None:
    assert looped(called("abab")) == Warn(
        "The same two steps were taken in turn 2 times in a row, with nothing new. "
        "Do something else, or answer with what you have."
    )
    assert isinstance(looped(called("xababab")), Finalise)


def test_with_more_rounds_allowed_the_call_is_barred_before_the_end() -> None:
    limits = Limits(repeats=4)

    assert isinstance(looped(called("xaa"), limits), Warn)
    steered = looped(called("xaaa"), limits)
    assert isinstance(steered, Steer)
    assert steered.barred == (call_digest("a", "{}"),)
    assert isinstance(looped(called("xaaaa"), limits), Finalise)


@given(st.lists(st.sampled_from("abcdef"), max_size=KEPT_STEPS), st.integers(2, 6))
def test_a_tail_that_repeats_is_always_a_loop(names: list[str], limit: int) -> None:
    found = looped(called("".join(names)), Limits(repeats=limit))

    is_loop = any(
        len(names) >= period * limit and names[-period * limit :] == names[-period:] * limit
        for period in range(1, loops.MAX_PERIOD + 1)
    )
    if is_loop:
        assert isinstance(found, Finalise)


@given(st.lists(st.integers(), unique=True, max_size=KEPT_STEPS))
def test_different_steps_are_never_an_alarm(numbers: list[int]) -> None:
    steps = tuple(step(f"t{number}") for number in numbers)

    assert looped(steps) == Continue()


def test_a_call_that_answers_something_else_each_time_is_no_loop() -> None:
    polled = tuple(step("status", result=f"running, {n} % done") for n in range(9))

    assert looped(polled) == Continue()


@pytest.mark.parametrize(
    "result",
    ["at 2026-11-30T10:00:{:02}Z no answer", "request 9f2c41d{} failed", "0 rows in {} ms"],
)
def test_times_and_ids_in_a_result_make_it_no_other_one(result: str) -> None:
    polled = tuple(step("status", result=result.format(n)) for n in range(10, 13))

    assert isinstance(looped(polled), Finalise)


def test_a_tool_that_may_repeat_makes_no_loop() -> None:
    polled = tuple(step("wait", result="waited") for _ in range(9))

    assert isinstance(looped(polled), Finalise)
    assert looped(polled, may_repeat=("wait",)) == Continue()


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ('{"q":"tax on imports"}', '{"q":"import tax on"}', False),  # 'on' is too short for prose
        ('{"q":"border tax cases"}', '{"q":"Cases: Border  Taxes"}', False),
        ('{"q":"border tax cases"}', '{"q":"cases of border tax"}', False),
        ('{"q":"border tax cases"}', '{"q":"Tax cases border"}', True),
        ('{"cmd":"mv a b"}', '{"cmd":"mv b a"}', False),
        ('{"x":1,"y":2}', '{"x":2,"y":1}', False),
        ('{"old":"1","new":"2"}', '{"old":"2","new":"1"}', False),
        ('{"path":"./a.py"}', '{"path":" a.py"}', True),
        ('{"sql":"x < 3"}', '{"sql":"x > 3"}', False),
        ("not JSON", "not JSON", True),
    ],
)
def test_which_calls_ask_the_same(one: str, other: str, is_same: bool) -> None:
    assert step("t", one).is_like(step("t", other)) is is_same


def test_prose_around_calls_makes_no_other_step() -> None:
    call = (Call("c1-0", "look", "{}"),)

    one, other = (Step(Replied("TOOL", text, Usage(1, 1), call)) for text in ("first", "second"))

    assert one.is_like(other)


def test_what_a_person_says_begins_the_count_anew() -> None:
    run = run_with(steps=called("aa"), scores=(1, 1), low=3, barred=frozenset({"x"}))

    run = fold(run, Observed("once more, please", "s1"))

    assert (run.steps, run.scores, run.low, run.barred) == ((), (), 0, frozenset())


def test_barred_calls_are_remembered() -> None:
    run = fold(fold(run_with(), Barred(("a",))), Barred(("b", "a")))

    assert run.barred == {"a", "b"}


CORPUS = list(transcripts())


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("src/a.py", "./src/a.py", True),
        ("src/a.py", "src//x/../a.py", True),
        ("src/a.py", "/src/a.py/", True),
        ("src/a.py", r".\src\a.py", True),
        ("notes.md", "./notes.md", True),
        (".", "./", True),
        ("src/a.py", "src/b.py", False),
        ("src/a.py", "lib/src/a.py", False),
        ("../a.py", "a.py", False),
        ("../a.py", "../../a.py", False),
        ("sed s/a/b/ x", "sed s/a//b/ x", False),  # a command
    ],
)
def test_a_path_is_the_same_however_it_is_written(one: str, other: str, alike: bool) -> None:
    first, second = (Call("c", "read", canonical_json({"path": path})) for path in (one, other))

    assert (what(first) == what(second)) is alike


@pytest.mark.parametrize(
    ("arguments", "texts", "alike"),
    [
        ('{"page": %d}', "No more items.", True),
        ('{"q": "x", "offset": %d}', "offset %d is out of range", True),
        ('{"pageNumber": "%d"}', '{"items": []}', True),
        ('{"start_index": %d}', "[]", True),
        ('{"page": %d}', "page %d of 30: a, b", False),
        ('{"page": %d}', "no matches on this page", False),
        ('{"id": %d}', "No more items.", False),  # another one of something
        ('{"port": %d}', "closed", False),
        ('{"page": %d}', "No more items. " + "And much else. " * 20 + "%d", False),
    ],
)
def test_beyond_the_last_page_one_is_like_the_other(
    arguments: str, texts: str, alike: bool
) -> None:
    def page(number: int) -> Step:
        call = Call(f"c{number}-0", "look", arguments.replace("%d", str(number)))
        text = texts.replace("%d", str(number))
        return Step(
            Replied("TOOL", "", Usage(1, 1), (call,)), (Settled(call.call_id, "success", text),)
        )

    assert page(9).is_like(page(10)) is alike


def test_the_corpus_has_enough_of_both_kinds() -> None:
    kinds = [transcript["kind"] for transcript in CORPUS]

    assert kinds.count("loop") >= 40
    assert kinds.count("honest") >= 40
    assert len({t["name"] for t in CORPUS}) == len(CORPUS)
    assert min(len(t["steps"]) for t in CORPUS if t["kind"] == "honest") >= 6


def test_no_honest_transcript_raises_an_alarm() -> None:
    alarms = [t["name"] for t in CORPUS if t["kind"] == "honest" and not judged(t).is_right]

    assert alarms == []


def test_of_loops_at_least_95_in_100_are_stopped_within_three_rounds() -> None:
    loops_ = [t for t in CORPUS if t["kind"] == "loop"]

    missed = [t["name"] for t in loops_ if not judged(t).is_right]

    assert len(missed) <= 0.05 * len(loops_), missed


# -- progress -----------------------------------------------------------------------------------


def turn(run: Run, number: int, result: str, arguments: str = "{}") -> Run:
    """The run after a turn with one call, scored."""
    calls = (Call(f"c{number}-0", "look", arguments),)
    run = fold(run, Replied("TOOL", "", Usage(1, 1), calls))
    run = fold(run, Settled(f"c{number}-0", "success", result))
    assessed = progress.assess(run, Scene())
    assert assessed
    return fold(run, assessed)


def test_news_scores_high_and_the_same_again_scores_low() -> None:
    run = turn(run_with(), 1, "a first result with many words")
    first = run.scores[-1]
    for number in range(2, 6):
        run = turn(run, number, "a first result with many words")

    assert first > 70
    assert run.scores[-1] < 30
    assert run.low >= 2


def test_the_ladder_warns_then_steers_then_stops() -> None:
    rule = Progress(warn=1, steer=2, stop=3)
    run = run_with(steps=called("aaaa"))

    def at(low: int, **limits: Any) -> Any:
        scene = Scene(progress=rule, assessed=Assessed(5, 5, (), low=low))
        return progress.check(replace(run, limits=Limits(**limits)), scene)

    assert at(0) == Continue()
    assert isinstance(at(1), Warn)
    steered = at(2)
    assert isinstance(steered, Steer)
    assert steered.barred == (call_digest("a", "{}"),)
    assert isinstance(at(3), Finalise)
    assert isinstance(at(3, on_exhausted="error"), Stop)


def test_words_of_confidence_count_in_two_languages() -> None:
    def score(text: str) -> int:
        run = fold(run_with(), Replied("THINK", text, Usage(1, 1)))
        assessed = progress.assess(run, Scene())
        assert assessed
        return assessed.parts[3]

    assert score("I am confident that this is it") == score("已解决") == 100
    assert score("I am stuck") == score("还是不确定") == score("I'm not certain") == 0
    assert score("Let us see") == 50


def test_a_failed_call_that_is_tried_again_as_it_is_scores_as_a_retry() -> None:
    again = (
        step("t", result="503", status="error"),
        step("t", result="other words", status="error"),
    )
    other = (again[0], step("u", result="other words"))

    def retries(steps: tuple[Step, ...]) -> int:
        assessed = progress.assess(run_with(steps=steps), Scene())
        assert assessed
        return assessed.parts[4]

    assert (retries(again), retries(other)) == (0, 100)


@pytest.mark.parametrize(
    "settings", [{"window": 0}, {"threshold": 2.0}, {"information": -1.0}, {"stop": -1}]
)
def test_settings_of_progress_that_make_no_sense_are_refused(settings: Any) -> None:
    with pytest.raises(BadAgent, match="Progress"):
        Progress(**settings)


def test_a_policy_of_the_user_is_asked_with_the_others() -> None:
    def curfew(run: Run, scene: Scene) -> Any:
        return Stop("host", "it is late") if scene.now_ms > 100 else Continue()

    run = run_with(last=good())

    assert reflect(run, Scene(now_ms=99), (*POLICIES, curfew)) == Continue()
    assert reflect(run, Scene(now_ms=101), (*POLICIES, curfew)) == Stop("host", "it is late")
    assert reflect(run_with(Limits(turns=1), turns=1), Scene(), ()) == Continue()


def test_a_policy_that_returns_no_verdict_is_named() -> None:
    def silent(run: Run, scene: Scene) -> Any:
        return None

    with pytest.raises(BadAgent, match="silent returned None"):
        reflect(run_with(last=good()), Scene(), (silent,))


# -- the critic ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "verdict", "reason"),
    [
        ("RIGHT\nAll is well.", "right", "All is well."),
        ("``WRONG``\nThe total is 7.", "wrong", "The total is 7."),
        ("**More**: look at page 2", "more", "look at page 2"),
        ("wrong - the file is empty", "wrong", "the file is empty"),
        ("DONE\n42", "right", "42"),
        ("Wrongly put, but fine", "unknown", "Wrongly put, but fine"),
        ("", "unknown", ""),
    ],
)
def test_what_a_critics_reply_means(text: str, verdict: str, reason: str) -> None:
    assert Critic().read(text) == (verdict, reason)


def test_a_critic_may_end_the_run_only_where_that_was_allowed() -> None:
    assert Critic(may_finish=True).read("DONE\n42") == ("done", "42")
    assert verdict_of("done", "42") == Finish("42", is_completed=True, why="critic")
    assert verdict_of("done", "") == verdict_of("unknown", "?") == Continue()
    assert isinstance(verdict_of("wrong", ""), Warn)


def test_a_critic_looks_at_a_step_once_and_only_after_its_tools() -> None:
    run = fold(fold(run_with(), Created("a", "task", Limits())), good())
    calls = (Call("c1-0", "look", "{}"),)
    run = fold(replace(run, seq=5), Replied("TOOL", "", Usage(1, 1), calls))

    assert Critic().is_due(run)
    assert not Critic(tools=("pay",)).is_due(run)
    assert not Critic().is_due(replace(run, criticised=5))
    assert not Critic().is_due(replace(run, calls=()))


# -- repair -------------------------------------------------------------------------------------


def test_a_violation_is_corrected_with_its_fault_and_the_allowed_labels() -> None:
    found = repair.check(run_with(last=bad(), repairs=1), Scene(allowed=ALLOWED))

    assert isinstance(found, Repair)
    assert "cannot be used. said so" in found.text
    assert "``THINK``, ``TOOL``, ``FINISH``" in found.text


def test_a_violation_without_a_text_of_its_own_still_has_words() -> None:
    found = repair.check(run_with(last=bad("host_check"), repairs=1), Scene())

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
    run = run_with(last=ModelFailed("timeout", "late", True), steps=called("aaa"))

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


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("at 2026-11-30T10:02:03Z, no answer", "at ~, no answer"),
        ("2026-11-30 10:02:03.5 start", "~ ~ start"),
        ("took 12 ms, then 0.31 s and 3 seconds.", "took ~, then ~ and ~."),
        ("since 1760000000 or 1760000000123", "since ~ or ~"),
        ("id 9f2c41d0-aaaa-4bbb-8ccc-0123456789ab!", "id ~!"),
        ("commit deadbe7f, f3a9c1d2e4", "commit ~, ~"),
        ("at 0x7f3a", "at ~"),
        ("41 % of 1,200 rows, page 7", "41 % of 1,200 rows, page 7"),
        ("order 12345678 in size 10a", "order 12345678 in size 10a"),
        ("a feedback2024x and surface12", "a feedback2024x and surface12"),
        ("v1.2.3 has 5 steps", "v1.2.3 has 5 steps"),
    ],
)
def test_what_is_left_of_a_text_without_times_and_ids(text: str, form: str) -> None:
    assert stable(text) == form
