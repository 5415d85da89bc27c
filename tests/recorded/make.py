# ruff: noqa: E501
"""Writes the stored runs of the present schema: one entry a line, in hex, and what they fold to.

Run once for each schema number, before its first release, and commit what it wrote:

    python -m tests.recorded.make

Afterwards the files never change; code that cannot read them any more is what is wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from fsm_agent.run import codec
from fsm_agent.run.content import Call, Usage
from fsm_agent.run.delta import (
    Answered,
    Asked,
    Began,
    Created,
    Failed,
    Finalising,
    Forked,
    Hinted,
    Intended,
    ModelFailed,
    Observed,
    Replied,
    Resumed,
    Ruled,
    Settled,
    Versioned,
)
from fsm_agent.run.limits import Limits
from fsm_agent.run.record import Record, Run, replay
from fsm_agent.run.state import Trigger as T

FOLDER = Path(__file__).parent


def answered() -> list[Record]:
    """Words in many scripts, a broken reply, and an answer."""
    return [
        Record(None, 1_000, (Created("desk", "Frag 👩‍🚀 nach \0 und \u202e.", Limits(turns=7), "mia", "f1"),)),
        Record(T.OBSERVED, 1_010, (Resumed("w1", 1, False, 1_005),)),
        Record(T.BEGAN, 1_020, (Began(1, 2_100),)),
        Record(T.REPLIED, 1_500, (Replied(None, "No label", Usage(50, 10), violation="missing_label", detail="d"),)),
        Record(T.CONTINUED, 1_510, (Hinted("repair", "Begin with a label."),)),
        Record(T.OBSERVED, 1_511, (Observed("and in short", "said:1"),)),
        Record(T.BEGAN, 1_520, (Began(2, 2_200),)),
        Record(T.REPLIED, 1_900, (ModelFailed("rate_limited", "429", False, 2_400),)),
        Record(T.CONTINUED, 1_901, ()),
        Record(T.OBSERVED, 1_902, ()),
        Record(T.BEGAN, 2_410, (Began(3, 2_200),)),
        Record(T.REPLIED, 2_800, (Replied("THINK", "hm", Usage(60, 5, True), reasoning="because"),)),
        Record(T.CONTINUED, 2_801, (Hinted("warning", "Do something else."),)),
        Record(T.OBSERVED, 2_802, ()),
        Record(T.BEGAN, 2_803, (Began(4, 2_300),)),
        Record(T.ANSWERED, 3_000, (Replied("FINISH", "42 €", Usage(70, 6), finish_reason="stop"), Answered("42 €"))),
    ]  # fmt: skip


def settled() -> list[Record]:
    """A batch with an approval, an edit, a gap that a person settled, and a forced finish."""
    calls = (
        Call("c4-0", "look", '{"q":"a"}'),
        Call("c4-1", "send", '{"to":"x"}'),
        Call("c4-2", "lok", "{", "the arguments are not JSON"),
    )
    return [
        Record(None, 10_000, (Created("mail", "Send it", Limits(on_exhausted="error")),)),
        Record(T.OBSERVED, 10_010, (Resumed("w1", 1, False, 10_001),)),
        Record(T.BEGAN, 10_011, (Began(1, 2_100),)),
        Record(T.CALLS, 10_400, (Replied("TOOL", "", Usage(50, 10), calls, "tool_calls"),)),
        Record(T.PROGRESSED, 10_401, (
            Intended("c4-0", "read", "k0", 1, 10_401, 71_401),
            Asked("a4-1", "c4-1", "approval", "d" * 64, "send always needs approval"),
            Settled("c4-2", "error", "The call was not made."),
        )),
        Record(T.PROGRESSED, 10_500, (Settled("c4-0", "success", "found", 99, "b" * 64),)),
        Record(T.PROGRESSED, 90_000, (
            Resumed("w2", 2, False, 89_990),
            Ruled("a4-1", "c4-1", "edit", "mia", 90_000, "", "e" * 64, '{"to":"y"}'),
            Intended("c4-1", "unsafe", "k1", 1, 90_000, 151_000),
        )),
        Record(T.PROGRESSED, 170_000, (
            Resumed("w3", 3, True, 169_990),
            Asked("d4-1-1", "c4-1", "in_doubt", "e" * 64, "No result.", 0, 156_000),
        )),
        Record(T.PROGRESSED, 171_000, (
            Ruled("d4-1-1", "c4-1", "happened", "leo", 171_000, answer="It went out."),
            Settled("c4-1", "success", "It went out."),
        )),
        Record(T.ACTED, 171_001, ()),
        Record(T.CONTINUED, 171_002, (Finalising("turns", 2), Hinted("final", "Finish now."))),
        Record(T.OBSERVED, 171_003, ()),
        Record(T.BEGAN, 171_004, (Began(2, 2_500),)),
        Record(T.REPLIED, 171_500, (Replied("THINK", "no", Usage(90, 9)),)),
        Record(T.FINISHED, 171_501, (Answered("no [Stopped]", False),)),
    ]  # fmt: skip


def cancelled() -> list[Record]:
    """A dead attempt that was taken over, and a cancel that left a call in doubt."""
    call = Call("c4-0", "pay", '{"amount":9007199254740993}')
    return [
        Record(None, 500, (Created("pay", "Pay", Limits()),)),
        Record(T.OBSERVED, 510, (Resumed("w1", 1, False, 505),)),
        Record(T.BEGAN, 520, (Began(1, 3_000), )),
        Record(T.BEGAN, 20_000, (Resumed("w2", 2, True, 19_000), Began(2, 3_000))),
        Record(T.CALLS, 20_500, (Replied(None, "", Usage(1, 2), (call,)),)),
        Record(T.PROGRESSED, 20_501, (Intended("c4-0", "unsafe", "k", 1, 20_501, 81_501),)),
        Record(T.CANCELLED, 20_900, (
            Settled("c4-0", "in_doubt", "It may have taken effect."),
            Failed("cancelled", "cancelled by mia: wrong account", "mia"),
        )),
    ]  # fmt: skip


def forked() -> list[Record]:
    """A fork with words, of a run whose call was under way, worked on by other code."""
    calls = (
        Call("c4-0", "look", "{}"),
        Call("c4-1", "pay", '{"amount":1}'),
        Call("c4-2", "send", "{}"),
    )
    parts = {"instructions": "a1", "protocol": "b2", "tool pay": "c3"}
    return [
        Record(None, 1_000, (Created("desk", "Pay", Limits(), "mia", "f1"), Versioned(parts))),
        Record(T.OBSERVED, 1_010, (Resumed("w1", 1, False, 1_005),)),
        Record(T.BEGAN, 1_020, (Began(1, 2_100),)),
        Record(T.CALLS, 1_400, (Replied("TOOL", "", Usage(50, 10), calls, "tool_calls"),)),
        Record(T.PROGRESSED, 1_401, (
            Intended("c4-0", "read", "k0", 1, 1_401, 61_401),
            Intended("c4-1", "unsafe", "k1", 1, 1_401, 61_401),
            Asked("a4-2", "c4-2", "approval", "d" * 64, "send always needs approval"),
            Forked("r-origin", 5, 9_000_000, "leo", "And hurry."),
        )),
        Record(T.PROGRESSED, 9_100_000, (
            Resumed("w2", 1, False, 9_050_000),
            Versioned(parts | {"tool pay": "d4"}, "leo"),
            Asked("d4-1", "c4-1", "in_doubt", "e" * 64, "Started in r-origin.", 0, 66_401),
            Intended("c4-0", "read", "k2", 2, 9_100_000, 9_160_000),
        )),
        Record(T.PROGRESSED, 9_100_100, (Settled("c4-0", "success", "seen", 9),)),
        Record(T.PROGRESSED, 9_200_000, (
            Ruled("d4-1", "c4-1", "fail", "mia", 9_200_000),
            Settled("c4-1", "in_doubt", "Nobody knows."),
            Settled("c4-2", "error", "It has no result: the tool send is gone."),
        )),
        Record(T.ACTED, 9_200_001, ()),
    ]  # fmt: skip


RUNS = {"answered": answered, "settled": settled, "cancelled": cancelled, "forked": forked}


def summary(run: Run) -> dict[str, Any]:
    """What a stored run must always fold to."""
    told = {
        "state": run.state.value,
        "seq": run.seq,
        "agent": run.agent,
        "task": run.task,
        "turns": run.turns,
        "attempts": run.attempts,
        "spent_tokens": run.spent_tokens,
        "tool_calls": run.tool_calls,
        "waited_ms": run.waited_ms,
        "takeovers": run.takeovers,
        "rulings": run.rulings,
        "signals": list(run.signals),
        "limits": msgspec.to_builtins(run.limits)[:10],  # those of the schema's first day
        "answer": run.answer and [run.answer.text, run.answer.is_completed],
        "failure": run.failure and [run.failure.reason, run.failure.message],
        "messages": msgspec.to_builtins(run.messages),
        "calls": [
            [c.call.call_id, c.phase, c.arguments, c.starts, c.result and c.result.status]
            for c in run.calls
        ],
    }
    return msgspec.json.decode(msgspec.json.encode(told))


def write(name: str, records: list[Record]) -> None:
    folder = FOLDER / str(codec.SCHEMA)
    folder.mkdir(exist_ok=True)
    lines = [codec.encode(record).hex() for record in records]
    (folder / f"{name}.hex").write_text("\n".join(lines) + "\n")
    told = json.dumps(summary(replay(name, records)), indent=1)
    (folder / f"{name}.json").write_text(told + "\n")


if __name__ == "__main__":
    for name, records in RUNS.items():
        write(name, records())
