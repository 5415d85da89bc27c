"""What the model of the chaos fleet says: it looks, then holds, pays and refunds, then is done."""

from __future__ import annotations

from fsm_agent.testing.script import Script, call, when

TASK = "Settle order A7."
ANSWER = "Order A7 is settled."
_ORDER = {"order": "A7"}

SCRIPT = Script(
    when(tool="refund").then(ANSWER, label="FINISH"),
    when(tool="look").then(
        label="TOOL",
        tool_calls=[call("hold", **_ORDER), call("pay", **_ORDER), call("refund", **_ORDER)],
    ),
    when(user="Settle").then(label="TOOL", tool_calls=[call("look", **_ORDER)]),
)
