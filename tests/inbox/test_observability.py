"""Logs, metrics and traces of runs."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from fsm_agent import Agent, tool
from fsm_agent.errors import UsageError
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.observability.logs import EntryLog
from fsm_agent.observability.metrics import Metrics
from fsm_agent.observability.observer import from_environment
from fsm_agent.observability.traces import Traces, provider_for_runs, root_id_of, trace_id_of
from tests.conftest import Bench, ScriptedModel, ask, die, finish, take_over, turns
from tests.inbox.conftest import Site, desk_agent, paying_back


@tool(effect="read")
async def look(x: int) -> str:
    """Look."""
    return "seen"


async def test_a_run_is_one_trace_over_pause_and_resume_in_two_processes(bench: Bench) -> None:
    exporter = InMemorySpanExporter()
    provider = provider_for_runs()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    first = await bench.runtime(paying_back(), observers=[Traces(provider)], owner="one")
    second = await bench.runtime(paying_back(), observers=[Traces(provider)], owner="two")

    run_id = await first.start(desk_agent(), "refund it")
    await first.work(run_id, desk_agent())
    (request,) = await first.requests(run_id)
    await first.decide(run_id, request.ask_id, "approve", by="mia")
    await second.work(run_id, desk_agent())
    await bench._stack.aclose()  # what is left is told when the runtimes close

    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {
        "chat", "wait_for_person", "execute_tool refund", "invoke_agent desk",
    }  # fmt: skip
    assert {span.context.trace_id for span in spans.values()} == {trace_id_of(run_id)}
    root = spans["invoke_agent desk"]
    assert (root.context.span_id, root.parent) == (root_id_of(run_id), None)
    assert all(s.parent.span_id == root_id_of(run_id) for s in spans.values() if s is not root)
    assert spans["execute_tool refund"].attributes["gen_ai.operation.name"] == "execute_tool"
    assert spans["execute_tool refund"].attributes["gen_ai.conversation.id"] == run_id
    assert spans["wait_for_person"].attributes["fsm_agent.worker"] == "two"
    starts = [spans[n].start_time for n in ("invoke_agent desk", "wait_for_person")]
    assert starts == sorted(starts)
    assert root.end_time >= spans["execute_tool refund"].end_time
    text = " ".join(str(span.attributes) for span in spans.values())
    assert "A7" not in text  # no arguments
    assert "Paid back" not in text  # no replies


async def test_a_takeover_is_a_span_and_a_count(bench: Bench) -> None:
    exporter, metrics = InMemorySpanExporter(), Metrics()
    provider = provider_for_runs()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    begun = asyncio.Event()

    async def hanging(request: StepRequest) -> Reply:
        begun.set()
        await asyncio.sleep(60)
        return finish()

    store = await bench.store()
    doomed = await bench.runtime(ScriptedModel(hanging), store=store, lease_s=0.3)
    heir = await bench.runtime(turns(finish()), observers=[Traces(provider), metrics], owner="heir")
    run_id = await doomed.start(desk_agent(), "go")
    working = asyncio.create_task(doomed.work(run_id, desk_agent()))
    await begun.wait()
    await die(store, working)
    await take_over(heir, run_id, desk_agent())
    await bench._stack.aclose()

    names = [span.name for span in exporter.get_finished_spans()]
    assert "takeover" in names
    assert "fsm_agent_takeovers_total 1" in metrics.text()


async def test_metrics_count_what_happened_and_what_waits(site: Site, bench: Bench) -> None:
    metrics = Metrics()
    runtime = await bench.runtime(turns(ask(("look", {"x": 1})), finish("ok")), observers=[metrics])
    agent = Agent("looker", "Work.", tools=[look])
    await runtime.run(agent, "go")
    await runtime.start(agent, "later")
    await site.parked()

    text = (await site.get("/metrics", "root")).text
    foreign = await site.get("/metrics", "acme-ann")
    own = metrics.text()

    assert "fsm_agent_queue_depth 1" in text
    assert "fsm_agent_open_approvals 1" in text
    assert "fsm_agent_in_doubt 0" in text
    assert "fsm_agent_store_up 1" in text
    assert foreign.status_code == 403
    assert 'fsm_agent_tool_calls_total{status="success"} 1' in own
    assert 'fsm_agent_model_calls_total{outcome="ok"} 2' in own
    assert 'fsm_agent_tokens_total{direction="in"} 20' in own
    commits = int(re.search(r"fsm_agent_commit_seconds_count (\d+)", own).group(1))  # type: ignore[union-attr]
    assert commits >= 3
    for line in (own + text).splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \S+ .+|[a-z_]+(\{[^}]*\})? [0-9.e+-]+", line), line


async def test_a_worker_serves_its_metrics_while_it_works(bench: Bench) -> None:
    metrics = Metrics(serve_at=("127.0.0.1", 0))
    from checkpoints.testing.servers import free_port

    port = free_port()
    metrics = Metrics(serve_at=("127.0.0.1", port))
    runtime = await bench.runtime(turns(finish()), observers=[metrics])
    await runtime.run(desk_agent(), "go")

    async def asked(path: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    got, other = await asked(b"/metrics"), await asked(b"/")
    assert got.startswith(b"HTTP/1.1 200 OK")
    assert b"fsm_agent_commit_seconds_count" in got
    assert b"fsm_agent_queue_depth 0" in got
    assert other.startswith(b"HTTP/1.1 404")


async def test_each_entry_is_logged_with_run_seq_and_worker(bench: Bench) -> None:
    runtime = await bench.runtime(paying_back(), observers=[EntryLog()], owner="w1")

    with capture_logs() as logs:
        run_id = await runtime.start(desk_agent(), "refund it")
        await runtime.work(run_id, desk_agent())

    moved = [each for each in logs if each["event"] == "run.moved"]
    assert [each["seq"] for each in moved] == [2, 3, 4, 5]
    assert {(each["run"], each["worker"]) for each in moved} == {(run_id, "w1")}
    assert "person.asked" in [each["event"] for each in logs]
    assert json.dumps(logs)  # plain values only


def test_what_is_not_asked_for_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FSM_AGENT_LOG", "FSM_AGENT_METRICS", "FSM_AGENT_OTEL"):
        monkeypatch.delenv(name, raising=False)
    assert from_environment() == []
    monkeypatch.setenv("FSM_AGENT_METRICS", "somewhere")
    with pytest.raises(UsageError, match="is no address"):
        from_environment()
    monkeypatch.setenv("FSM_AGENT_METRICS", "127.0.0.1:9464")
    monkeypatch.setenv("FSM_AGENT_OTEL", "1")
    monkeypatch.setenv("FSM_AGENT_LOG", "info")
    assert [type(each).__name__ for each in from_environment()] == ["EntryLog", "Metrics", "Traces"]
