"""A run is what its journal says: the fold, live and replayed, and what the codec does to it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm_agent.context.window import Window
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.content import (
    AssistantMessage,
    Call,
    NoteMessage,
    ToolMessage,
    Usage,
    UserMessage,
)
from fsm_agent.run.delta import (
    Answered,
    Asked,
    Began,
    Carried,
    Created,
    Entered,
    Failed,
    Finalising,
    Hinted,
    Intended,
    ModelFailed,
    Observed,
    Planned,
    Proposed,
    Raised,
    Replied,
    Resumed,
    Ruled,
    Settled,
    Stepped,
)
from fsm_agent.run.limits import Limits
from fsm_agent.run.record import DRAFT_CHARS, Record, Run, apply, moved, replay, taken
from fsm_agent.run.state import FINAL, State, Trigger, advance

T = Trigger
words = st.text(max_size=20)


class Pen:
    """Writes a journal as a session does: delta, machine, value."""

    def __init__(self, at_ms: int = 1000) -> None:
        self.at_ms = at_ms
        first = Record(None, at_ms, (Created("a", "task", Limits()),))
        self.records, self.lives = [first], [apply(Run(run_id="r"), first)]

    @property
    def run(self) -> Run:
        return self.lives[-1]

    def put(self, trigger: Trigger, *deltas: Any) -> None:
        self.at_ms += 7
        record = Record(trigger, self.at_ms, deltas)
        after = taken(self.run, record)
        state = advance(self.run.state, trigger, after)
        self.records.append(record)
        self.lives.append(moved(after, record, state))

    def run_to_reflect(self) -> None:
        """A turn in which the model only thought."""
        self.put(T.OBSERVED)
        self.put(T.BEGAN, Began(self.run.attempts + 1, 10))
        self.put(T.REPLIED, Replied("THINK", "hm", Usage(1, 1)))


def is_conversation(messages: tuple[Any, ...], *, open_calls: int) -> bool:
    """Whether each call has its result right after it; the last reply may wait for `open_calls`."""
    due: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if not due or due.pop(0) != message.call_id:
                return False
        elif due:
            return False
        if isinstance(message, AssistantMessage):
            due = [call.call_id for call in message.calls]
    return len(due) == open_calls


@st.composite
def journals(draw: st.DrawFn) -> Pen:
    """A legal history of up to 40 entries, of every kind of delta."""
    pen = Pen()
    for _ in range(draw(st.integers(0, 40))):
        if pen.run.state in FINAL:
            break
        if draw(st.integers(0, 30)) == 0:
            pen.put(T.CANCELLED, Failed("cancelled", draw(words)))
            break
        resumed = (
            [Resumed("w", 2, draw(st.booleans()), pen.at_ms + draw(st.integers(0, 5000)))]
            if draw(st.integers(0, 9)) == 0
            else []
        )
        _STEPS[pen.run.state](pen, draw, resumed)
    return pen


def _observe(pen: Pen, draw: st.DrawFn, resumed: list[Any]) -> None:
    said = draw(st.lists(words, max_size=2))
    ids = [f"s{pen.run.seq}-{n}" for n in range(len(said))]
    pen.put(T.OBSERVED, *resumed, *map(Observed, said, ids))


def _reply(draw: st.DrawFn, seq: int, count: int, violation: str | None = None) -> Replied:
    calls = tuple(
        Call(f"c{seq}-{n}", draw(words), draw(words), draw(st.none() | words)) for n in range(count)
    )
    usage = Usage(draw(st.integers(0, 999)), draw(st.integers(0, 99)))
    return Replied(draw(st.none() | words), draw(st.text(max_size=700)), usage, calls, "stop",
                   violation, draw(words), draw(words))  # fmt: skip


def _think(pen: Pen, draw: st.DrawFn, resumed: list[Any]) -> None:
    run, seq = pen.run, pen.run.seq + 1
    if not run.has_attempt or draw(st.integers(0, 5)) == 0:
        pen.put(T.BEGAN, *resumed, Began(run.attempts + 1, draw(st.integers(1, 5000))))
        return
    match draw(
        st.sampled_from(["calls", "calls", "proposed", "think", "bad", "failed", "answer", "end"])
    ):
        case "calls":
            pen.put(T.CALLS, *resumed, _reply(draw, seq, draw(st.integers(1, 3))))
        case "proposed":
            called = _reply(draw, seq, draw(st.integers(1, 3))).calls
            plain = [_reply(draw, seq, 0)] if draw(st.booleans()) else []  # or due by the plan
            pen.put(T.CALLS, *resumed, *plain, Proposed(called))
        case "think":
            pen.put(T.REPLIED, *resumed, _reply(draw, seq, 0))
        case "bad":
            pen.put(T.REPLIED, *resumed, _reply(draw, seq, draw(st.integers(0, 2)), "refusal"))
        case "failed":
            kind = draw(st.sampled_from(["timeout", "auth", "rate_limited"]))
            failed = ModelFailed(
                kind, draw(words), draw(st.booleans()), draw(st.integers(0, 9**12))
            )
            pen.put(T.REPLIED, *resumed, failed)
        case "answer":
            pen.put(T.ANSWERED, *resumed, _reply(draw, seq, 0), Answered(draw(words)))
        case _:
            pen.put(T.FAILED, *resumed, Failed("model", draw(words)))


def _act(pen: Pen, draw: st.DrawFn, resumed: list[Any]) -> None:
    unsettled = [call for call in pen.run.calls if call.result is None]
    if not unsettled:
        if draw(st.integers(0, 9)) == 0:
            pen.put(T.TERMINATED, *resumed, Answered(draw(words)))
        else:
            pen.put(T.ACTED, *resumed)
        return
    call = draw(st.sampled_from(unsettled))
    call_id = call.call.call_id
    if call.ask:
        verb = draw(st.sampled_from(["approve", "edit", "rerun", "reject", "answer"]))
        ruled = Ruled(call.ask.ask_id, call_id, verb, "mia", pen.at_ms, draw(words), "d",
                      "{}" if verb == "edit" else None, draw(st.none() | words))  # fmt: skip
        denied = [Settled(call_id, "denied", "no")] if verb in ("reject", "answer") else []
        pen.put(T.PROGRESSED, *resumed, ruled, *denied)
        return
    match draw(st.sampled_from(["ask", "intend", "settle", "settle"])):
        case "ask":
            kind = draw(st.sampled_from(["approval", "question", "in_doubt"]))
            asked = Asked(f"a{call_id}-{call.asks}", call_id, kind, "d", draw(words))
            pen.put(T.PROGRESSED, *resumed, asked)
        case "intend":
            intent = Intended(call_id, "keyed", "k", call.starts + 1, pen.at_ms, pen.at_ms + 9)
            pen.put(T.PROGRESSED, *resumed, intent)
        case _:
            status = draw(st.sampled_from(["success", "error", "timeout", "cancelled"]))
            result = Settled(call_id, status, draw(words), draw(st.integers(0, 99)))
            pen.put(T.PROGRESSED, *resumed, result)


def _reflect(pen: Pen, draw: st.DrawFn, resumed: list[Any]) -> None:
    match draw(st.sampled_from(["on", "on", "phase", "phase", "hint", "final", "finish", "stop"])):
        case "phase":
            steps = draw(st.lists(words, min_size=1, max_size=3).map(tuple))
            done = [Stepped(index, "done") for index in pen.run.open_steps[:1]]
            planned = Planned(steps, is_more=draw(st.booleans()))
            raised = Raised(draw(st.lists(words, max_size=2).map(tuple)))
            pen.put(T.CONTINUED, *resumed, *done, planned, raised, Entered("step", draw(words)))
        case "on":
            pen.put(T.CONTINUED, *resumed)
        case "hint":
            pen.put(T.CONTINUED, *resumed, Hinted("repair", draw(words)))
        case "final":
            pen.put(T.CONTINUED, *resumed, Finalising("turns", 2), Hinted("final", "now"))
        case "finish":
            pen.put(T.FINISHED, *resumed, Answered(draw(words), is_completed=False))
        case _:
            pen.put(T.EXHAUSTED, *resumed, Failed("loop", draw(words)))


_STEPS = {
    State.OBSERVE: _observe,
    State.THINK: _think,
    State.ACT: _act,
    State.REFLECT: _reflect,
}
slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@slow
@given(journals())
def test_the_fold_over_the_journal_is_the_live_run_at_every_entry(pen: Pen) -> None:
    stored = [codec.encode(record) for record in pen.records]

    run = Run(run_id="r")
    for body, live in zip(stored, pen.lives, strict=True):
        run = apply(run, codec.decode(body))
        assert run == live


@slow
@given(journals(), st.data())
def test_a_run_resumed_at_any_entry_equals_one_that_never_stopped(pen: Pen, data: Any) -> None:
    cut = data.draw(st.integers(0, len(pen.records)))

    run = replay("r", pen.records[:cut])
    for record in pen.records[cut:]:
        run = apply(run, record)

    assert run == pen.run


@slow
@given(journals())
def test_history_only_grows_and_every_call_is_followed_by_its_results(pen: Pen) -> None:
    for before, after in zip(pen.lives, pen.lives[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.spent_tokens >= before.spent_tokens
        assert after.seq == before.seq + 1
    own = [call for call in pen.run.calls if not call.is_proposed]  # those that the model wrote
    open_calls = len(own) if pen.run.has_unsettled_calls else 0
    assert is_conversation(pen.run.messages, open_calls=open_calls)


@slow
@given(journals(), st.integers(20, 3000))
def test_the_window_of_a_legal_history_is_legal(pen: Pen, budget: int) -> None:
    if pen.run.has_unsettled_calls:
        return

    run = msgspec.structs.replace(pen.run, cut=Window(budget).plan(pen.run))
    shown = Window(budget).view(run)

    assert is_conversation(shown, open_calls=0)
    assert shown[0] == pen.run.messages[0]


def test_an_entry_that_no_arrow_leads_to_is_corrupt() -> None:
    pen = Pen()

    with pytest.raises(CorruptRecord, match=r"entry 2 says .*acted"):
        apply(pen.run, Record(T.ACTED, 1, ()))


def test_a_second_beginning_and_a_missing_one_are_corrupt() -> None:
    pen = Pen()

    with pytest.raises(CorruptRecord, match="not where a run begins"):
        apply(pen.run, pen.records[0])
    with pytest.raises(CorruptRecord, match="not where a run begins"):
        apply(Run(run_id="r"), Record(T.OBSERVED, 1, ()))


def test_results_enter_the_conversation_in_call_order_whatever_came_first() -> None:
    pen = Pen()
    pen.put(T.OBSERVED)
    pen.put(T.BEGAN, Began(1, 10))
    calls = tuple(Call(f"c4-{n}", "t", "{}") for n in range(3))
    pen.put(T.CALLS, Replied("TOOL", "", Usage(1, 1), calls))

    for number in (2, 0, 1):
        pen.put(T.PROGRESSED, Settled(f"c4-{number}", "success", f"r{number}"))

    assert [m.text for m in pen.run.messages if isinstance(m, ToolMessage)] == ["r0", "r1", "r2"]


def test_the_reserve_of_a_dead_attempt_is_spent_and_a_settled_one_is_not() -> None:
    pen = Pen()
    pen.put(T.OBSERVED)
    pen.put(T.BEGAN, Began(1, 100))
    pen.put(T.BEGAN, Began(2, 100))
    pen.put(T.REPLIED, Replied("THINK", "hm", Usage(7, 3)))

    assert pen.run.spent_tokens == 110
    assert pen.run.reserved_tokens == 0


def test_steps_that_are_done_outlive_a_new_plan_and_open_ones_do_not() -> None:
    pen = Pen()
    pen.run_to_reflect()
    pen.put(T.CONTINUED, Planned(("a", "b", "c")), Stepped(0, "done"), Stepped(1, "dropped"))
    pen.run_to_reflect()
    pen.put(T.CONTINUED, Planned(("d",)), Planned(("e",), is_more=True))

    run = pen.run
    assert [(step.text, step.status) for step in run.plan] == [
        ("a", "done"), ("b", "dropped"), ("d", "open"), ("e", "open"),
    ]  # fmt: skip
    assert (run.open_steps, run.plans) == ((2, 3), 2)


def test_a_step_that_no_plan_has_is_corrupt() -> None:
    pen = Pen()
    pen.run_to_reflect()

    with pytest.raises(CorruptRecord, match="step 2 of a plan that has 0"):
        pen.put(T.CONTINUED, Stepped(1, "done"))


def test_results_of_proposed_calls_answer_no_call_of_the_model() -> None:
    pen = Pen()
    pen.put(T.OBSERVED)
    pen.put(T.CALLS, Proposed((Call("c3-0", "plan", '{"steps":["a"]}'),)))
    pen.put(T.PROGRESSED, Settled("c3-0", "success", "This is the plan."))

    assert pen.run.step == 3
    assert pen.run.messages[1:] == (
        NoteMessage('Result of plan {"steps":["a"]}:\nThis is the plan.'),
    )


def test_a_conversation_that_is_carried_on_comes_before_the_task() -> None:
    old = (UserMessage("hi"), AssistantMessage("FINISH", "hello"))
    first = Record(None, 1, (Created("a", "task", Limits()), Carried("r-0", old, left_out=4)))
    run = apply(Run(run_id="r"), first)

    assert run.messages == (UserMessage("task"),)
    assert run.history == (NoteMessage("[4 earlier messages are left out here.]"), *old)


def test_a_draft_that_broke_the_protocol_is_cut_and_says_so() -> None:
    pen = Pen()
    pen.put(T.OBSERVED)
    pen.put(T.BEGAN, Began(1, 100))
    text = "x" * (DRAFT_CHARS + 40)
    pen.put(T.REPLIED, Replied(None, text, Usage(1, 1), violation="missing_label"))

    last = pen.run.messages[-1]
    assert last.text.endswith("[…40 characters cut]")
    assert last.text.startswith("x" * DRAFT_CHARS + " ")


def test_an_empty_reply_that_broke_the_protocol_leaves_no_message() -> None:
    pen = Pen()
    pen.put(T.OBSERVED)
    pen.put(T.BEGAN, Began(1, 100))
    pen.put(T.REPLIED, Replied(None, "", Usage(1, 1), violation="empty_completion"))

    assert pen.run.messages == (UserMessage("task"),)


def test_a_key_is_honoured_from_the_first_start_and_asking_again_is_counted() -> None:
    pen = Pen()
    pen.put(T.OBSERVED)
    pen.put(T.BEGAN, Began(1, 10))
    pen.put(T.CALLS, Replied("TOOL", "", Usage(1, 1), (Call("c4-0", "t", "{}"),)))
    pen.put(T.PROGRESSED, Intended("c4-0", "keyed", "k", 1, 50, 60))
    pen.put(T.PROGRESSED, Intended("c4-0", "keyed", "k", 2, 90, 99))
    call = pen.run.call("c4-0")
    assert (call.since_ms, call.starts, pen.run.tool_calls) == (50, 2, 1)

    pen.put(T.PROGRESSED, Asked("d4-0", "c4-0", "in_doubt", "d", "why"))
    pen.put(T.PROGRESSED, Ruled("d4-0", "c4-0", "rerun", "mia", 100))
    pen.put(T.PROGRESSED, Intended("c4-0", "keyed", "k", 3, 200, 210))

    call = pen.run.call("c4-0")
    assert (call.since_ms, call.asks) == (200, 1)


def test_ten_thousand_entries_replay_in_a_bounded_time() -> None:
    pen = Pen()
    while len(pen.records) < 10_000:
        pen.put(T.OBSERVED)
        pen.put(T.BEGAN, Began(1, 10))
        call_id = f"c{pen.run.seq + 1}-0"
        pen.put(T.CALLS, Replied("TOOL", "", Usage(1, 1), (Call(call_id, "t", "{}"),)))
        pen.put(T.PROGRESSED, Settled(call_id, "success", "r"))
        pen.put(T.ACTED)
        pen.put(T.CONTINUED, Hinted("warning", "w"))
    bodies = [codec.encode(record) for record in pen.records]

    run = replay("r", map(codec.decode, bodies))

    assert run == pen.run
    assert isinstance(run.messages[-1], NoteMessage)


def test_values_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Pen().run.seq = 9  # type: ignore[misc]
    assert msgspec.structs.replace(Pen().run, seq=9).seq == 9
