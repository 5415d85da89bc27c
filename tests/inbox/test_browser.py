"""The pages in a real browser: to decide, to follow a run, by keyboard, by whoever sees little."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from checkpoints.model import RunId
from fsm_agent import Agent, tool
from fsm_agent.inbox.links import make_link
from fsm_agent.llm.model import Piece, Reply, StepRequest
from fsm_agent.run import evidence
from fsm_agent.run.delta import Ruled
from fsm_agent.run.evidence import Orphan
from tests.conftest import USAGE, ScriptedModel, ask, die, finish, take_over, think, turns, until
from tests.inbox.browser import chromium, person_at, worker_of
from tests.inbox.conftest import KEYS, Opener, Site, desk_agent


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


async def the_request(site: Site, run_id: str) -> tuple[str, str]:
    """The page of a run's one request, and its hash."""
    (request,) = await site.runtime.requests(run_id)
    return f"/runs/{run_id}/asks/{request.ask_id}", request.digest


async def ruled(site: Site, run_id: str) -> list[Ruled]:
    events = await site.runtime.history(run_id)
    return [d for event in events for d in event.record.deltas if isinstance(d, Ruled)]


async def test_a_person_approves_what_they_saw_and_the_run_goes_on(
    site: Site, browser: Browser
) -> None:
    run_id = await site.parked()
    _, digest = await the_request(site, run_id)

    async with worker_of(site), person_at(site, browser) as mia:
        await mia.go("/inbox")
        await mia.page.click("text=refund")
        await mia.page.click("text=Approve and run")
        dialog = mia.page.locator("dialog#decide")
        await dialog.locator("#hash").fill("0000")
        await dialog.locator("[data-yes]").click()
        await expect(dialog.locator("[data-problem]")).to_contain_text("not the first characters")
        assert await ruled(site, run_id) == []
        await dialog.locator("#hash").fill(digest[:4])
        await dialog.locator("[data-yes]").click()
        await expect(mia.page.locator(".banner")).to_contain_text("approved by mia")
        await mia.go(f"/runs/{run_id}")
        await expect(mia.page.locator(".answer")).to_contain_text("Paid back.")
        assert mia.wrong == []

    (decision,) = await ruled(site, run_id)
    assert (decision.by, decision.verb, decision.digest) == ("mia", "approve", digest)
    assert decision.channel == "web"  # type: ignore[attr-defined]


async def test_a_person_edits_the_arguments_and_exactly_those_run(
    site: Site, browser: Browser
) -> None:
    run_id = await site.parked()
    path, digest = await the_request(site, run_id)

    async with worker_of(site), person_at(site, browser) as mia:
        await mia.go(path)
        await mia.page.click("text=Approve with edits…")
        dialog = mia.page.locator("dialog#decide")
        assert '"amount": 42' in await dialog.locator("#args").input_value()
        await dialog.locator("#args").fill('{"order": "A7", "amount": ')
        await dialog.locator("#hash").fill(digest[:4])
        await dialog.locator("[data-yes]").click()
        await expect(dialog.locator("[data-problem]")).to_contain_text("not JSON")
        await dialog.locator("#args").fill('{"order": "A7", "amount": 10}')
        await dialog.locator("[data-yes]").click()
        await expect(mia.page.locator(".banner")).to_contain_text("other arguments by mia")
        assert mia.wrong == []

    await until(lambda: site.bench.has_settled(run_id, 1))
    assert "paid 10 for A7" in str((await site.bench.run_of(run_id)).messages)


async def test_a_person_rejects_with_a_reason_that_the_model_is_told(
    site: Site, browser: Browser
) -> None:
    run_id = await site.parked()
    path, _ = await the_request(site, run_id)

    async with worker_of(site), person_at(site, browser) as mia:
        await mia.go(path)
        await mia.page.click("text=Reject…")
        dialog = mia.page.locator("dialog#decide")
        await dialog.locator("[data-yes]").click()
        await expect(dialog.locator("[data-problem]")).to_contain_text("Give a reason")
        await dialog.locator("#reason").fill("It was a gift.")
        await dialog.locator("[data-yes]").click()
        await expect(mia.page.locator(".banner.bad")).to_contain_text("rejected by mia")
        assert mia.wrong == []

    await until(lambda: site.bench.has_settled(run_id, 1))
    assert "It was a gift." in str((await site.bench.run_of(run_id)).messages)


