"""Approvals in two terminals: a sum, a deadline, two people. Needs no key and no server.

    python examples/approvals.py                     # first terminal: starts a run and works on it
    export FSM_AGENT_STORE=embedded:.approvals       # second terminal, in the same folder
    fsm-agent list

The first terminal brings a scripted model, starts a run in your name and prints what may be typed
in the second one. It ends when every call of the run has been decided, by people or by time.
"""

import asyncio
import getpass
import os
from typing import Any

from fsm_agent import Agent, Limits, Runtime, ask, tool
from fsm_agent.llm.client import OpenAIModel
from fsm_agent.run.event import EntryEvent, Event
from fsm_agent.run.tally import SoFar
from fsm_agent.testing import ModelServer, Script, call, when
from fsm_agent.worker.local import work_due_once

STORE = "embedded:.approvals"
RUN_ID = os.environ.get("APPROVALS_RUN_ID", "r-approvals")
OVER = ("done", "error")
DEADLINE_S = float(os.environ.get("APPROVALS_DEADLINE_S", "120"))


def over_100_in_all(args: dict[str, Any], so_far: SoFar) -> bool | str:
    """A rule with a second parameter sees what this run has spent on the tool so far."""
    total = so_far["amount"] + args["amount"]
    return f"{total} EUR in all would be paid back" if total > 100 else False


@tool(approval=ask(when=over_100_in_all))
async def refund(order: str, amount: int) -> str:
    """Pay an order back, in EUR."""
    return f"paid {amount} EUR back for {order}"


@tool(approval=ask(quorum=2, not_requester=True))
async def delete_account(customer: str) -> str:
    """Delete a customer's account."""
    return f"deleted the account of {customer}"


@tool(approval=ask(expires_s=DEADLINE_S, on_expiry="reject"))
async def send_voucher(customer: str, percent: int) -> str:
    """Send a customer a voucher."""
    return f"sent {customer} a voucher of {percent} %"


agent = Agent(
    "approvals",
    "You handle complaints.",
    tools=[refund, delete_account, send_voucher],
    limits=Limits(turns=5),
)

SCRIPT = Script(
    when(tool="send_voucher").then("All five calls have their result.", label="FINISH"),
    when(user="complaint").then(
        label="TOOL",
        tool_calls=[
            call("refund", order="A1", amount=40),
            call("refund", order="A2", amount=40),
            call("refund", order="A3", amount=40),
            call("delete_account", customer="kim"),
            call("send_voucher", customer="kim", percent=10),
        ],
    ),
)


def told(event: Event) -> None:
    """Print what happened, as the journal has it."""
    if isinstance(event, EntryEvent):
        for delta in event.record.deltas:
            name = type(delta).__name__
            if name in ("Judged", "Voted", "Attested", "Settled"):
                fields = {f: getattr(delta, f) for f in delta.__struct_fields__}
                words = {k: v for k, v in fields.items() if k in ("verb", "by", "status", "reason")}
                print(f"  {getattr(delta, 'call_id', '')}  {name.lower()}  {words}", flush=True)


async def main() -> None:
    with ModelServer(SCRIPT).in_thread() as server:
        model = OpenAIModel(base_url=server.base_url, api_key="any", model="scripted")
        async with Runtime.open(STORE, model=model, on_event=told) as runtime:
            await play(runtime)
        await model.aclose()


async def play(runtime: Runtime) -> None:
    """Start the run, or find it where it stands, and go on with it to its end."""
    await runtime.start(
        agent, "Settle Kim's complaint.", run_id=RUN_ID, requester=getpass.getuser()
    )
    result = await runtime.result(RUN_ID)
    if result.status in OVER:
        print(f"run {RUN_ID} is over. To play it again: rm -r {STORE.removeprefix('embedded:')}")
        return
    result = await runtime.work(RUN_ID, agent)
    requests = await runtime.requests(RUN_ID)
    print(f"run {RUN_ID} waits for {len(requests)} decisions. In another terminal:")
    print(f"  export FSM_AGENT_STORE={STORE}")
    for request in requests:
        print(f"  fsm-agent explain {RUN_ID} {request.ask_id}   # {request.question.tool}")
    print("Ctrl-C and the same command again: nothing is lost.", flush=True)
    while result.status not in OVER:
        await asyncio.sleep(0.2)
        await work_due_once(runtime, {agent.name: agent})
        result = await runtime.result(RUN_ID)
    print(f"{result.status}: {result.answer}")


if __name__ == "__main__":
    asyncio.run(main())
