"""Webhooks: who is told of what and when, what they can check, and those that are away."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from checkpoints.model import Notice, RunId
from fsm_agent import Agent, Runtime, Webhook, ask_user, tool
from fsm_agent import ask as asking_people
from fsm_agent.clock import SystemClock
from fsm_agent.errors import BadAgent, MissingSetting, UsageError
from fsm_agent.notify import webhook
from fsm_agent.notify.relay import GIVE_UP_S, Relay
from fsm_agent.notify.webhook import Sender, webhooks_of
from tests.conftest import Bench, ScriptedModel, Watched, ask, finish, turns, until
from tests.integration.cli_kit import Cli, cli, kept_store, model_url

__all__ = ["cli", "kept_store", "model_url"]  # fixtures

SECRET = "a secret of enough characters"
CANARY = "sk-canary-7f3a"


@dataclass
class Hook:
    """What came to a receiver, and how it answers."""

    url: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    came: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.came]

    def types(self) -> list[str]:
        return [each["type"] for each in self.told]

    def webhook(self, path: str = "/hook?token=inner") -> Webhook:
        return Webhook(self.url + path, SECRET)


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A real receiver on loopback."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            hook.came.append(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(hook.status)
            for name, value in hook.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hook.url = f"http://127.0.0.1:{server.server_port}"
    yield hook
    server.shutdown()
    server.server_close()


def desk(approval: Any = "always") -> Agent:
    @tool(approval=approval)
    async def send(to: str) -> str:
        """Send."""
        return f"sent with {CANARY}"

    return Agent("desk", tools=[send, ask_user])


SENDING = (("send", {"to": CANARY}), ("send", {"to": "leo"}))


async def opened(bench: Bench, hook: Hook, model: ScriptedModel, **options: Any) -> Runtime:
    return await bench.runtime(model, webhooks=[hook.webhook()], **options)


# -- what is told ---------------------------------------------------------------------------------


async def test_a_run_that_waits_and_its_end_are_told_once_without_what_they_are_about(
    bench: Bench, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSM_AGENT_INBOX_URL", "https://inbox.example/")
    agent, model = desk(), turns(ask(*SENDING), finish(CANARY))
    runtime = await opened(bench, hook, model)
    result = await runtime.run(agent, f"Send it with {CANARY}.", run_id="r1", requester=CANARY)

    await until(lambda: hook.came)
    for request in await runtime.requests("r1"):
        await runtime.decide("r1", request.ask_id, "reject", by="leo", reason=CANARY)
    assert (await runtime.work("r1", agent)).status == "done"
    await until(lambda: len(hook.came) == 2)

    assert result.status == "waiting"
    first, second = hook.told
    assert first["type"] == "request.opened"
    assert [each["ask_id"] for each in first["data"]["requests"]] == list(result.asks)
    assert first["data"]["requests"][0] | {"ask_id": ""} == {
        "ask_id": "", "kind": "approval", "tool": "send",
        "link": "https://inbox.example/runs/r1/asks/a4-0",
    }  # fmt: skip
    assert second["type"] == "run.done"
    assert second["data"] == {
        "run_id": "r1", "agent": "desk", "is_completed": True,
        "link": "https://inbox.example/runs/r1",
    }  # fmt: skip
    assert not any(CANARY.encode() in body for _, body in hook.came)


async def test_a_failed_run_is_told_with_its_reason(bench: Bench, hook: Hook) -> None:
    runtime = await opened(bench, hook, turns(ask(*SENDING)))
    await runtime.run(desk(), "Go.", run_id="r1")
    await runtime.cancel("r1", by="mia", reason=CANARY)

    await runtime.work("r1", desk())

    await until(lambda: "run.error" in hook.types())
    assert hook.told[-1]["data"] == {"run_id": "r1", "agent": "desk", "reason": "cancelled"}


async def test_nothing_is_kept_for_nobody(bench: Bench) -> None:
    runtime = await bench.runtime(turns(ask(*SENDING)), webhooks=[])

    await runtime.run(desk(), "Go.")

    assert await runtime.store.take_notices() == []


async def test_a_childs_requests_are_told_and_its_end_is_not(bench: Bench, hook: Hook) -> None:
    child = desk()
    parent = Agent("parent", tools=[child.as_tool()])

    def answer(request: Any) -> Any:
        is_parent = any(spec.name == "desk" for spec in request.tools)
        spoken = sum(type(m).__name__ == "AssistantMessage" for m in request.messages)
        if spoken:
            return finish()
        return ask(("desk", {"task": "Send."})) if is_parent else ask(("send", {"to": "mia"}))

    runtime = await opened(bench, hook, ScriptedModel(answer))
    result = await runtime.run(parent, "Go.", run_id="r1")
    (request,) = await runtime.requests("r1")
    await runtime.decide("r1", request.ask_id, "approve", by="leo")
    assert (await runtime.work("r1", parent)).status == "done", result

    await until(lambda: "run.done" in hook.types())
    assert hook.types() == ["request.opened", "run.done"]
    assert hook.told[0]["data"]["parent"] == "r1"
    assert hook.told[0]["data"]["run_id"] == request.run_id != "r1"


async def test_deadlines_are_reminded_of_at_half_and_at_nine_tenths(
    bench: Bench, hook: Hook
) -> None:
    agent = desk(asking_people(expires_s=0.6, to="support", escalate={0.2: "leads"}))
    runtime = await opened(bench, hook, turns(ask(("send", {"to": "mia"})), finish()))
    await runtime.run(agent, "Go.", run_id="r1")
    (request,) = await runtime.requests("r1")

    await until(lambda: poked(runtime) and len(hook.came) == 4)

    def passed(each: dict[str, Any]) -> int:
        return each["data"].get("passed_percent", 0)

    told = sorted(hook.told, key=lambda each: each["timestamp"])
    assert [(each["type"], passed(each)) for each in told] == [
        ("request.opened", 0), ("request.escalated", 0), ("request.reminder", 50),
        ("request.reminder", 90),
    ]  # fmt: skip
    assert told[1]["data"]["to"] == "leads"
    assert told[1]["data"]["requests"][0]["to"] == "support"
    assert request.question.escalation == ((200, "leads"),)
    assert len({each["id"] for each in told}) == 4


def poked(runtime: Runtime) -> bool:
    """The relay looks every other second; a test does not wait for it."""
    on_notices = runtime._deps.on_notices
    assert on_notices
    on_notices()
    return True


async def test_nobody_is_reminded_of_what_is_decided(bench: Bench, hook: Hook) -> None:
    agent = desk(asking_people(expires_s=0.4))
    store = await bench.store()
    model = turns(ask(("send", {"to": "mia"})), finish())
    runtime = await opened(bench, hook, model, store=store)
    await runtime.run(agent, "Go.", run_id="r1")
    await until(lambda: hook.came)
    (request,) = await runtime.requests("r1")
    await runtime.decide("r1", request.ask_id, "approve", by="leo")
    await runtime.work("r1", agent)

    async def is_over() -> bool:
        return await runtime.store.now_ms() > request.expires_ms and poked(runtime)

    async def is_all_told() -> bool:
        return poked(runtime) and await left_in(store, "r1") == 0

    await until(is_over)
    await until(is_all_told)

    assert hook.types() == ["request.opened", "run.done"]


@pytest.mark.parametrize(
    "terms",
    [
        {"escalate": {0: "leads"}},
        {"escalate": {-1: "leads"}},
        {"escalate": {True: "leads"}},
        {"escalate": {5: " "}},
        {"escalate": {5: 7}},
        {"escalate": {float("nan"): "leads"}},
        {"escalate": ["leads"]},
        {"escalate": dict.fromkeys(range(1, 8), "leads")},
        {"escalate": {10: "leads"}, "expires_s": 10},
        {"to": 7},
    ],
)
def test_escalations_that_cannot_work_are_refused(terms: dict[str, Any]) -> None:
    with pytest.raises(BadAgent):
        asking_people(**terms)


# -- what a receiver can check ---------------------------------------------------------------------


@pytest.mark.parametrize("is_encoded", [False, True])
async def test_the_signature_is_that_of_the_standard(
    bench: Bench, hook: Hook, is_encoded: bool
) -> None:
    key = b"\x00\xff another key of bytes \x80"
    text = "whsec_" + base64.b64encode(key).decode() if is_encoded else SECRET
    runtime = await bench.runtime(turns(finish()), webhooks=[Webhook(hook.url, text)])
    await runtime.run(desk(), "Go.", run_id="r1")
    await until(lambda: hook.came)

    ((headers, body),) = hook.came
    signed = b".".join(
        [headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body]
    )
    mac = hmac.new(key if is_encoded else SECRET.encode(), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()
    assert headers["webhook-id"] == json.loads(body)["id"] == "r1.over"
    assert headers["content-type"] == "application/json"


def test_the_environment_names_webhooks_and_bad_ones_are_refused_without_their_secrets() -> None:
    assert webhooks_of({}) == ()
    two = webhooks_of(
        {"FSM_AGENT_WEBHOOK": "https://a.example/x http://b/y", "FSM_AGENT_WEBHOOK_SECRET": SECRET}
    )
    assert [each.where for each in two] == ["https://a.example", "http://b"]
    assert SECRET not in repr(two)
    with pytest.raises(MissingSetting, match="FSM_AGENT_WEBHOOK_SECRET"):
        webhooks_of({"FSM_AGENT_WEBHOOK": "https://a.example/x"})
    for url in ("a.example", "ftp://a.example", "https://", "file:///etc/passwd", ""):
        with pytest.raises(UsageError):
            Webhook(url, SECRET)
    for url in (
        "http://a:99999/x",
        "http://a:b/x",
        "http://a:0/x",
        "http://[::1/x",
        "http://a/\x01",
    ):
        with pytest.raises(UsageError, match="no webhook address"):
            Webhook(url, SECRET)
    for secret in ("", "short", "whsec_***", "whsec_c2hvcnQ="):
        with pytest.raises(UsageError):
            Webhook("https://a.example", secret)
    shown = Webhook("https://user:pw@a.example:444/hidden?token=1", SECRET)
    assert shown.where == "https://a.example:444"


# -- receivers that are away ----------------------------------------------------------------------


async def left_in(store: Watched, run_id: str) -> int:
    """How many notices the run's outbox holds, due or not."""
    return int(await store._line.call("ZCARD", store._of(run_id).partition.outbox))