async def test_two_people_at_once_and_the_second_is_told_who_was_first(
    site: Site, browser: Browser
) -> None:
    run_id = await site.parked()
    path, _ = await the_request(site, run_id)

    async with person_at(site, browser) as mia, person_at(site, browser, "leo") as leo:
        await mia.go(path)
        await leo.go(path)
        await leo.page.click("text=Reject…")  # and stays with the dialog open
        await mia.page.click("text=Reject…")
        await mia.page.locator("#reason").fill("first")
        await mia.page.locator("[data-yes]").click()
        await expect(mia.page.locator(".banner")).to_contain_text("rejected by mia")
        await leo.page.locator("#reason").fill("second")
        await leo.page.locator("[data-yes]").click()
        await expect(leo.page.locator("#toast")).to_contain_text("already decided: reject by mia")
        await expect(leo.page.locator(".banner")).to_contain_text("rejected by mia")


async def test_a_question_is_answered_by_its_options(open_site: Opener, browser: Browser) -> None:
    question = ("ask_user", {"question": "Which one?", "options": ["A-1", "B-2"]})
    site: Site = await open_site(turns(ask(question), finish("It was B-2.")))
    run_id = await site.parked()
    path, _ = await the_request(site, run_id)

    async with worker_of(site), person_at(site, browser) as mia:
        await mia.go(path)
        await mia.page.click("button:has-text('B-2')")
        await expect(mia.page.locator(".banner")).to_contain_text("answered by mia")

    assert (await ruled(site, run_id))[0].answer == "B-2"


@tool(timeout_s=0.2)
async def risky(x: int) -> str:
    """Do what nobody can repeat."""
    await asyncio.sleep(30)
    return "never"


async def test_a_call_in_doubt_is_settled(open_site: Opener, browser: Browser) -> None:
    agent = Agent("desk", "Work.", tools=[risky])
    site: Site = await open_site(
        turns(ask(("risky", {"x": 1})), finish("Settled.")), agents={"desk": agent}
    )
    run_id = await site.runtime.start(agent, "go")
    await site.runtime.work(run_id, agent)
    path, _ = await the_request(site, run_id)
    (request,) = await site.runtime.requests(run_id)
    for call_id, text in ((request.question.call_id, "receipt 17"), ("c9-9", "of another call")):
        seen = Orphan("worker-1", call_id, "after the run was taken over", "success", text)
        await site.runtime.store.report_orphan(RunId(run_id), evidence.encode(seen))

    async with worker_of(site), person_at(site, browser) as mia:
        await mia.go(f"/runs/{run_id}")
        await expect(mia.page.locator("main")).to_contain_text("call c9-9 ended with success")
        await mia.go(path)
        told = mia.page.locator(".doubt")
        await expect(told).to_contain_text("It ended with success after the run was taken over.")
        await expect(told.locator("pre")).to_have_text("receipt 17")
        await expect(told).not_to_contain_text("of another call")
        await expect(mia.page.locator("h1")).to_contain_text("Did risky happen?")
        await expect(mia.page.locator(".doubt")).to_contain_text("Look at the other system first")
        await mia.page.click("text=It happened…")
        await mia.page.locator("#answer").fill("receipt 17")
        await mia.page.locator("[data-yes]").click()
        await expect(mia.page.locator(".banner")).to_contain_text("it happened")
        assert mia.wrong == []

    (decision,) = await ruled(site, run_id)
    assert (decision.verb, decision.answer) == ("happened", "receipt 17")


async def test_what_is_long_has_to_be_read_before_it_is_approved(
    open_site: Opener, browser: Browser
) -> None:
    text = "line\n" * 400 + "and transfer everything\u202e"
    site: Site = await open_site(turns(ask(("note", {"text": text})), finish()))
    run_id = await site.parked()
    path, _ = await the_request(site, run_id)

    async with person_at(site, browser) as mia:
        await mia.go(path)
        approve = mia.page.locator("[data-verb=approve]")
        await expect(approve).to_be_disabled()
        await expect(mia.page.locator("summary >> nth=0")).to_contain_text("1 that cannot be seen")
        await mia.page.click("summary >> nth=0")
        await expect(approve).to_be_disabled()  # opened, and not read to its end
        await mia.page.locator("[data-must-see] pre").evaluate("e => e.scrollTop = e.scrollHeight")
        await expect(approve).to_be_enabled()
        assert await mia.page.locator("mark:has-text('U+202E')").count() >= 1


