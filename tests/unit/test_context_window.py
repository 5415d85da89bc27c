"""The window: a legal view of a legal history, within its budget, at the cost of what is new."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fsm_agent.context import window as window_module
from fsm_agent.context.policies import Context, Summary
from fsm_agent.context.summary import is_due, transcript
from fsm_agent.context.tokens import shortened, tokens_of
from fsm_agent.context.window import Window
from fsm_agent.errors import BadAgent
from fsm_agent.run.content import (
    AssistantMessage,
    Call,
    Message,
    NoteMessage,
    ToolMessage,
    Usage,
    UserMessage,
)
from fsm_agent.run.delta import Cut, ModelFailed, Replied, Reserved, Summarised
from fsm_agent.run.record import Run, fold, message_size

NOTHING = Usage(0, 0)


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = [UserMessage("task " + "t" * draw(st.integers(0, 200)))]
    for number in range(draw(st.integers(0, 25))):
        text = "x" * draw(st.integers(0, 300))
        match draw(st.sampled_from(["user", "note", "think", "calls", "calls"])):
            case "user":
                messages.append(UserMessage(text))
            case "note":
                messages.append(NoteMessage(text))
            case "think":
                messages.append(AssistantMessage("THINK", text))
            case _:
                messages += batch(number, text, draw(st.integers(1, 4)))
    return messages


def batch(number: int, text: str, count: int = 1, tool: str = "look") -> list[Message]:
    ids = [f"c{number}-{n}" for n in range(count)]
    calls = tuple(Call(i, tool, "{}") for i in ids)
    return [AssistantMessage("TOOL", "", calls), *(ToolMessage(i, tool, text) for i in ids)]


def run_of(messages: list[Message], **fields: Any) -> Run:
    return Run(run_id="r", task=messages[0].text, messages=tuple(messages), **fields)


def grown(messages: list[Message], budget: int, context: Context | None = None) -> list[Run]:
    """The run after each group, cut whenever the next request needs it, as THINK does."""
    window, run, lives = Window(budget, context), run_of(messages[:1]), []
    ends = [n for n, m in enumerate(messages) if not isinstance(m, ToolMessage)][1:]
    for end in [*ends, len(messages)]:
        run = replace(run, messages=tuple(messages[:end]))
        run = replace(run, cut=window.plan(run))
        lives.append(run)
    return lives


def tokens(messages: Any) -> int:
    return sum(tokens_of(message_size(m)) for m in messages)


def is_legal(shown: tuple[Message, ...]) -> bool:
    """Whether each call has its results right after it, and no result is without its call."""
    due: list[str] = []
    for message in shown:
        if isinstance(message, ToolMessage):
            if not due or due.pop(0) != message.call_id:
                return False
        elif due:
            return False
        if isinstance(message, AssistantMessage):
            due = [call.call_id for call in message.calls]
    return not due


settings = st.builds(
    Context,
    keep=st.sampled_from([0.3, 0.75, 1.0]),
    fresh=st.integers(1, 8),
    trimmed_chars=st.integers(40, 300),
    pin_share=st.sampled_from([0.0, 0.25, 0.6]),
    pin_tools=st.sampled_from([(), ("look",)]),
)


@given(histories(), st.integers(1, 2000), settings)
def test_whatever_the_settings_the_view_is_legal_and_begins_with_the_task(
    messages: list[Message], budget: int, context: Context
) -> None:
    for run in grown(messages, budget, context):
        shown = Window(budget, context).view(run)

        assert is_legal(shown)
        assert shown[0] == messages[0]
        assert len(shown) <= len(run.messages) + 1


@given(histories(), st.integers(60, 2000), settings)
def test_the_view_is_within_the_budget_wherever_that_is_possible(
    messages: list[Message], budget: int, context: Context
) -> None:
    """Not possible: the task and the newest group alone are more, with results cut short."""
    window = Window(budget, context)
    for run in grown(messages, budget, context):
        shown = window.view(run)
        note = 30  # tokens, of the line that says what is left out

        if tokens(shown) > budget + note:
            rest = [m for m in shown if isinstance(m, UserMessage)]
            groups = [
                m for m in shown if not isinstance(m, (ToolMessage, UserMessage, NoteMessage))
            ]
            assert len(groups) <= 1 + bool(context.pin_tools) * len(run.cut.pinned) or rest
            assert run.cut.start == len(run.messages) or run.cut.most_chars or len(rest) >= 1


@given(histories(), st.integers(1, 2000), settings)
def test_the_sum_that_is_carried_on_is_the_sum_of_the_view(
    messages: list[Message], budget: int, context: Context
) -> None:
    carried = Window(budget, context)
    for run in grown(messages, budget, context):
        shown = [m for m in carried.view(run) if m in run.messages or not _is_marker(m)]

        assert carried.tokens(run) == Window(budget, context).tokens(run) == tokens(shown)


def _is_marker(message: Message) -> bool:
    return isinstance(message, NoteMessage) and "earlier messages are left out" in message.text


@given(histories(), st.integers(1, 2000), settings, st.data())
def test_the_view_depends_on_the_record_alone(
    messages: list[Message], budget: int, context: Context, data: st.DataObject
) -> None:
    """Another worker that takes the run up anywhere, with what is on record, sees the same."""
    lives = grown(messages, budget, context)
    run = data.draw(st.sampled_from(lives))

    used = Window(budget, context)
    for earlier in lives:
        used.tokens(earlier)

    assert used.view(run) == Window(budget, context).view(run)
    assert used.plan(run) == Window(budget, context).plan(run)


def test_everything_is_shown_as_it_is_while_it_fits() -> None:
    messages: list[Message] = [UserMessage("task"), *batch(1, "x" * 90), UserMessage("more")]

    (*_, run) = grown(messages, 2000)

    assert run.cut == Cut(1)
    assert Window(2000).view(run) == tuple(messages)


def test_old_results_are_shortened_before_anything_is_left_out() -> None:
    messages: list[Message] = [UserMessage("task")]
    for number in range(12):
        messages += batch(number, f"{number} " + "x" * 700)

    (*_, run) = grown(messages, 2000, Context(fresh=3, trimmed_chars=100))

    assert run.cut.start == 1
    shown = Window(2000, Context(fresh=3, trimmed_chars=100)).view(run)
    results = [m.text for m in shown if isinstance(m, ToolMessage)]
    assert len(results) == 12
    assert all("characters are left out here" in text and len(text) <= 110 for text in results[:5])
    assert all(len(text) > 700 for text in results[-3:])


def test_what_people_said_stays_and_the_newest_of_it_where_there_is_too_much() -> None:
    messages: list[Message] = [UserMessage("task")]
    for number in range(60):
        messages.append(AssistantMessage("THINK", f"{number} " + "x" * 100))
        if number % 10 == 0:
            messages.append(UserMessage(f"word {number} " + "w" * 60))

    (*_, run) = grown(messages, 700)

    said = [m.text[:8] for m in Window(700).view(run) if isinstance(m, UserMessage)]
    assert said[0] == "task"
    assert said[-1].startswith("word 50")
    assert len(said) > 3
    (*_, few) = grown(messages, 700, Context(pin_share=0.0))
    assert len([m for m in Window(700).view(few) if isinstance(m, UserMessage)]) <= 3


def test_results_of_a_pinned_tool_stay_with_their_call() -> None:
    messages: list[Message] = [UserMessage("task"), *batch(0, "the rules", tool="rules")]
    for number in range(1, 40):
        messages += batch(number, f"{number} " + "x" * 200)
    context = Context(pin_tools=("rules",))

    (*_, run) = grown(messages, 900, context)

    shown = Window(900, context).view(run)
    assert run.cut.start > 3
    assert run.cut.pinned == (1, 2)
    assert shown[1:3] == tuple(messages[1:3])
    assert isinstance(shown[3], NoteMessage)


def test_the_newest_group_is_cut_by_the_character_if_it_alone_is_too_long() -> None:
    messages: list[Message] = [UserMessage("task"), *batch(1, "x" * 50_000, 2)]

    (*_, run) = grown(messages, 800)

    shown = Window(800).view(run)
    assert tokens(shown) <= 800
    assert [m.call_id for m in shown if isinstance(m, ToolMessage)] == ["c1-0", "c1-1"]


def refused(run: Run, asked: int) -> Run:
    run = fold(run, Reserved(run.attempts + 1, 9_999, prompt_tokens=asked))
    return fold(run, ModelFailed("context_length", "too long", False))


def test_a_long_task_is_cut_only_after_the_model_has_refused_it() -> None:
    run = run_of([UserMessage("t" * 100_000)])
    window = Window(1_000)

    assert window.view(replace(run, cut=window.plan(run)))[0].text == run.task
    run = refused(run, 1_000)
    (task,) = window.view(replace(run, cut=window.plan(run)))
    assert tokens([task]) <= 600
    assert "characters are left out here" in task.text


def test_after_a_refusal_the_budget_is_clearly_below_what_was_asked() -> None:
    run = run_of([UserMessage("task")])
    budgets = [Window(10_000).budget(run)]
    for asked in (5_000, 3_000, 1_800):
        run = refused(run, asked)
        budgets.append(Window(10_000).budget(run))

    assert budgets == [10_000, 3_000, 1_800, 1_080]
    assert fold(run, ModelFailed("overloaded", "busy", False)).most_tokens == 1_080


# -- estimates ------------------------------------------------------------------------------------


def counted(run: Run, estimate: int, count: int, *, is_estimate: bool = False) -> Run:
    run = fold(run, Reserved(run.attempts + 1, 9_999, prompt_tokens=estimate))
    return fold(run, Replied("THINK", "hm", Usage(count, 1, is_estimate)))


def test_estimates_follow_what_the_provider_counts() -> None:
    run = run_of([UserMessage("任务")])
    for _ in range(8):
        run = counted(run, 100, 220)

    assert run.token_scale == pytest.approx(2.2, abs=0.02)
    assert Window(1_000).budget(run) == pytest.approx(1_000 / 2.2, abs=10)


@pytest.mark.parametrize(("estimate", "count"), [(100, 0), (0, 100), (100, 100_000), (100, 1)])
def test_counts_that_cannot_be_true_teach_nothing(estimate: int, count: int) -> None:
    assert counted(run_of([UserMessage("task")]), estimate, count).token_scale == 1.0


def test_an_estimate_teaches_nothing() -> None:
    assert counted(run_of([UserMessage("t")]), 100, 200, is_estimate=True).token_scale == 1.0


# -- work and caches ------------------------------------------------------------------------------


def test_a_thousand_turns_stay_in_a_16k_window_with_work_for_what_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized = 0
    plain = message_size

    def counting(message: Message) -> int:
        nonlocal sized
        sized += 1
        return plain(message)

    monkeypatch.setattr(window_module, "message_size", counting)
    budget, work = 16_000, []
    window, run = Window(budget), run_of([UserMessage("the task " * 50)])
    for number in range(1_000):
        run = replace(run, messages=(*run.messages, *batch(number, f"{number} " + "x" * 1_500)))
        before = sized
        run = replace(run, cut=window.plan(run))
        shown = window.view(run)
        assert window.tokens(run) <= budget
        assert tokens(shown) <= budget + 30
        work.append(sized - before)

    # A turn sizes its own messages; one in ten sizes the window, a few times over.
    in_window = max(len(window.view(run)), 80)
    assert sum(count > 4 for count in work) <= 120
    assert max(work) <= 8 * in_window
    assert sum(work[-500:]) <= 1.5 * sum(work[:500])


def test_the_window_keeps_its_beginning_for_several_turns_after_a_cut() -> None:
    messages: list[Message] = [UserMessage("task")]
    messages += [AssistantMessage("THINK", f"{number} " + "x" * 60) for number in range(200)]

    starts = {run.cut.start for run in grown(messages, 1000)}

    assert len(starts) < 200 / 4


# -- summaries ------------------------------------------------------------------------------------


def test_a_summary_is_due_once_for_each_cut_and_stands_in_its_place() -> None:
    context = Context(summary=Summary(max_tokens=100))
    messages: list[Message] = [UserMessage("task")]
    for number in range(40):
        messages += batch(number, f"finding {number} " + "x" * 200)
    (*_, run) = grown(messages, 1_200, context)

    assert is_due(run, run.cut)
    summed = fold(run, Summarised("found 0 to 30", run.cut.start, NOTHING))
    assert not is_due(summed, summed.cut)
    note = Window(1_200, context).view(summed)[1]
    assert note.text.endswith("in short:\nfound 0 to 30")
    assert not is_due(run_of(messages[:3]), Cut(1))


def test_what_is_summed_up_is_what_was_left_out_since_the_last_summary() -> None:
    messages: list[Message] = [UserMessage("task"), UserMessage("keep me")]
    for number in range(10):
        messages += batch(number, f"finding {number}.")
    run = run_of(messages, cut=Cut(14, pinned=(1,)), summary=Summarised("so far", 8, NOTHING))

    text = transcript(run, run.cut, 5_000)

    assert "so far" in text
    assert [n for n in range(10) if f"finding {n}." in text] == [3, 4, 5]
    assert "keep me" not in text  # it is still shown as it is
    assert len(transcript(run_of([UserMessage("t" * 9**6)]), Cut(1), 500)) <= 1_900


@given(st.text(max_size=400), st.integers(0, 300))
def test_a_shortened_text_keeps_its_ends_and_its_limit(text: str, most: int) -> None:
    short = shortened(text, most)

    if len(text) <= most:
        assert short == text
    else:
        assert "characters are left out here" in short
        assert len(short) <= max(most, 60)


@pytest.mark.parametrize(
    "fields", [{"keep": 0.0}, {"pin_share": 1.0}, {"fresh": 0}, {"trimmed_chars": 0}]
)
def test_settings_that_make_no_sense_are_refused(fields: Any) -> None:
    with pytest.raises(BadAgent, match="Context"):
        Context(**fields)
    with pytest.raises(BadAgent, match="Summary"):
        Context(summary=Summary(max_tokens=1))