async def force(store: Watched, run_id: str) -> None:
    """Make everything in the outbox due."""
    outbox = store._of(run_id).partition.outbox
    for member in await store._line.call("ZRANGE", outbox, 0, -1):
        await store._line.call("ZADD", outbox, 0, member)


async def test_a_receiver_that_is_away_for_an_hour_is_told_and_the_deadline_stays(
    bench: Bench, hook: Hook
) -> None:
    hook.status = 503
    store = await bench.store()
    agent = desk(asking_people(expires_s=0.05))
    model = turns(ask(("send", {"to": "mia"})), finish())
    writer = await bench.runtime(model, webhooks=[])
    writer = Runtime(replace_on_notices(writer), owner="writer")
    await writer.run(agent, "Go.", run_id="r1")
    delays: list[int] = []
    keen = Watching(store, delays)
    relay = Relay(keen, [hook.webhook()], clock=SystemClock(), jitter=lambda: 1.0)  # type: ignore[arg-type]
    sender = Sender()

    (request,) = await writer.requests("r1")
    await until(lambda: is_past(writer, request.expires_ms))
    assert (await writer.work("r1", agent)).status == "done"  # the deadline has decided
    rounds = 0
    while sum(delays) < 3_600_000 or not delays:
        await force(store, "r1")
        await relay.once(sender)
        rounds += 1
        assert rounds < 40
    assert set(hook.types()) == {"run.done"}  # the request waits no more: nobody is needed
    assert delays == sorted(delays)
    assert max(delays) <= 900_000
    hook.status = 200
    await force(store, "r1")
    await relay.once(sender)
    await sender.aclose()

    assert len({each["id"] for each in hook.told}) == 1
    assert await left_in(store, "r1") == 0