async def test_the_inbox_and_the_timeline_fill_by_themselves(
    open_site: Opener, browser: Browser
) -> None:
    gate = asyncio.Event()

    class Slowly(ScriptedModel):
        async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
            on_piece(Piece("body", "I am thinking of "))
            await asyncio.sleep(0.1)
            on_piece(Piece("body", "it."))
            await gate.wait()
            return await super().step(request, on_piece)

    site: Site = await open_site(Slowly(turns(think(), finish("All done.")).answer))
    run_id = await site.runtime.start(desk_agent(), "go")

    async with person_at(site, browser) as mia, person_at(site, browser, "leo") as leo:
        await leo.go("/inbox")
        await expect(leo.page.locator(".empty")).to_contain_text("Nothing waits for you")
        await mia.go(f"/runs/{run_id}")
        assert await mia.page.locator(".journal > tbody > tr").count() == 1
        working = asyncio.create_task(site.runtime.work(run_id, desk_agent()))
        await expect(mia.page.locator("[data-live-text]")).to_contain_text("I am thinking of it.")
        await expect(mia.page.locator("[data-live-text]")).to_contain_text("not on record yet")
        gate.set()
        await working
        await expect(mia.page.locator(".answer")).to_contain_text("All done.")
        last = (await site.bench.run_of(run_id)).seq
        await expect(mia.page.locator(".journal > tbody > tr")).to_have_count(last)
        keys = await mia.page.locator(".journal > tbody > tr").evaluate_all(
            "rows => rows.map(row => Number(row.dataset.key))"
        )
        assert keys == list(range(1, last + 1))
        await expect(mia.page.locator(".machine .current")).to_contain_text("DONE")
        await expect(mia.page.locator("[data-live-text]")).to_be_hidden()

        site.runtime._deps.model.answer = turns(ask(("note", {"text": "x"})), finish()).answer  # type: ignore[attr-defined]
        await site.parked()
        await expect(leo.page.locator("table.list tbody tr")).to_have_count(1)
        await expect(leo.page.locator("#open-count")).to_have_text("1")
        assert mia.wrong == leo.wrong == []


async def test_text_of_a_worker_that_died_is_taken_back_before_ones_eyes(
    site: Site, browser: Browser
) -> None:
    hang = asyncio.Event()

    class Dying(ScriptedModel):
        async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
            on_piece(Piece("body", "a promise that nobody keeps"))
            await hang.wait()
            raise AssertionError

    class Living(ScriptedModel):
        async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
            on_piece(Piece("body", "the true answer"))
            await hang.wait()
            return Reply(label="FINISH", text="the true answer", usage=USAGE)

    store = await site.bench.store()
    doomed = await site.bench.runtime(Dying(lambda r: finish()), store=store, lease_s=0.5)
    heir = await site.bench.runtime(Living(lambda r: finish()), lease_s=5)
    run_id = await doomed.start(desk_agent(), "go")

    async with person_at(site, browser) as mia:
        await mia.go(f"/runs/{run_id}")
        working = asyncio.create_task(doomed.work(run_id, desk_agent()))
        box = mia.page.locator("[data-live-text]")
        await expect(box).to_contain_text("a promise that nobody keeps")
        await die(store, working)

        heirs = asyncio.create_task(take_over(heir, run_id, desk_agent()))
        await expect(box.locator(".attempt.void")).to_contain_text("taken back")
        await expect(box.locator(".attempt:not(.void)")).to_contain_text("the true answer")
        await expect(mia.page.locator(".journal li.takeover")).to_contain_text("died here")
        hang.set()
        await heirs
        await expect(mia.page.locator(".answer")).to_contain_text("the true answer")
        assert mia.wrong == []


async def test_a_link_of_a_mail_decides_without_a_login(site: Site, browser: Browser) -> None:
    run_id = await site.parked()
    (request,) = await site.runtime.requests(run_id)
    now_s = site.desk.clock.wall_ms() / 1000
    token = make_link(KEYS, request, audience="leo", now_s=now_s)
    page = await browser.new_page(java_script_enabled=False)

    await page.goto(f"{site.url}/a/{token}")
    await expect(page.locator("body")).to_contain_text("You decide as leo")
    await page.click("text=Approve and run")
    await expect(page.locator("h1")).to_have_text("Recorded")
    await page.goto(f"{site.url}/a/{token}")
    await expect(page.locator("h1")).to_have_text("It is decided already")

    ruling = (await site.runtime.requests(run_id, is_open=False))[0].ruling
    assert ruling is not None
    assert ruling.by == "leo"


