"""Server-sent events: no gap, nothing twice, whatever is cut and wherever one comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from checkpoints.model import RunId
from fsm_agent.inbox import feeds
from fsm_agent.inbox.settings import Settings
from fsm_agent.llm.model import Piece, Reply, StepRequest
from tests.conftest import USAGE, ScriptedModel, die, finish, take_over, think, turns, until
from tests.inbox.conftest import Opener, Site, desk_agent

Event = dict[str, Any]


class Listener:
    """An open stream, and what came of it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.comments = 0

    def kinds(self) -> list[str]:
        return [each["event"] for each in self.events]

    def seqs(self) -> list[int]:
        return [each["data"]["seq"] for each in self.events if each["event"] == "entry"]

    def facts(self, kind: str) -> list[dict[str, Any]]:
        """What entries said, of one kind."""
        entries = [each["data"] for each in self.events if each["event"] == "entry"]
        return [fact for entry in entries for fact in entry["facts"] if fact["kind"] == kind]

    async def read(self, lines: AsyncIterator[str]) -> None:
        event: Event = {}
        async for line in lines:
            if line.startswith(":"):
                self.comments += 1
            elif not line and "event" in event:
                self.events.append(event)
                event = {}
            elif line:
                name, _, value = line.partition(": ")
                event[name] = json.loads(value) if name == "data" else value


@asynccontextmanager
async def listening(
    site: Site, path: str, who: str = "mia", **headers: str
) -> AsyncIterator[Listener]:
    """A stream for the length of the block."""
    known = site.as_(who) | {"Accept": "text/event-stream"}
    known |= {name.replace("_", "-"): value for name, value in headers.items()}
    listener = Listener()
    async with site.client.stream("GET", path, headers=known) as answer:
        assert answer.status_code == 200
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-store"
        task = asyncio.create_task(listener.read(answer.aiter_lines()))
        try:
            yield listener
        finally:
            task.cancel()
            await asyncio.wait([task])


async def whole(site: Site, path: str, **headers: str) -> Listener:
    """A stream to its end."""
    async with listening(site, path, **headers) as heard:
        await until(lambda: "end" in heard.kinds())
    return heard


async def test_77_a_stream_cut_at_each_seq_goes_on_without_gap_or_double(
    open_site: Opener,
) -> None:
    site: Site = await open_site(turns(think(), think("two"), finish()))
    other: Site = await open_site(runtime=site.runtime)  # another server on the same store
    run_id = await site.runtime.start(desk_agent(), "go")
    await site.runtime.work(run_id, desk_agent())
    last = (await site.bench.run_of(run_id)).seq
    path = f"/v1/runs/{run_id}/events"

    everything = await whole(site, path)
    for seq in range(last + 1):
        rest = await whole(other, path, Last_Event_ID=str(seq))
        assert rest.seqs() == list(range(seq + 1, last + 1))

    assert everything.seqs() == list(range(1, last + 1))
    ids = [each["id"] for each in everything.events if each["event"] == "entry"]
    assert ids == [str(seq) for seq in everything.seqs()]
    assert (await whole(site, f"{path}?after=3")).seqs() == list(range(4, last + 1))


async def test_77_several_listeners_of_a_run_under_way_hear_all_of_it_once(
    open_site: Opener,
) -> None:
    gate = asyncio.Event()

    async def slowly(request: StepRequest) -> Reply:
        await gate.wait()
        return finish()

    first: Site = await open_site(ScriptedModel(slowly))
    second: Site = await open_site(runtime=first.runtime)
    run_id = await first.runtime.start(desk_agent(), "go")
    path = f"/v1/runs/{run_id}/events"

    async with listening(first, path) as one, listening(second, path) as two:
        await until(lambda: one.seqs() == two.seqs() == [1])
        working = asyncio.create_task(first.runtime.work(run_id, desk_agent()))
        await until(lambda: len(one.seqs()) >= 3)
        async with listening(first, path, Last_Event_ID="2") as late:
            gate.set()
            await working
            await until(lambda: all("end" in each.kinds() for each in (one, two, late)))
    last = (await first.bench.run_of(run_id)).seq

    assert one.seqs() == two.seqs() == list(range(1, last + 1))
    assert late.seqs() == list(range(3, last + 1))


async def test_77_a_history_that_was_trimmed_is_told_as_a_resync(site: Site) -> None:
    run_id = await site.parked()
    store: Any = site.runtime.store
    keys = store._of(RunId(run_id))
    await store._read("XTRIM", keys.journal, "MINID", "4-0")

    async with listening(site, f"/v1/runs/{run_id}/events") as heard:
        await until(lambda: "resync" in heard.kinds() or "end" in heard.kinds())

    assert heard.kinds()[0] == "resync"
    assert heard.events[0]["data"]["seq"] == 1


async def test_77_a_client_that_saw_more_than_there_is_begins_anew(site: Site) -> None:
    run_id = await site.parked()

    async with listening(site, f"/v1/runs/{run_id}/events", Last_Event_ID="999") as heard:
        await until(lambda: len(heard.seqs()) == 5)

    assert heard.kinds()[0] == "resync"
    assert heard.seqs() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("bad", ["-1", "x", "1-0", "9" * 40, "٣"])
async def test_a_position_that_is_none_is_refused(site: Site, bad: str) -> None:
    run_id = await site.parked()

    answer = await site.client.get(
        f"/v1/runs/{run_id}/events", params={"after": bad}, headers=site.as_("mia")
    )

    assert answer.status_code == 400


