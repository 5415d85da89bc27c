"""Workers that are woken by a message broker: what is lost, doubled or late costs time only."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, Runtime, tool
from fsm_agent.errors import UsageError
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.worker import fleet
from fsm_agent.worker.broker import check_broker, opened
from fsm_agent.worker.fleet import QUEUE, Relay, Sender, no_hints
from fsm_agent.worker.pool import Settings, Worker
from tests.conftest import Bench, Ledger, ScriptedModel, ask, finish, until
from tests.integration.brokers import cluster_broker, rabbit_broker, redis_broker

FAR = Settings(look_s=600.0)  # only messages wake this one
BROKERS = {"redis": redis_broker, "cluster": cluster_broker, "rabbit": rabbit_broker}


@pytest.fixture(scope="module", params=BROKERS)
def broker_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A real broker of each kind."""
    folder = Path(tempfile.mkdtemp(prefix="fsm-broker-"))
    opening: AbstractContextManager[str] = BROKERS[request.param](folder / "broker")
    with opening as url:
        yield url
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A post that passes on soon."""
    monkeypatch.setattr(fleet, "POST_TERM_S", 0.6)
    monkeypatch.setattr(fleet, "TICK_S", 0.1)


def make_agent(ledger: Ledger) -> Agent:
    @tool(effect="unsafe")
    async def act(who: str) -> str:
        """Do it."""
        ledger.record(who)
        return "ok"

    return Agent("actor", tools=[act])


def model() -> ScriptedModel:
    def answer(request: StepRequest) -> Reply:
        if len(request.messages) > 1:
            return finish()
        return ask(("act", {"who": request.messages[0].text}))

    return ScriptedModel(answer)


async def all_done(runtime: Runtime, count: int) -> bool:
    return len(await runtime.runs(status="done", limit=1000)) == count


@asynccontextmanager
async def working(
    runtime: Runtime, agent: Agent, url: str, *, settings: Settings = FAR, relays: bool = True
) -> AsyncIterator[None]:
    """A worker of the fleet for the length of the block."""
    services = fleet.services(
        url, runtime.store, owner=runtime.owner, offer=lambda run_id: worker.offer(run_id)
    )
    worker: Worker[Any] = Worker(
        runtime,
        {agent.name: agent},
        settings=settings,
        hints=no_hints,
        services=services if relays else services[:1],
    )
    task = asyncio.create_task(worker.work())
    try:
        yield
    finally:
        task.cancel()
        _, late = await asyncio.wait([task], timeout=10)
        assert not late, "it did not end"


async def test_messages_wake_workers_that_look_at_nothing_else(
    bench: Bench, ledger: Ledger, broker_url: str, quick: None
) -> None:
    one, two = await bench.runtime(model()), await bench.runtime(model())
    agent = make_agent(ledger)

    async with working(one, agent, broker_url), working(two, agent, broker_url):
        for number in range(6):
            await one.start(agent, f"{number}")
        await until(lambda: all_done(one, 6), 30)

    assert dict(ledger) == {f"{n}": 1 for n in range(6)}


async def test_doubled_and_reordered_messages_do_everything_once(
    bench: Bench, ledger: Ledger, broker_url: str
) -> None:
    one, two = await bench.runtime(model()), await bench.runtime(model())
    agent = make_agent(ledger)
    run_ids = [await one.start(agent, f"{number}") for number in range(8)]
    messages = [*run_ids * 5, "r-nobody", "no run id at all", ""]
    random.Random(7).shuffle(messages)

    async with opened(broker_url, QUEUE, consumer="test") as broker:
        sender = Sender(broker)
        for run_id in messages:
            await sender.send(run_id)
    async with (
        working(one, agent, broker_url, relays=False),
        working(two, agent, broker_url, relays=False),
    ):
        await until(lambda: all_done(one, 8), 30)

    assert dict(ledger) == {f"{n}": 1 for n in range(8)}


async def test_lost_messages_are_made_up_for_by_a_look(
    bench: Bench, ledger: Ledger, broker_url: str
) -> None:
    runtime = await bench.runtime(model())
    agent = make_agent(ledger)

    settings = Settings(look_s=0.2)
    async with working(runtime, agent, broker_url, settings=settings, relays=False):
        for number in range(3):
            await runtime.start(agent, f"{number}")
        await until(lambda: all_done(runtime, 3), 30)

    assert dict(ledger) == {f"{n}": 1 for n in range(3)}


async def test_what_became_due_before_there_was_a_fleet_is_sent_too(
    bench: Bench, ledger: Ledger, broker_url: str, quick: None
) -> None:
    runtime = await bench.runtime(model())
    agent = make_agent(ledger)
    await runtime.start(agent, "early")

    async with working(runtime, agent, broker_url):
        await until(lambda: all_done(runtime, 1), 30)


# -- what only one kind of broker has to show -----------------------------------------------------


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[str]:
    """A broker that a test may break."""
    with redis_broker(tmp_path / "broker") as url:
        yield url


async def test_workers_go_on_without_their_broker(
    bench: Bench, ledger: Ledger, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsm_agent.worker.services.AGAIN_S", 0.1)
    runtime = await bench.runtime(model())
    agent = make_agent(ledger)

    with redis_broker(tmp_path / "broker") as url:
        async with working(runtime, agent, url, settings=Settings(look_s=0.2)):
            await runtime.start(agent, "with it")
            await until(lambda: all_done(runtime, 1), 30)
            await _shut_down(url)
            await runtime.start(agent, "without it")
            await until(lambda: all_done(runtime, 2), 30)

    assert dict(ledger) == {"with it": 1, "without it": 1}


async def test_a_message_that_is_none_stops_nobody(
    bench: Bench, ledger: Ledger, own_redis: str, quick: None
) -> None:
    runtime = await bench.runtime(model())
    agent = make_agent(ledger)

    async with opened(own_redis, QUEUE, consumer="test") as broker:
        for junk in (b"\xff\x00", b"{}", b'{"task_name": "no such task"}', b"null"):
            await broker.kick(_message(junk))
    async with working(runtime, agent, own_redis):
        await runtime.start(agent, "x")
        await until(lambda: all_done(runtime, 1), 30)


async def test_one_process_relays_and_another_follows_it(
    bench: Bench, ledger: Ledger, own_redis: str, quick: None
) -> None:
    stores = [await bench.store(), await bench.store()]
    relays = [Relay(own_redis, store, owner=f"w-{n}") for n, store in enumerate(stores)]  # type: ignore[arg-type]

    assert [await relay._has_post() for relay in relays] == [True, False]
    await until(lambda: relays[1]._has_post())
    assert not await relays[0]._has_post()


async def test_a_run_that_stays_due_is_sent_again_less_and_less_often(
    bench: Bench, own_redis: str, ledger: Ledger
) -> None:
    now, sent = 0.0, []
    runtime = await bench.runtime(model())
    run_id = await runtime.start(make_agent(ledger), "x")
    relay = Relay(own_redis, runtime.store, owner="w", steady_s=lambda: now)

    class Recorder:
        async def send(self, run_id: str) -> None:
            sent.append((run_id, now))

    for now in range(0, 1000, 10):  # noqa: B007
        await relay._sweep(Recorder())  # type: ignore[arg-type]

    assert sent == [(run_id, at) for at in (0, 30, 90, 210, 450, 930)]


@pytest.mark.parametrize("url", ["", "redis", "http://x", "redis://", "kafka://a:b@x"])
def test_an_address_that_no_broker_has_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError, match=r"is not the address of a message broker. Use redis://"):
        check_broker(url)


async def _shut_down(url: str) -> None:
    from redis.asyncio import Redis

    async with Redis.from_url(url) as client:
        await client.shutdown(nosave=True)


def _message(data: bytes) -> Any:
    from taskiq import BrokerMessage

    return BrokerMessage(task_id="x", task_name="x", message=data, labels={})