async def is_past(runtime: Runtime, at_ms: int) -> bool:
    return await runtime.store.now_ms() >= at_ms


def replace_on_notices(runtime: Runtime) -> Any:
    from dataclasses import replace

    return replace(runtime._deps, on_notices=lambda: None)


class Watching:
    """A store that writes down for how long notices are put off."""

    def __init__(self, store: Watched, delays: list[int]) -> None:
        self._store, self._delays = store, delays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def settle_notice(self, notice: Notice, *, again: Any = ()) -> bool:
        self._delays += [delay_ms for _, delay_ms in again]
        return bool(await self._store.settle_notice(notice, again=again))


async def committed(store: Watched, run_id: str, *notices: Notice) -> None:
    """Notices in the outbox, by a commit of their own."""
    from checkpoints.testing.contract import commit_of

    await store.create(RunId(run_id), op="o", body=b"x", snapshot=b"")
    claim = await store.claim(RunId(run_id), owner="w", nonce="n", term_ms=60_000)
    await store.commit(claim.lease, commit_of(claim, outbox=notices))


def over(run_id: str = "r1", *, at_ms: int, name: str = "over") -> Notice:
    from fsm_agent.run import news

    told = news.News("run.done", run_id, "desk", at_ms, is_completed=True)
    return Notice(notice_id=f"{run_id}.{name}", run_id=RunId(run_id), body=news.encode(told))