async def test_the_lists_are_told_as_they_change_and_to_whom_they_belong(
    site: Site,
) -> None:
    await site.parked(tenant="acme")

    async with (
        listening(site, "/v1/inbox/events", "mia") as everybody,
        listening(site, "/v1/inbox/events", "acme-ann") as acme,
        listening(site, "/v1/inbox/events", "zeta-zoe") as zeta,
    ):
        await until(lambda: everybody.events and acme.events and zeta.events)
        heard = len(acme.events)
        await site.parked(run_id="zeta-1", tenant="zeta")
        await until(lambda: zeta.events[-1]["data"] == {"open": 1})
        await until(lambda: everybody.events[-1]["data"] == {"open": 2})

    assert acme.events[-1]["data"] == {"open": 1}
    assert len(acme.events) == heard  # nothing of theirs has changed
    assert "zeta" not in json.dumps(acme.events)


async def test_a_listener_of_another_server_is_told_to_look_again(site: Site) -> None:
    await site.parked()
    async with listening(site, "/v1/inbox/events") as first:
        await until(lambda: first.events)
    known = first.events[-1]["id"]

    async with listening(site, "/v1/inbox/events", Last_Event_ID="00000000-0") as other:
        await until(lambda: other.events)
    async with listening(site, "/v1/inbox/events", Last_Event_ID=known) as same:
        await site.parked()
        await until(lambda: same.events and same.events[-1]["data"] == {"open": 2})

    assert other.kinds()[0] == "resync"
    assert known not in [each["id"] for each in same.events]  # nothing is told again


async def test_live_text_of_a_dead_attempt_is_taken_back(open_site: Opener) -> None:
    """The worker dies in the middle of a reply; another one takes over and asks again."""
    site: Site = await open_site()
    said, hang = asyncio.Event(), asyncio.Event()

    class Dying(ScriptedModel):
        async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
            on_piece(Piece("body", "never to be heard again"))
            said.set()
            await hang.wait()
            raise AssertionError

    class Living(ScriptedModel):
        async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
            on_piece(Piece("body", "the true answer"))
            await asyncio.sleep(0.3)
            return Reply(label="FINISH", text="the true answer", usage=USAGE)

    store = await site.bench.store()
    doomed = await site.bench.runtime(Dying(lambda r: finish()), store=store, lease_s=0.5)
    heir = await site.bench.runtime(Living(lambda r: finish()), lease_s=5)
    run_id = await doomed.start(desk_agent(), "go")

    async with listening(site, f"/v1/runs/{run_id}/events") as heard:
        working = asyncio.create_task(doomed.work(run_id, desk_agent()))
        await said.wait()
        await until(lambda: "live" in heard.kinds())
        await die(store, working)
        await take_over(heir, run_id, desk_agent())
        await until(lambda: "end" in heard.kinds())

    live = {1: "", 2: ""}
    for each in heard.events:
        if each["event"] == "live":
            live[each["data"]["attempt"]] += each["data"]["text"]
    began = [fact["attempt"] for fact in heard.facts("reserved")]
    assert live == {1: "never to be heard again", 2: "the true answer"}
    assert began == [1, 2]  # the second one tells a page that the first is void
    takeovers = [fact for fact in heard.facts("resumed") if fact["is_takeover"]]
    assert len(takeovers) == 1


async def test_row_25_a_thousand_idle_listeners_cost_little_and_all_hear(
    open_site: Opener,
) -> None:
    settings = Settings(look_s=0.2, max_streams=2000, max_streams_of_one=2000)
    site: Site = await open_site(settings=settings)
    run_ids = [await site.parked(run_id=f"idle{number}") for number in range(10)]
    port = int(site.url.rpartition(":")[2])
    heard = 0

    async def listen(number: int) -> None:
        nonlocal heard
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        path = "/v1/inbox/events" if number % 2 else f"/v1/runs/{run_ids[number % 10]}/events"
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {site.tokens['mia']}\r\n\r\n".encode()
        )
        try:
            await reader.readuntil(b"event: ")
            heard += 1
            await reader.read()
        finally:
            writer.close()

    listeners = [asyncio.create_task(listen(number)) for number in range(1000)]
    try:
        await until(lambda: heard == 1000, 60)
        feeds = len(site.desk.feeds._feeds)
        async with asyncio.timeout(10):
            answer = await site.get("/v1/approvals")
    finally:
        for each in listeners:
            each.cancel()
        await asyncio.wait(listeners)

    assert feeds == 6  # one watcher for each thing that is looked at, however many look
    assert answer.json()["total"] == 10


async def test_what_nobody_looks_at_is_not_watched_for_long(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LINGER_S", 0.05)
    run_id = await site.parked()

    async with listening(site, f"/v1/runs/{run_id}/events") as heard:
        await until(lambda: heard.seqs())
        tasks = [feed.task for feed in site.desk.feeds._feeds.values()]
    await until(lambda: not site.desk.feeds._feeds)
    await until(lambda: all(task.done() for task in tasks))

    assert len(tasks) == 1


async def test_open_streams_do_not_hold_up_the_end_of_the_server(open_site: Opener) -> None:
    site: Site = await open_site()
    run_id = await site.parked()

    async with listening(site, f"/v1/runs/{run_id}/events") as heard:
        await until(lambda: heard.seqs())
        site.desk.feeds.close()
        await until(lambda: "end" in heard.kinds())
    refused = await site.get(f"/v1/runs/{run_id}/events")

    assert refused.status_code == 503
