"""Takes the pictures of docs/img: python -m tests.inbox.pictures"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from checkpoints.embedded import EmbeddedServer
from fsm_agent import Agent, Runtime, ask, ask_user, tool
from fsm_agent.inbox.auth import LocalToken
from fsm_agent.inbox.desk import Desk
from fsm_agent.inbox.keys import Keys
from fsm_agent.inbox.server import feeds_of, serving
from fsm_agent.inbox.settings import Settings
from tests.conftest import ask as wants
from tests.conftest import finish, turns
from tests.inbox.browser import chromium

OUT = Path(__file__).parents[2] / "docs" / "img"
TOKEN = "a token of this process only, long enough"


def over_20(args: dict[str, Any]) -> bool | str:
    """More than a clerk may pay."""
    return args["amount"] > 20 and f"{args['amount']} EUR is more than 20"


@tool(approval=ask(when=over_20, expires_s=5 * 3600))
def issue_refund(order: str, amount: int, reason: str) -> str:
    """Pay money back to the customer's card."""
    return f"paid {amount}"


@tool(effect="read")
def look_up_order(order: str) -> dict[str, Any]:
    """Look up an order."""
    return {"order": order, "paid": 89}


@tool(approval=ask(quorum=2, not_requester=True))
def delete_account(customer: str) -> str:
    """Delete a customer's account."""
    return "deleted"


agent = Agent("refund-desk", tools=[issue_refund, look_up_order, delete_account, ask_user])
REFUND = {"order": "A-1042", "amount": 89, "reason": "The headphones arrived broken."}


async def main() -> None:
    """Two runs that wait, and their pages."""
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(Path(folder) / "s")
        server.enter()
        try:
            await _take(f"embedded:{folder}/s")
        finally:
            server.leave()


async def _take(store: str) -> None:
    refunding = turns(
        wants(("look_up_order", {"order": "A-1042"})), wants(("issue_refund", REFUND)), finish()
    )
    deleting = turns(wants(("delete_account", {"customer": "Robin Doe"})), finish())
    async with Runtime.open(store, model=refunding) as runtime:
        run_id = "r-7f3kq2m9w4xz"
        await runtime.start(agent, "Refund order A-1042, the customer is right.", run_id=run_id,
                            requester="kim@shop.example")  # fmt: skip
        await runtime.work(run_id, agent)
        other = runtime.with_model(deleting)
        await other.start(agent, "Close the account of Robin Doe", run_id="r-kewue3k4pkqa",
                          requester="kim@shop.example")  # fmt: skip
        await other.work("r-kewue3k4pkqa", agent)
        (request,) = await runtime.requests(run_id)
        settings = Settings(port=0)
        desk = Desk(
            runtime=runtime, auth=LocalToken("mia", TOKEN), keys=Keys(TOKEN.encode()),
            feeds=feeds_of(runtime, settings), settings=settings, agents={agent.name: agent},
        )  # fmt: skip
        async with serving(desk) as port, chromium() as browser:
            for name, path, width, scheme in (
                ("inbox", "/inbox", 1120, "light"),
                ("approval", f"/runs/{run_id}/asks/{request.ask_id}", 1120, "light"),
                ("timeline", f"/runs/{run_id}", 1120, "dark"),
                ("phone", f"/runs/{run_id}/asks/{request.ask_id}", 360, "light"),
            ):
                context = await browser.new_context(
                    viewport={"width": width, "height": 700}, color_scheme=scheme
                )
                page = await context.new_page()
                await page.goto(f"http://127.0.0.1:{port}/inbox")
                await page.fill("#token", TOKEN)
                await page.press("#token", "Enter")
                await page.wait_for_selector(".bar")
                await page.goto(f"http://127.0.0.1:{port}{path}")
                await page.wait_for_selector("#live-state.on")
                await page.screenshot(path=OUT / f"{name}.png")
                await context.close()


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    asyncio.run(main())