@pytest.mark.parametrize(("status", "age_s"), [(410, 0.0), (500, GIVE_UP_S + 60)])
async def test_who_wants_no_more_or_is_away_for_days_is_not_told_again(
    bench: Bench, hook: Hook, status: int, age_s: float
) -> None:
    store = await bench.store()
    at_ms = SystemClock().wall_ms() - int(age_s * 1000)
    await committed(store, "r1", over(at_ms=at_ms))
    hook.status = status
    relay = Relay(store, [hook.webhook()], clock=SystemClock(), jitter=lambda: 0.0)  # type: ignore[arg-type]

    sender = Sender()
    await relay.once(sender)
    await sender.aclose()

    assert len(hook.came) == 1
    assert await left_in(store, "r1") == 0


async def test_of_two_receivers_only_the_one_that_was_away_is_told_again(
    bench: Bench, hook: Hook
) -> None:
    store, delays = await bench.store(), []
    await committed(store, "r1", over(at_ms=SystemClock().wall_ms()))
    hook.status, hook.headers = 429, {"retry-after": "120"}
    gone = Webhook("http://127.0.0.1:9/closed", SECRET)
    relay = Relay(
        Watching(store, delays),  # type: ignore[arg-type]
        [hook.webhook("/busy"), gone],
        clock=SystemClock(),
        jitter=lambda: 0.0,
    )
    sender = Sender()

    await relay.once(sender)
    hook.status = 200
    await force(store, "r1")
    await relay.once(sender)
    await sender.aclose()

    assert delays[:2] == [120_000, 1_000]
    assert len(hook.came) == 2
    (left,) = await store._line.call("ZRANGE", store._of("r1").partition.outbox, 0, -1)
    assert left.startswith(b"2 r1 r1.over " + gone.channel.encode())


@pytest.mark.parametrize("status", [200, 410])
@pytest.mark.parametrize("pause_s", [0.05, 0.0], ids=["a byte at a time", "without end"])
async def test_an_answer_that_never_ends_counts_by_its_status_and_holds_nobody_up(
    bench: Bench, hook: Hook, monkeypatch: pytest.MonkeyPatch, status: int, pause_s: float
) -> None:
    store = await bench.store()
    await committed(store, "r1", over(at_ms=SystemClock().wall_ms()))
    monkeypatch.setattr(webhook, "TIMEOUT_S", 1.0)
    with endless_answers(status, pause_s) as (url, written):
        relay = Relay(
            store,  # type: ignore[arg-type]
            [Webhook(url, SECRET), hook.webhook()],
            clock=SystemClock(),
            jitter=lambda: 0.0,
        )
        sender = Sender()

        async with asyncio.timeout(10):
            await relay.once(sender)
        await sender.aclose()

    assert hook.types() == ["run.done"]
    assert await left_in(store, "r1") == 0
    assert sum(written) < 100 * webhook.MOST_ANSWER_BYTES


