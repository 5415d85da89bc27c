"""A headless Chromium of the system, and pages that notice what they should not do."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

from fsm_agent.worker.local import work_due_once
from tests.inbox.conftest import Site

AXE = Path(__file__).parent / "vendor" / "axe.min.js"


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The browser for the length of the block."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.fail("there is no chromium. On Debian: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            await browser.close()


class Person:
    """Somebody at a browser. Errors, dialogs and requests to other hosts are noted."""

    def __init__(self, site: Site, page: Page) -> None:
        self.site, self.page = site, page
        self.wrong: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", self._on_dialog)
        page.on("request", self._on_request)
        page.on("console", self._on_console)

    async def _on_dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.site.url, "data:", "about:")):
            self.wrong.append(f"request: {request.url}")

    def _on_console(self, message: Any) -> None:
        if "Content Security Policy" in message.text or "TrustedHTML" in message.text:
            self.wrong.append(f"refused: {message.text}")

    async def log_in(self, who: str = "mia") -> None:
        """By the page that asks for a token."""
        await self.page.goto(f"{self.site.url}/inbox")
        await self.page.fill("#token", self.site.tokens[who])
        await self.page.click("text=Log in >> nth=-1")
        await self.page.wait_for_selector(".bar")

    async def go(self, path: str) -> None:
        """Open a page, and wait until it is live."""
        await self.page.goto(self.site.url + path)
        await self.page.wait_for_selector("#live-state:not(:has-text('connecting'))")

    async def serious(self) -> list[str]:
        """What axe finds that is serious or critical."""
        await self.page.evaluate(AXE.read_text())
        found = await self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']}: {node['html'][:160]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]


@asynccontextmanager
async def person_at(
    site: Site, browser: Browser, who: str = "mia", **options: Any
) -> AsyncIterator[Person]:
    """Somebody who has logged in, in a browser of their own."""
    options = {"viewport": {"width": 1240, "height": 860}, "reduced_motion": "reduce"} | options
    context = await browser.new_context(**options)
    context.set_default_timeout(15_000)
    try:
        person = Person(site, await context.new_page())
        await person.log_in(who)
        yield person
    finally:
        await context.close()


@asynccontextmanager
async def worker_of(site: Site) -> AsyncIterator[None]:
    """A worker that takes up what is decided while the block runs."""

    async def forever() -> None:
        while True:
            await work_due_once(site.runtime, site.desk.agents)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(forever())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
