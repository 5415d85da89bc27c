"""An agent with a tool of every kind; what they do to the world is in the folder of the case."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from fsm_agent import (
    Agent,
    Resources,
    ToolContext,
    ask_user,
    cannot_tell,
    done,
    keyed,
    not_done,
    probed,
    tool,
)
from fsm_agent.testing import Script, call, when

ENV = "FSM_AGENT_CRASH_DIR"
TASK = "Show every animal."


def world(name: str) -> Path:
    return Path(os.environ[ENV]) / name


def leave(name: str, text: str = "x") -> None:
    with open(world(name), "a") as out:
        out.write(text)


@tool(effect="read")
def look(where: str) -> str:
    """Look somewhere. Sync: in a thread."""
    return f"seen {where}"


@tool(effect=keyed(ttl_s=3600))
async def send(to: str, ctx: ToolContext) -> str:
    """Send something, in a task."""
    await asyncio.sleep(0)
    leave("sent", ctx.idempotency_key)
    return "sent"


@tool(effect="idempotent", isolation="process", resources=Resources(env=(ENV,)))
def isolated(value: int) -> str:
    """Set a value, in a process."""
    world("value").write_text(str(value))
    return f"value {value}"


def was_booked(key: str) -> object:
    """Whether a booking is there."""
    if not world("bookings").exists():
        return not_done()
    if key in world("bookings").read_text():
        return done("booked")
    return cannot_tell("there is another booking")


@tool(effect=probed(check=was_booked))
async def book(ctx: ToolContext) -> str:
    """Book, with a check that can tell."""
    leave("bookings", ctx.idempotency_key)
    return "booked"


@tool(approval="always")
def pay(cents: int) -> str:
    """Pay, without a key."""
    leave("paid")
    return f"paid {cents}"


helper = Agent("helper", "You pay.", tools=[pay])
agent = Agent("zoo", "You show.", tools=[look, send, isolated, book, ask_user, helper.as_tool()])
script = Script(
    when(system="You pay", tool="pay").then("Paid it.", label="FINISH"),
    when(system="You pay").then(tool_calls=[call("pay", cents=5)], label="TOOL"),
    when(tool="helper").then("All shown.", label="FINISH"),
    when(tool="ask_user").then(tool_calls=[call("helper", task="Pay 5.")], label="TOOL"),
    when(tool="book").then(
        tool_calls=[call("ask_user", question="Go on?", options=["yes"])], label="TOOL"
    ),
    when(tool="isolated").then(tool_calls=[call("book")], label="TOOL"),
    when(tool="look").then(
        tool_calls=[call("send", to="mia"), call("isolated", value=3)], label="TOOL"
    ),
    when(user="animal").then(
        tool_calls=[call("look", where="left"), call("look", where="right")], label="TOOL"
    ),
)