@contextmanager
def endless_answers(status: int, pause_s: float) -> Iterator[tuple[str, list[int]]]:
    """A receiver whose answers do not end before the other side hangs up, and what it wrote."""
    written: list[int] = []
    piece = b"x" if pause_s else b"x" * 65_536

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(10**9))
            self.end_headers()
            with suppress(OSError):
                while sum(written) < 10**8:
                    written.append(self.wfile.write(piece))
                    time.sleep(pause_s)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", written
    finally:
        server.shutdown()
        server.server_close()


async def test_redirects_are_not_followed_and_addresses_not_logged(
    bench: Bench, hook: Hook, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await bench.store()
    await committed(store, "r1", over(at_ms=SystemClock().wall_ms()))
    hook.status, hook.headers = 302, {"location": hook.url + "/elsewhere"}
    relay = Relay(store, [hook.webhook()], clock=SystemClock(), jitter=lambda: 0.0)  # type: ignore[arg-type]

    sender = Sender()
    await relay.once(sender)
    await sender.aclose()

    assert len(hook.came) == 1
    told = capsys.readouterr()
    assert "token=inner" not in told.out + told.err + caplog.text


async def test_a_notice_that_cannot_be_read_is_dropped_and_the_others_go_on(
    bench: Bench, hook: Hook
) -> None:
    store = await bench.store()
    bad = Notice(notice_id="bad", run_id=RunId("r1"), body=b"\xc1 no notice")
    await committed(store, "r1", bad, over(at_ms=SystemClock().wall_ms()))
    relay = Relay(store, [hook.webhook()], clock=SystemClock(), jitter=lambda: 0.0)  # type: ignore[arg-type]

    sender = Sender()
    await relay.once(sender)
    await sender.aclose()

    assert hook.types() == ["run.done"]
    assert await left_in(store, "r1") == 0


def test_the_command_tells_before_it_ends(cli: Cli, hook: Hook) -> None:
    cli.env |= {"FSM_AGENT_WEBHOOK": hook.url + "/secret-path", "FSM_AGENT_WEBHOOK_SECRET": SECRET}
    run_id = cli("run", "--agent", "desk.py:agent", "pay").run_id
    assert hook.types() == ["request.opened"]
    cli("approve", run_id)
    done = cli("worker", "--once", "--agent", "desk.py:agent")
    checked = cli("doctor").out
    cli.env["FSM_AGENT_WEBHOOK_SECRET"] = "short"
    refused = cli("run", "--agent", "desk.py:agent", "pay")

    assert done.code == 0
    assert hook.types() == ["request.opened", "run.done"]
    assert f"{hook.url}, signed" in checked
    assert "secret-path" not in checked
    assert refused.code == 2
    assert "openssl rand" in refused.err
    assert cli("doctor").code == 1


DYING = """
import asyncio, os, signal, sys
from fsm_agent import Agent, Runtime, Webhook, tool
from tests.conftest import ask, finish, turns
from tests.integration.test_notify import desk
import fsm_agent.notify.relay as relay

async def send_and_die(self, webhook, notice_id, body, *, at_s):
    os.kill(os.getpid(), signal.SIGKILL)

relay.Sender.send = send_and_die
relay.HOLD_S = 0.05

async def main():
    hooks = [Webhook(sys.argv[2], sys.argv[3])]
    async with Runtime.open(sys.argv[1], model=turns(finish()), webhooks=hooks) as runtime:
        await runtime.run(desk(), "Go.", run_id="dying")
        await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_notice_outlives_a_process_that_dies_while_it_tells(hook: Hook, tmp_path: Path) -> None:
    from checkpoints.embedded import EmbeddedServer

    server = EmbeddedServer(tmp_path / "store")
    server.enter()
    try:
        url = f"embedded:{tmp_path / 'store'}"
        died = subprocess.run(
            [sys.executable, "-c", DYING, url, hook.url, SECRET],
            cwd=Path(__file__).parents[2], timeout=60, check=False,
        )  # fmt: skip
        assert died.returncode == -signal.SIGKILL
        assert hook.came == []

        async def next_process() -> None:
            async with Runtime.open(url, model=turns(finish()), webhooks=[hook.webhook()]) as other:
                assert (await other.result("dying")).status == "done"
                await until(lambda: poked(other) and hook.came)

        asyncio.run(next_process())
    finally:
        server.leave()
    assert hook.types() == ["run.done"]
