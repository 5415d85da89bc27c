"""What the demo's model says. Only this is played; whatever answers to it is real."""

from __future__ import annotations

import re

from fsm_agent.testing.script import Script, call, when

TASK = (
    "Ines Okafor writes about order A-1042: it came almost two weeks late, and the teapot is"
    " broken. She wants her money back. Decide, act, and answer her."
)

_FIRST = (
    "She says that A-1042 came late and that the teapot is broken. Before I promise anything I"
    " need two things: what was ordered and delivered, and what our rules say about damage and"
    " about late parcels. None depends on another, so I look all of it up at once."
)
_SECOND = (
    "The teapot was 42.00 EUR and there is a photo, so that line is refunded in full; a person"
    " has to approve it. The bowls are whole, so it is not the 78.00 she paid. And it came twelve"
    " days after the promised date: a credit note over 5.00 EUR, at once."
)
_THIRD = "Both are through. I tell her the amounts, and that she can keep the broken pot."
_ANSWER = (
    "Dear Ines Okafor, we are sorry about the teapot: 42.00 EUR go back to your card."
    " For the late delivery you have a credit note over 5.00 EUR."
    " There is no need to send anything back."
)
_REFUSED = (
    "Dear Ines Okafor, we are sorry about the teapot. For the late delivery you have a credit"
    " note over 5.00 EUR. A colleague looks at the refund again and will write to you."
)

SCRIPT = Script(
    when(tool="issue_refund", result=re.compile("refused|nobody", re.IGNORECASE)).then(
        _REFUSED,
        label="FINISH",
        thinking="The refund was refused. I must not promise it.",
        chunk_chars=7,
        between_ms=24,
    ),
    when(tool="issue_refund").then(
        _ANSWER, label="FINISH", thinking=_THIRD, chunk_chars=7, between_ms=24
    ),
    when(tool="look_up_order").then(
        label="TOOL",
        thinking=_SECOND,
        chunk_chars=7,
        between_ms=24,
        tool_calls=[
            call("send_credit_note", order_id="A-1042", cents=500, reason="twelve days late"),
            call(
                "issue_refund",
                order_id="A-1042",
                cents=4200,
                reason="teapot arrived broken, photo of 2026-05-19",
            ),
        ],
    ),
    when(user="A-1042").then(
        label="TOOL",
        thinking=_FIRST,
        first_byte_ms=150,
        chunk_chars=7,
        between_ms=24,
        tool_calls=[
            call("look_up_order", order_id="A-1042"),
            call("read_policy", topic="damaged"),
            call("read_policy", topic="late"),
        ],
    ),
)
