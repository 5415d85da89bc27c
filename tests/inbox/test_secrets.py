"""Rows 14 and 80: twelve canaries, each by another way in, and nowhere to be found."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from checkpoints import open_store
from fsm_agent import Agent, ask_user, tool
from fsm_agent.errors import ProviderError
from fsm_agent.observability.logs import EntryLog, json_processors
from fsm_agent.observability.traces import Traces, provider_for_runs
from fsm_agent.run.event import LiveEvent
from fsm_agent.run.redaction import MARK, LiveRedactor, Redactor, is_secret_name, secret_values
from tests.conftest import Bench, ScriptedModel, ask, finish, turns
from tests.inbox.conftest import Opener, Site

CANARIES = {
    "env": "c4n4ry-env-0000000000000001",
    "openai": "sk-proj-c4n4ryAAAAAAAAAAAAAAAAAAAA02",
    "github": "ghp_c4n4ryBBBBBBBBBBBBBBBBBBBBBBBBBBBBB03",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJjNG40cnkiOjR9.c4n4ryCCCCCCCCCC04",
    "slack": "xoxb-1234567890-c4n4ryDDDD05",
    "aws": "AKIAC4N4RYEEEEEEEE06",
    "url": "postgres://joe:c4n4ryFFFF07@db.example/x",
    "bearer": "Authorization: Bearer c4n4ryGGGGGGGGGGGGGGGG08",
    "stripe": "sk_live_c4n4ryHHHHHHHHHHHH09",
    "google": "AIzac4n4ryIIIIIIIIIIIIIIIIIIIIIIIIIII10",
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nc4n4ryJJJJ11\n-----END RSA PRIVATE KEY-----",
    "hf": "hf_c4n4ryKKKKKKKKKKKKKKKKKKKKKKKKKKKK12",
}


@tool(approval="always")
def send(what: str, url: str) -> str:
    """Send something."""
    raise RuntimeError(f"refused {CANARIES['slack']} with {CANARIES['bearer']}")


@tool(effect="read", max_output_chars=1000)
def fetch(page: str) -> str:
    """Fetch a page."""
    return f"{CANARIES['env']} {CANARIES['jwt']} " + "x" * 5000 + CANARIES["pem"]


async def test_row_14_and_80_no_canary_reaches_store_logs_streams_pages_exports_or_traces(
    open_site: Opener, bench: Bench, engine_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_API_KEY", CANARIES["env"])
    written = io.StringIO()
    redactor = Redactor(secret_values({"CANARY_API_KEY": CANARIES["env"]}))
    structlog.configure(
        processors=json_processors(redactor), logger_factory=structlog.PrintLoggerFactory(written)
    )
    exporter, provider = InMemorySpanExporter(), provider_for_runs()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    agent = Agent("desk", "Work.", tools=[send, fetch, ask_user])
    replies = turns(
        ask(("fetch", {"page": CANARIES["url"]})),
        ask(("send", {"what": CANARIES["github"], "url": f"https://u:{CANARIES['hf']}@x.example"})),
        ask(("ask_user", {"question": f"May I use {CANARIES['google']}?"})),
        finish(f"Done with {CANARIES['openai']}."),
    )
    failing = iter([ProviderError("server_error", f"bad key {CANARIES['aws']}", is_retryable=True)])
    model = ScriptedModel(lambda request: next(failing, None) or replies.answer(request))
    runtime = await bench.runtime(model, observers=[Traces(provider), EntryLog()])
    site: Site = await open_site(runtime=runtime, agents={"desk": agent})

    try:
        run_id = await runtime.start(agent, f"Use {CANARIES['stripe']} please")
        await runtime.say(run_id, f"and {CANARIES['github']}", by="kim")
        await runtime.work(run_id, agent)
        (request,) = await runtime.requests(run_id)
        await runtime.comment(run_id, request.ask_id, CANARIES["hf"], by="leo")
        await site.decide(
            f"{run_id}.{request.ask_id}", verb="edit", reason=CANARIES["jwt"],
            args={"what": CANARIES["openai"], "url": CANARIES["url"]},
        )  # fmt: skip
        await runtime.work(run_id, agent)
        (question,) = await runtime.requests(run_id)
        await site.decide(f"{run_id}.{question.ask_id}", verb="answer", answer=CANARIES["pem"])
        result = await runtime.work(run_id, agent)
        structlog.get_logger("x").error(
            "it.failed", why=CANARIES["bearer"], password="hunter2hunter2",
            exc_info=ValueError(CANARIES["aws"]),
        )  # fmt: skip
        shown = [
            (await site.get(path, "root", Accept="text/html")).text
            for path in (
                f"/runs/{run_id}", f"/runs/{run_id}/asks/{request.ask_id}",
                f"/runs/{run_id}/asks/{question.ask_id}", "/inbox?show=decided",
                f"/audit?run={run_id}", f"/runs/{run_id}/journal.jsonl",
                f"/runs/{run_id}/audit.jsonl", f"/v1/runs/{run_id}", f"/v1/runs/{run_id}/events",
                "/metrics",
            )
        ]  # fmt: skip
    finally:
        structlog.reset_defaults()
    spans = " ".join(span.to_json() for span in exporter.get_finished_spans())
    dump = await _dump(engine_store_url, run_id)

    assert result.status == "done"
    for place, text in {"store": dump, "logs": written.getvalue(), "traces": spans,
                        "shown": "\n".join(shown)}.items():  # fmt: skip
        found = [name for name, canary in CANARIES.items() if _core(canary) in text]
        assert found == [], place
    assert "hunter2" not in written.getvalue()
    assert MARK in dump
    assert "it.failed" in written.getvalue()


def _core(canary: str) -> str:
    """The part of a canary that must be nowhere."""
    return canary[canary.lower().index("c4n4ry") :][:14] if "c4n4ry" in canary else canary[4:18]


async def _dump(url: str, run_id: str) -> str:
    """Every byte that the store holds of a run."""
    store = await open_store(url)
    call: Any = store._reads.call
    parts = []
    for key in await call("KEYS", "*"):
        if run_id.encode() in key or b"asks" in key:
            parts.append(await call("DUMP", key))
            kind = await call("TYPE", key)
            if kind == b"hash":
                parts += await call("HGETALL", key)
            elif kind == b"stream":
                parts.append(repr(await call("XRANGE", key, "-", "+")).encode())
            elif kind == b"list":
                parts += await call("LRANGE", key, 0, -1)
            elif kind == b"string":
                parts.append(await call("GET", key))
    await store.aclose()
    assert len(parts) > 10
    return b"\n".join(parts).decode("latin-1")


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
@given(data=st.data())
def test_live_text_hides_a_secret_wherever_it_is_cut(canary: str, data: st.DataObject) -> None:
    text = f"the key is {canary} and no more is said"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    live = LiveRedactor(Redactor([CANARIES["env"]]))

    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    told = "".join(live.event(LiveEvent("r", "body", piece, 1)).text for piece in pieces)
    told += "".join(event.text for event in live.rest("r"))

    assert _core(canary) not in told
    assert told.startswith("the key is ")
    assert told.endswith("and no more is said")


@pytest.mark.parametrize(
    "text",
    ["a task about sk-ating", "https://example.org/a:b@c", "the basic idea is good", "ghp_short",
     "see https://example.org:8080/x", "tokens: 12,000", "key=value", "bearer of news",
     "eyJust a word", "ask-for-more-than-that-it-is-fine"],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor(["word-not-in-it"]).text(text) == text


def test_names_of_secrets_and_their_values() -> None:
    names = ["OPENAI_API_KEY", "authorization-token", "db.password", "apiKey", "X-Auth", "DSN"]
    others = ["spent_tokens", "keyboard", "monkey", "author", "passenger"]
    environ = {
        "A_KEY": "not-needed",
        "B_KEY": "/run/x.sock",
        "C_TOKEN": "s3cr3t-s3cr3t",
        "PATH": "x1",
    }

    assert [n for n in names if is_secret_name(n)] == names
    assert [n for n in others if is_secret_name(n)] == []
    assert secret_values(environ) == ["s3cr3t-s3cr3t"]
    assert (
        Redactor(['pass"word\\123']).text(json.dumps({"a": 'pass"word\\123'}))
        == f'{{"a": "{MARK}"}}'
    )
