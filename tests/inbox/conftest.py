"""A real inbox on loopback, on a real store, with people who have roles and tenants."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fsm_agent import Agent, Runtime, ask_user, tool
from fsm_agent.inbox.auth import StaticUsers
from fsm_agent.inbox.desk import Desk
from fsm_agent.inbox.keys import Keys
from fsm_agent.inbox.server import feeds_of, serving
from fsm_agent.inbox.settings import Settings
from fsm_agent.inbox.users import Users, add_user
from tests.conftest import Bench, ScriptedModel, ask, finish, turns

KEYS = Keys(b"a secret of the tests, long enough")
PEOPLE = {
    "mia": ("approver", None),
    "leo": ("approver", None),
    "vic": ("viewer", None),
    "root": ("operator", None),
    "acme-ann": ("operator", "acme"),
    "zeta-zoe": ("operator", "zeta"),
}

GROUPS = {"mia": ("Support",), "leo": ("leads", "support")}


class HandClock:
    """A wall clock that stands until a test moves it."""

    def __init__(self) -> None:
        self.ms = time.time_ns() // 1_000_000

    def wall_ms(self) -> int:
        return self.ms

    def steady_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("the inbox does not wait by this clock")


@dataclass
class Site:
    """A running inbox, and the tokens of its people."""

    desk: Desk
    runtime: Runtime
    bench: Bench
    url: str
    tokens: dict[str, str]
    client: httpx2.AsyncClient

    def as_(self, name: str) -> dict[str, str]:
        """The headers of a person."""
        return {"Authorization": f"Bearer {self.tokens[name]}"}

    async def get(self, path: str, who: str | None = "mia", **headers: str) -> httpx2.Response:
        known = self.as_(who) if who else {}
        return await self.client.get(path, headers=known | headers)

    async def post(
        self, path: str, body: Any = None, who: str | None = "mia", **headers: str
    ) -> httpx2.Response:
        known = self.as_(who) if who else {}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, json=body or {}, headers=known | named)

    async def decide(self, approval: str, who: str = "mia", **body: Any) -> httpx2.Response:
        """Look at a request and decide it."""
        seen = (await self.get(f"/v1/approvals/{approval}", "root")).json()
        body = {"args_sha256": seen.get("args_sha256", "0" * 64)} | body
        return await self.post(f"/v1/approvals/{approval}/decision", body, who)

    async def parked(self, task: str = "refund it", **options: Any) -> str:
        """A run that waits for a person; its id."""
        run_id = await self.runtime.start(desk_agent(), task, **options)
        await self.runtime.work(run_id, desk_agent())
        return run_id

    async def digest(self) -> dict[str, Any]:
        """All that is stored, to be compared."""
        store = self.runtime.store
        heads = await store.runs(limit=1000)
        asks = await store.asks(is_open=False)
        mail = {head.run_id: await store.mailbox(head.run_id) for head in heads}
        # Whom leases belong to and when is the store's own business.
        return {"heads": [(h.run_id, h.seq, h.chain, h.mail, h.status) for h in heads],
                "asks": asks, "mail": mail}  # fmt: skip


@tool(approval="always")
def refund(order: str, amount: int) -> str:
    """Pay an order back."""
    return f"paid {amount} for {order}"


@tool(effect="idempotent", approval="always")
def note(text: str) -> str:
    """Write a note."""
    return "noted"


def desk_agent(*more: Any) -> Agent:
    return Agent("desk", "Work.", tools=[refund, note, ask_user, *more])


def paying_back() -> ScriptedModel:
    """Asks for a refund, then says what came of it."""
    return turns(ask(("refund", {"order": "A7", "amount": 42})), finish("Paid back."))


Opener = Callable[..., Any]


@pytest.fixture
async def open_site(bench: Bench, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens inboxes; several on the same store where a test wants them."""
    async with AsyncExitStack() as stack:
        file = tmp_path / "users.json"
        tokens = {
            name: add_user(
                file,
                name,
                role=role,  # type: ignore[arg-type]
                tenant=tenant,
                groups=GROUPS.get(name, ()),
            )
            for name, (role, tenant) in PEOPLE.items()
        }

        async def opened(
            model: ScriptedModel | None = None,
            *,
            runtime: Runtime | None = None,
            settings: Settings | None = None,
            **options: Any,
        ) -> Site:
            runtime = runtime or await bench.runtime(model or paying_back())
            settings = replace(settings or Settings(look_s=0.05), port=0)
            desk = Desk(
                runtime=runtime,
                auth=options.pop("auth", None) or StaticUsers(Users(file)),
                keys=KEYS,
                feeds=feeds_of(runtime, settings),
                settings=settings,
                agents=options.pop("agents", {"desk": desk_agent()}),
                **options,
            )
            return await stack.enter_async_context(_site(desk, bench, tokens))

        yield opened


@asynccontextmanager
async def _site(desk: Desk, bench: Bench, tokens: dict[str, str]) -> AsyncIterator[Site]:
    async with serving(desk) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
            yield Site(desk, desk.runtime, bench, url, tokens, client)


@pytest.fixture
async def site(open_site: Opener) -> Site:
    found: Site = await open_site()
    return found
