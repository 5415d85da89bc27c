"""A scripted model without a server: the client's own reading of what a script says."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from fsm_agent.errors import ProviderError
from fsm_agent.labels.protocol import DEFAULT
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.run.content import UserMessage
from fsm_agent.testing import Drop, HttpError, Script, call, when
from fsm_agent.testing.scripted import scripted_model

SCRIPT = Script(
    when(user="act").then(tool_calls=[call("look", where="left")], label="TOOL", thinking="hm"),
    when(user="slow").then("At last.", label="FINISH", first_byte_ms=60_000, between_ms=60_000),
    when(user="cut").then("never", label="FINISH", interruption=Drop(after_chunks=1)),
    when(user="busy").then(HttpError(429, "too many", retry_after_s=7)),
)


async def asked(text: str) -> Reply:
    model = scripted_model(SCRIPT)
    request = StepRequest(instructions="Work.", messages=(UserMessage(text),), protocol=DEFAULT)
    pieces: list[Any] = []
    try:
        return await model.step(request, pieces.append)
    finally:
        await model.aclose()


async def test_calls_and_labels_come_as_from_a_server() -> None:
    reply = await asked("act")

    assert (reply.label, reply.thinking) == ("TOOL", "hm")
    assert [(c.name, c.arguments) for c in reply.calls] == [("look", {"where": "left"})]


async def test_waits_of_a_script_take_no_time() -> None:
    assert (await asked("slow")).text == "At last."


@pytest.mark.parametrize(
    ("text", "kind"),
    [("cut", "connection_dropped"), ("busy", "rate_limited"), ("unknown", "bad_request")],
)
async def test_failures_of_a_script_are_failures_of_the_model(text: str, kind: str) -> None:
    with pytest.raises(ProviderError) as caught:
        await asked(text)

    assert caught.value.kind == kind
    if text == "busy":
        assert caught.value.retry_after_s == 7


def test_a_scripted_model_does_without_the_sdk() -> None:
    code = """
import asyncio, sys
from fsm_agent.llm.model import StepRequest
from fsm_agent.run.content import UserMessage
from fsm_agent.testing import Script, otherwise
from fsm_agent.testing.scripted import scripted_model
model = scripted_model(Script(otherwise("hello")))
request = StepRequest(instructions="", messages=(UserMessage("x"),))
assert asyncio.run(model.step(request, lambda piece: None)).text == "hello"
assert "openai" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
