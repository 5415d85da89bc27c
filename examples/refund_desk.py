"""A refund desk: reads orders and rules, sends credit notes, and pays money back once approved.

`fsm-agent demo` runs this agent. Its three kinds of tools are those of most desks:

- reading (`look_up_order`, `read_policy`): may be done again at any time
- keyed (`send_credit_note`): the other side honours an idempotency key, so it may be sent again
- unsafe (`issue_refund`): money leaves the house, so a person approves, and it starts at most once

The "other side" is a file, `ledger.jsonl`: append-only, and it counts what was sent and what took
effect. It lives in REFUND_DESK_DIR, by default `refund_desk_data` beside this file.
"""

import asyncio
import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fsm_agent import Agent, ToolContext, keyed, tool

# How long the other systems take to answer, in seconds.
PACE_S = float(os.environ.get("REFUND_DESK_PACE_S", "0.2"))


def desk() -> Path:
    """The folder with the orders, the rules and the ledger."""
    beside = Path(__file__).resolve().parent / "refund_desk_data"
    return Path(os.environ.get("REFUND_DESK_DIR") or beside)


def post(what: str, key: str, **detail: Any) -> bool:
    """Send something to the bank: it takes effect once per key. Whether it took effect now.

    Every sending is noted, so that anybody can count. The line is on disk before this returns.
    """
    with open(desk() / "ledger.jsonl", "a+", encoding="utf-8") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        ledger.seek(0)
        known = {json.loads(line)["key"] for line in ledger if line.strip()}
        is_new = key not in known
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"what": what, "key": key, "took_effect": is_new, "at": at, **detail}
        ledger.write(json.dumps(entry) + "\n")
        ledger.flush()
        os.fsync(ledger.fileno())
    return is_new


def order(order_id: str) -> dict[str, Any]:
    """An order by its id."""
    orders = json.loads((desk() / "orders.json").read_text(encoding="utf-8"))
    if order_id not in orders:
        raise LookupError(f"there is no order {order_id!r}. Known: {', '.join(orders)}.")
    found: dict[str, Any] = orders[order_id]
    return found


@tool(effect="read")
async def look_up_order(order_id: Annotated[str, "Such as A-1042."]) -> dict[str, Any]:
    """Look up an order with its customer, its lines and its delivery."""
    await asyncio.sleep(PACE_S * 2)
    found = order(order_id)
    customers = json.loads((desk() / "customers.json").read_text(encoding="utf-8"))
    return {"order_id": order_id, **found, "customer": customers[found["customer"]]}


@tool(effect="read")
async def read_policy(topic: Annotated[str, "A word, such as 'damaged' or 'late'."]) -> str:
    """Read what the house rules say about a topic."""
    await asyncio.sleep(PACE_S * 3)
    sections = (desk() / "policy.md").read_text(encoding="utf-8").split("\n## ")[1:]
    found = [section for section in sections if topic.lower() in section.lower()]
    titles = ", ".join(section.split("\n", 1)[0] for section in sections)
    return "\n\n".join(f"## {each.strip()}" for each in found) or f"Nothing. Topics: {titles}."


@tool(effect=keyed(ttl_s=86_400))
async def send_credit_note(
    order_id: str,
    cents: Annotated[int, "The amount in cents."],
    reason: str,
    *,
    context: ToolContext,
) -> str:
    """Send the customer a credit note for their next order."""
    if cents < 1:
        raise ValueError("the amount must be above 0 cents.")
    order(order_id)
    context.progress("connecting to the bank")
    await asyncio.sleep(PACE_S)
    is_new = post("credit_note", context.idempotency_key, order_id=order_id, cents=cents)
    context.progress("sent; waiting for the bank's confirmation")
    await asyncio.sleep(PACE_S * 8)
    seen = "accepted" if is_new else "known already under this key, nothing done twice"
    return f"credit note over {cents / 100:.2f} EUR for {order_id}: {seen} ({reason})"


@tool(approval="always")  # no effect class: `unsafe`, so it is started at most once
async def issue_refund(
    order_id: str,
    cents: Annotated[int, "The amount in cents, at most what was paid."],
    reason: Annotated[str, "For the books, in one sentence."],
    *,
    context: ToolContext,
) -> str:
    """Pay money back to the customer's card. A person has to approve it."""
    paid = int(order(order_id)["paid_cents"])
    if not 0 < cents <= paid:
        raise ValueError(f"{cents} cents is not between 1 and the {paid} that were paid.")
    # This bank knows no keys: what is sent twice is paid twice. So every sending is its own key.
    number = f"refund-{datetime.now(UTC).timestamp():.6f}"
    post("refund", number, order_id=order_id, cents=cents)
    await asyncio.sleep(PACE_S * 2)
    return f"refunded {cents / 100:.2f} EUR of order {order_id} to the card ({reason})"


agent = Agent(
    "refund-desk",
    "You work at the refund desk of a small shop. Look up the order and the rules before you"
    " decide. Never pay back more than was paid. Where the rules ask for it, send a credit note"
    " beside the refund. Call tools at once where they do not depend on each other. Answer the"
    " customer in three sentences at most, with amounts.",
    tools=[look_up_order, read_policy, send_credit_note, issue_refund],
)