async def test_runs_are_filtered_selected_and_ended_together(site: Site, browser: Browser) -> None:
    for run_id, tenant in (("a1", "acme"), ("a2", "acme"), ("a3", "acme"), ("z1", "zeta")):
        await site.runtime.start(desk_agent(), f"task of {run_id}", run_id=run_id, tenant=tenant)

    async with person_at(site, browser, "root") as root:
        await root.go("/runs")
        rows = root.page.locator("table.list tbody tr")
        await expect(rows).to_have_count(4)
        await root.page.select_option("#tenant", "acme")
        await root.page.click("button:has-text('Filter')")
        await expect(rows).to_have_count(3)
        await root.page.click("nav.filters >> text=Ready")  # and the tenant stays chosen
        await root.page.wait_for_url("**/runs?status=ready&tenant=acme")
        await root.page.wait_for_selector("#live-state.on")
        await root.page.keyboard.press("j")
        await root.page.keyboard.press("x")
        await root.page.check("input[value=a1]")
        await expect(root.page.locator("[data-picked-count]")).to_have_text("2 selected")
        await site.runtime.start(desk_agent(), "new", run_id="a4", tenant="acme")
        await expect(rows).to_have_count(4)  # and what is selected stays so
        await expect(root.page.locator("[data-pick]:checked")).to_have_count(2)
        await root.page.click("text=Cancel them…")
        dialog = root.page.locator("dialog#cancel-many")
        assert await dialog.locator("li").all_text_contents() == ["a3", "a1"]
        assert await root.serious() == []
        await dialog.locator("#many-reason").fill("a mistake")
        await dialog.locator("#many-word").fill("cancel")
        await dialog.locator("button.danger").click()
        await expect(dialog.locator("[data-problem]")).to_have_text("These are not the words.")
        assert {head.run_id for head in await site.runtime.runs() if head.mail} == set()
        await dialog.locator("#many-word").fill("cancel 2")
        await dialog.locator("button.danger").click()
        await expect(root.page.locator("#toast")).to_contain_text("2 asked to end")
        await expect(root.page.locator("[data-picked]")).to_be_hidden()
        assert root.wrong == []

    assert {head.run_id for head in await site.runtime.runs() if head.mail} == {"a1", "a3"}
    result = await site.runtime.work("a1", desk_agent())
    assert (result.reason, "a mistake" in result.message) == ("cancelled", True)

    async with person_at(site, browser, "vic") as vic:
        await vic.go("/runs")
        await expect(vic.page.locator("[data-pick]")).to_have_count(0)


async def test_a_run_is_forked_from_a_whole_step_once_what_follows_may_happen_anew(
    open_site: Opener, browser: Browser
) -> None:
    site: Site = await open_site(paths={"desk": "/srv/my desk.py:agent"})
    run_id = await site.parked("refund 'A7'\x1b[31m now")
    (request,) = await site.runtime.requests(run_id)
    await site.runtime.decide(run_id, request.ask_id, "approve", by="leo")
    await site.runtime.work(run_id, desk_agent())

    async with person_at(site, browser, "root") as root:
        await root.go(f"/runs/{run_id}")
        copied = root.page.locator("text=Copy as crash test")
        told = shlex.split(await copied.get_attribute("data-copy") or "")
        assert told == [
            "fsm-agent", "crashtest", "/srv/my desk.py:agent", "--task", "refund 'A7' now",
        ]  # fmt: skip
        entry = root.page.locator("tr#e4")
        await entry.locator("summary:has-text('State before and after')").click()
        changed = entry.locator("table.diff")
        await expect(changed).to_contain_text("call c4-0 refund")
        await expect(changed).to_contain_text("1 of 40")
        await expect(
            root.page.locator(f"tr#e{(await site.bench.run_of(run_id)).seq} [data-fork]")
        ).to_have_count(0)
        await entry.locator("[data-fork]").click()
        dialog = root.page.locator("dialog#fork")
        await expect(dialog.locator("[data-fork-again]")).to_contain_text("second time: refund.")
        assert await root.serious() == []
        await dialog.locator("#fork-say").fill("Only 10, please.")
        await dialog.locator("button.primary").click()
        await expect(dialog.locator("[data-problem]")).to_contain_text("may happen anew")
        assert len(await site.runtime.runs()) == 1
        await dialog.locator("#fork-sure").check()
        await dialog.locator("button.primary").click()
        await root.page.wait_for_function("id => !location.pathname.endsWith(id)", arg=run_id)
        await expect(root.page.locator(".journal")).to_contain_text("root")
        assert root.wrong == []

    (fork_id,) = {head.run_id for head in await site.runtime.runs()} - {run_id}
    run = await site.bench.run_of(fork_id)
    assert (run.origin, run.unsaid or str(run.messages)[-40:]) == (run_id, "Only 10, please.")
    assert (await site.runtime.store.head(RunId(fork_id))).due_ms is not None


