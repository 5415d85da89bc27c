"""What a fork takes over of its origin, at every entry of any legal history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.engine.forking import spans, whole_steps
from fsm_agent.run.content import Call, ToolMessage, Usage, UserMessage
from fsm_agent.run.delta import (
    Asked,
    Attested,
    Began,
    Consented,
    Delegated,
    Forked,
    Intended,
    Judged,
    Nested,
    Replied,
    Settled,
)
from fsm_agent.run.record import OpenCall, Record, Run, replay
from fsm_agent.run.state import Trigger as T
from fsm_agent.run.versions import changes
from tests.unit.test_run_record import Pen, is_conversation, journals, slow


def fork_of(pen: Pen, seq: int, say: str = "") -> Run:
    """The fork of a history at an entry."""
    *before, last = pen.records[:seq]
    forked = Forked("origin", seq, 10**12, "mia", say)
    return replay("fork", [*before, Record(last.trigger, last.at_ms, (*last.deltas, forked))])


@slow
@given(journals(), st.data())
def test_a_fork_is_its_origin_but_for_what_is_open(pen: Pen, data: Any) -> None:
    seq = data.draw(st.sampled_from(whole_steps(pen.lives)))
    at, fork = pen.lives[seq - 1], fork_of(pen, seq)

    assert (fork.state, fork.seq, fork.messages) == (at.state, at.seq, at.messages)
    assert (fork.spent_tokens, fork.turns, fork.tool_calls) == (
        at.spent_tokens, at.turns, at.tool_calls,
    )  # fmt: skip
    assert [c for c in fork.calls if c.result] == [c for c in at.calls if c.result]
    assert fork.open_asks == ()
    for call in (c for c in fork.calls if not c.result):
        assert not call.is_approved
        assert (call.votes, call.delegated, bool(call.origin)) == ((), None, bool(call.intent))


@slow
@given(journals(), st.data())
def test_words_come_after_the_results_that_are_open_and_the_history_stays_legal(
    pen: Pen, data: Any
) -> None:
    seq = data.draw(st.sampled_from(whole_steps(pen.lives)))
    fork = fork_of(pen, seq, say="hurry")
    rest = [Record(T.PROGRESSED, 1, (Settled(c.call.call_id, "success", "r"),))
            for c in fork.calls if not c.result]  # fmt: skip

    *before, last = pen.records[:seq]
    forked = Forked("origin", seq, 10**12, say="hurry")
    whole = [*before, Record(last.trigger, last.at_ms, (*last.deltas, forked)), *rest]
    run = replay("fork", whole)

    assert run.messages[-1] == UserMessage("hurry")
    assert run.unsaid == ""
    assert is_conversation(run.messages, open_calls=0)


@slow
@given(journals(), st.data())
def test_a_fork_of_a_fork_at_the_same_entry_changes_nothing_but_its_name(
    pen: Pen, data: Any
) -> None:
    seq = data.draw(st.sampled_from(whole_steps(pen.lives)))
    *before, last = pen.records[:seq]
    twice = (Forked("origin", seq, 1), Forked("fork", seq, 2))
    again = replay("x", [*before, Record(last.trigger, last.at_ms, (*last.deltas, *twice))])

    once = fork_of(pen, seq)

    assert (again.origin, once.origin) == ("fork", "origin")
    assert [c.call for c in again.calls] == [c.call for c in once.calls]
    assert [(c.phase, c.origin, c.asked) for c in again.calls] == [
        (c.phase, c.origin, c.asked) for c in once.calls
    ]


def with_call(*deltas: Any) -> OpenCall:
    """The one open call of a fork, of a run that stands after these facts."""
    pen = Pen()
    pen.put(T.OBSERVED)
    pen.put(T.BEGAN, Began(1, 10))
    pen.put(T.CALLS, Replied("TOOL", "", Usage(1, 1), (Call("c4-0", "t", "{}"),)))
    for delta in deltas:
        pen.put(T.PROGRESSED, delta)
    return fork_of(pen, len(pen.records)).calls[0]


ASKED = Asked("a4-0", "c4-0", "approval", "d", "why")
APPROVED = Attested("a4-0", "c4-0", "approve", "mia", 9, digest="d")
JUDGED = Judged("c4-0", True, "why", "rule")


def intended(effect: Any) -> Intended:
    return Intended("c4-0", effect, "k", 1, 50, 60)


@pytest.mark.parametrize("effect", ["unsafe", "keyed", "probed"])
def test_what_was_started_stays_started_in_the_origin(effect: Any) -> None:
    call = with_call(JUDGED, ASKED, APPROVED, intended(effect))

    assert (call.phase, call.origin, call.starts) == ("started", "origin", 1)


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_what_may_be_repeated_is_open_unless_a_child_run_works_on_it(effect: Any) -> None:
    assert with_call(intended(effect)).phase == "open"

    call = with_call(intended(effect), Delegated("c4-0", "child", 100))
    assert (call.phase, call.origin, call.delegated) == ("started", "origin", None)


def test_an_approval_becomes_a_reason_to_ask() -> None:
    call = with_call(JUDGED, ASKED, APPROVED)

    assert call.verdict == Judged(
        "c4-0", True, "mia let it run in origin, which does not count for a fork of it", "rule"
    )
    assert call.phase == "open"


def test_a_call_that_did_not_happen_and_may_run_again_is_asked_about_too() -> None:
    """It has no rule: without a verdict it would start by itself."""
    doubt = Asked("d4-0", "c4-0", "in_doubt", "d", "why")
    again = Attested("d4-0", "c4-0", "rerun", "mia", 9, digest="d")

    call = with_call(intended("unsafe"), doubt, again)

    assert call.verdict is not None
    assert (call.phase, call.verdict.asks) == ("open", True)


def test_a_verdict_by_a_consent_is_given_anew() -> None:
    by_consent = Judged("c4-0", False, "mia agreed", "rule", "consent-1")

    assert with_call(by_consent).verdict is None
    assert with_call(Judged("c4-0", False, "", "rule")).verdict is not None


def test_a_question_of_the_tool_itself_is_remembered_and_it_does_not_run_again() -> None:
    for effect in ("unsafe", "read"):
        asks = Asked("q4-0", "c4-0", "question", "d", "Which one?")

        call = with_call(intended(effect), asks)

        assert (call.phase, call.asked, call.ask) == ("started", "Which one?", None)


def test_a_new_start_is_the_forks_own() -> None:
    pen = Pen()
    pen.put(T.OBSERVED)
    pen.put(T.BEGAN, Began(1, 10))
    pen.put(T.CALLS, Replied("TOOL", "", Usage(1, 1), (Call("c4-0", "t", "{}"),)))
    pen.put(T.PROGRESSED, intended("unsafe"), Forked("origin", 5, 1))
    pen.put(T.PROGRESSED, Intended("c4-0", "unsafe", "k2", 2, 90, 99))

    assert pen.run.calls[0].origin == ""


def test_consents_and_the_parent_stay_with_the_origin() -> None:
    first = Pen().records[0]
    nested = Record(None, 1, (*first.deltas, Nested("parent", "c4-0")))
    consented = Consented("x", "t", "", "mia", 1)

    run = replay("fork", [nested, Record(T.OBSERVED, 2, (consented, Forked("origin", 2, 3)))])

    assert (run.consents, run.parent, run.origin) == ((), "", "origin")


def test_a_result_that_lands_in_the_fork_is_followed_by_the_words() -> None:
    pen = Pen()
    pen.put(T.OBSERVED)
    pen.put(T.BEGAN, Began(1, 10))
    calls = (Call("c4-0", "t", "{}"), Call("c4-1", "t", "{}"))
    pen.put(T.CALLS, Replied("TOOL", "", Usage(1, 1), calls), Forked("o", 4, 1, say="hurry"))
    pen.put(T.PROGRESSED, Settled("c4-1", "success", "b"))
    assert "hurry" not in [m.text for m in pen.run.messages]
    pen.put(T.PROGRESSED, Settled("c4-0", "success", "a"))

    last = pen.run.messages[-3:]
    assert [m.text for m in last] == ["a", "b", "hurry"]
    assert [isinstance(m, ToolMessage) for m in last] == [True, True, False]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([], "none"), ([1], "1"), ([1, 2, 3], "1-3"), ([1, 3, 4, 9], "1, 3-4, 9")],
)
def test_numbers_are_said_in_spans(numbers: list[int], words: str) -> None:
    assert spans(numbers) == words


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {}, ()),
        ({"tool a": "1"}, {"tool a": "1"}, ()),
        ({"tool a": "1"}, {"tool b": "1"}, ("tool a is gone", "tool b is new")),
        (
            {"instructions": "1", "protocol": "1", "tool a": "1"},
            {"instructions": "2", "protocol": "2", "tool a": "2"},
            ("tool a has changed", "the instructions have changed", "the protocol has changed"),
        ),
    ],
)
def test_changes_are_said_part_by_part(
    before: dict[str, str], now: dict[str, str], said: tuple[str, ...]
) -> None:
    assert changes(before, now) == said