# -- keyboard and eyes ----------------------------------------------------------------------------


async def test_everything_can_be_done_by_keyboard_alone(site: Site, browser: Browser) -> None:
    first, second = await site.parked(run_id="first"), await site.parked(run_id="second")
    _, digest = await the_request(site, first)

    async with person_at(site, browser) as mia:
        keys = mia.page.keyboard
        await mia.go("/inbox")
        await keys.press("j")
        await keys.press("j")
        await keys.press("k")
        await expect(mia.page.locator("tr.here")).to_have_attribute("data-key", f"{first}.a4-0")
        await keys.press("Enter")
        await mia.page.wait_for_url("**/asks/**")
        await mia.page.wait_for_selector("#live-state.on")
        await keys.press("c")
        await expect(mia.page.locator("[data-act]")).to_have_text("Release")
        await keys.press("a")
        await expect(mia.page.locator("#hash")).to_be_focused()
        await keys.type(digest[:4])
        await keys.press("Enter")
        await expect(mia.page.locator(".banner")).to_contain_text("approved by mia")
        await keys.press("g")
        await keys.press("i")
        await mia.page.wait_for_url("**/inbox")
        await expect(mia.page.locator("table.list tbody tr")).to_have_count(1)
        await keys.press("/")
        await expect(mia.page.locator("#q")).to_be_focused()
        await keys.type("nothing like it")
        await keys.press("Enter")
        await expect(mia.page.locator(".empty")).to_contain_text("Nothing fits")
        await keys.press("g")
        await keys.press("r")
        await mia.page.wait_for_url("**/runs")
        await keys.press("?")
        await expect(mia.page.locator("dialog#keys")).to_be_visible()
        await keys.press("Escape")

        await mia.go(f"/runs/{second}/asks/a4-0")
        for key in ("Enter", " "):  # approval is bound to neither
            await keys.press(key)
        assert await ruled(site, second) == []
        await keys.press("r")
        await expect(mia.page.locator("#reason")).to_be_focused()
        await keys.type("no")
        await keys.press("Tab")
        await keys.press("Enter")
        await expect(mia.page.locator(".banner")).to_contain_text("rejected by mia")
        assert mia.wrong == []


PAGES = ["/inbox", "/runs", "/workers", "/policies", "/crash", "/inbox?show=decided", "/audit"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_serious_on_any_page(
    site: Site, browser: Browser, scheme: Any
) -> None:
    run_id = await site.parked()
    path, _ = await the_request(site, run_id)
    await site.post(f"/v1/approvals/{run_id}.a4-0/comment", {"text": "Hm."}, "leo")
    found = {}

    pages = [*PAGES, f"/audit?run={run_id}", "/crash/none.json"] if scheme == "light" else []

    async with person_at(site, browser, "root", color_scheme=scheme) as root:
        for each in [*pages, path, f"/runs/{run_id}"]:
            await root.page.goto(site.url + each)
            found[each] = await root.serious()
        await root.go(path)
        await root.page.click("text=Approve with edits…")
        found["dialog"] = await root.serious()
        await root.page.context.clear_cookies()
        await root.page.goto(f"{site.url}/inbox")
        found["login"] = await root.serious()

    assert {page: each for page, each in found.items() if each} == {}


@pytest.mark.parametrize(("width", "zoom"), [(360, 1), (1280, 2)])
async def test_pages_fit_a_phone_and_twice_the_size(
    site: Site, browser: Browser, width: int, zoom: int
) -> None:
    run_id = await site.parked()
    path, _ = await the_request(site, run_id)
    size = {"width": width // zoom, "height": 740}

    async with person_at(site, browser, "root", viewport=size, device_scale_factor=zoom) as root:
        for each in [*PAGES, path, f"/runs/{run_id}", f"/audit?run={run_id}"]:
            await root.page.goto(site.url + each)
            await root.page.evaluate(
                "document.querySelectorAll('details').forEach(each => { each.open = true })"
            )
            wide = await root.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= size["width"], each
            small = await root.page.evaluate(
                "[...document.querySelectorAll('button, .button, nav a, summary')]"
                ".filter(e => e.offsetParent && e.getBoundingClientRect().height < 24)"
                ".map(e => e.outerHTML)"
            )
            assert small == [], each
