"""What the host of an agent may say, when it is asked, and what becomes of a hook that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from checkpoints.model import RunId
from fsm_agent import Agent, Limits, tool
from fsm_agent.capabilities.chat import chat
from fsm_agent.capabilities.hooks import Hooks
from fsm_agent.capabilities.research import research
from fsm_agent.errors import ProviderError
from fsm_agent.llm.model import Reply, StepRequest
from fsm_agent.run import codec
from fsm_agent.run.content import AssistantMessage, Call, NoteMessage
from fsm_agent.run.delta import Replied, Settled
from fsm_agent.run.record import Run
from fsm_agent.run.state import State
from tests.conftest import (
    USAGE,
    Bench,
    Ledger,
    ScriptedModel,
    ask,
    broken,
    die,
    finish,
    results,
    take_over,
    think,
    turns,
)


@tool(effect="read")
def look() -> str:
    """Look."""
    return "a secret: 42"


def notes(request: StepRequest) -> list[str]:
    return [m.text for m in request.messages if isinstance(m, NoteMessage)]


async def test_before_turn_is_told_to_the_model_before_each_of_its_turns(bench: Bench) -> None:
    def count(run: Run) -> str:
        return f"Turn {run.turns + 1} of {run.limits.turns}."

    runtime = await bench.runtime(model := turns(ask(("look", {})), think(), finish()))
    agent = Agent("a", tools=[look], hooks=Hooks(before_turn=count))

    await runtime.run(agent, "Go.")

    assert notes(model.requests[-1]) == [f"Turn {n} of 40." for n in (1, 2, 3)]


async def test_a_retry_after_a_failure_of_the_provider_is_no_turn_of_its_own(bench: Bench) -> None:
    calls = iter([ProviderError("overloaded", "busy", is_retryable=True), finish()])
    runtime = await bench.runtime(model := ScriptedModel(lambda r: next(calls)))
    agent = Agent("a", hooks=Hooks(before_turn=lambda run: "go on"))

    await runtime.run(agent, "Go.")

    assert notes(model.requests[-1]) == ["go on"]


async def test_on_intermediate_hears_of_replies_that_are_on_record(bench: Bench) -> None:
    heard: list[tuple[str | None, bool]] = []
    store = await bench.store()

    async def hear(run: Run, reply: Replied) -> str | None:
        entries = await store.journal(RunId(run.run_id))
        on_record = [d for entry in entries for d in codec.decode(entry.body).deltas]
        heard.append((reply.label, reply in on_record))
        return "noted" if reply.label == "PAUSE" else None

    pause = Reply(label="PAUSE", text="One moment.", usage=USAGE)
    runtime = await bench.runtime(
        model := turns(think(), pause, ask(("look", {})), broken(), finish())
    )
    agent = chat("c", tools=[look], hooks=Hooks(on_intermediate=hear))

    await runtime.run(agent, "Go.")

    assert heard == [("THINK", True), ("PAUSE", True)]
    assert notes(model.requests[2]) == ["noted"]


async def test_validate_terminal_may_refuse_an_answer_with_a_reason(bench: Bench) -> None:
    def check(run: Run, answer: str) -> str | None:
        return None if "please" in answer else "Be polite."

    runtime = await bench.runtime(model := turns(finish("No."), finish("No, please.")))
    agent = Agent("a", hooks=Hooks(validate_terminal=check))

    result = await runtime.run(agent, "Go.")

    assert (result.answer, result.turns, result.is_completed) == ("No, please.", 2, True)
    assert "Be polite." in notes(model.requests[1])[0]


async def test_validate_terminal_sees_the_value_of_a_typed_answer(bench: Bench) -> None:
    class Sum(msgspec.Struct):
        total: int

    seen: list[Any] = []
    runtime = await bench.runtime(turns(finish('{"total": 5}')))
    agent = Agent("a", output=Sum, hooks=Hooks(validate_terminal=lambda r, v: seen.append(v)))

    await runtime.run(agent, "Go.")

    assert seen == [Sum(5)]


async def test_an_answer_that_the_host_always_refuses_ends_the_run(bench: Bench) -> None:
    runtime = await bench.runtime(ScriptedModel(lambda r: finish(f"no {len(r.messages)}")))
    agent = Agent("a", hooks=Hooks(validate_terminal=lambda run, answer: "Never."))

    result = await runtime.run(agent, "Go.")

    assert (result.status, result.reason) == ("error", "repairs")
    assert "Never." in result.message


async def test_an_unlabelled_text_is_not_rescued_past_the_host(bench: Bench) -> None:
    runtime = await bench.runtime(ScriptedModel(lambda r: broken(text=f"no {len(r.messages)}")))
    agent = Agent("a", hooks=Hooks(validate_terminal=lambda run, answer: None))

    assert (await runtime.run(agent, "Go.")).status == "error"


async def test_repair_message_takes_the_place_of_the_correction(bench: Bench) -> None:
    given: list[tuple[str, bool]] = []

    def words(run: Run, violation: str, default: str) -> str | None:
        given.append((violation, "cannot be used" in default))
        return "Bitte mit Etikett." if run.repairs == 1 else None

    runtime = await bench.runtime(model := turns(broken(), broken(text="x"), finish()))
    agent = Agent("a", hooks=Hooks(repair_message=words))

    await runtime.run(agent, "Go.")

    assert given == [("missing_label", True)] * 2
    first, second = notes(model.requests[-1])
    assert first == "Bitte mit Etikett."
    assert "cannot be used" in second


async def test_force_finalize_ends_the_work_with_an_answer(bench: Bench) -> None:
    def enough(run: Run) -> str | None:
        return "The shop closes." if run.turns == 2 else None

    def answer(request: StepRequest) -> Reply:
        assert request.protocol
        if request.protocol.allowed == ("FINISH",):
            return finish("so far")
        return think(f"{len(request.messages)}")

    runtime = await bench.runtime(model := ScriptedModel(answer))

    result = await runtime.run(Agent("a", hooks=Hooks(force_finalize=enough)), "Go.")

    assert (result.answer, result.turns, result.reason) == ("so far", 3, "host")
    assert notes(model.requests[-1])[0].startswith("The shop closes.")


async def test_force_finalize_without_turns_for_it_ends_honestly(bench: Bench) -> None:
    runtime = await bench.runtime(turns(think("half a thought")))
    agent = Agent("a", limits=Limits(final_turns=0), hooks=Hooks(force_finalize=lambda run: "now"))

    result = await runtime.run(agent, "Go.")

    assert (result.status, result.is_completed, result.reason) == ("done", False, "host")


async def test_after_tool_may_replace_what_the_model_sees(bench: Bench) -> None:
    def redact(run: Run, call: Call, settled: Settled) -> str | None:
        return settled.text.replace("42", "**") if call.name == "look" else None

    runtime = await bench.runtime(model := turns(ask(("look", {}), ("other", {})), finish()))
    agent = Agent("a", tools=[look], hooks=Hooks(after_tool=redact))

    result = await runtime.run(agent, "Go.")

    assert results(model.requests[1])[0] == ("look", "success", "a secret: **")
    history = await runtime.history(result.run_id)
    texts = [d.text for e in history for d in e.record.deltas if isinstance(d, Settled)]
    assert "a secret: **" in texts
    assert not any("42" in text for text in texts)


# -- hooks that fail ------------------------------------------------------------------------------


def boom(*given: Any) -> Any:
    raise ValueError("the host is out")


async def boom_later(*given: Any) -> Any:
    await asyncio.sleep(0)
    raise ValueError("the host is out")


def odd(*given: Any) -> Any:
    return 5


def quits(*given: Any) -> Any:
    raise SystemExit(7)


async def quits_later(*given: Any) -> Any:
    await asyncio.sleep(0)
    raise SystemExit(7)


NAMES = [
    "before_turn", "on_intermediate", "validate_terminal", "repair_message", "force_finalize",
    "after_tool",
]  # fmt: skip


@pytest.mark.parametrize("hook", [boom, boom_later, odd, quits, quits_later])
@pytest.mark.parametrize("name", NAMES)
async def test_a_hook_that_fails_ends_the_run_with_a_whole_history(
    bench: Bench, name: str, hook: Callable[..., Any]
) -> None:
    model = turns(think(), broken(), ask(("look", {}), ("look", {"x": 1})), finish())
    runtime = await bench.runtime(model)
    agent = Agent("a", tools=[look], hooks=Hooks(**{name: hook}))

    result = await runtime.run(agent, "Go.")

    assert (result.status, result.reason) == ("error", "host")
    assert f"hook {name} " in result.message
    run = await bench.run_of(result.run_id)  # replays, so every entry is a legal one
    assert run.state is State.ERROR
    assert not run.has_unsettled_calls
    assert run.reserved_tokens == 0


async def test_a_hook_without_end_is_given_up(bench: Bench) -> None:
    async def hang(run: Run) -> str | None:
        await asyncio.Event().wait()
        return None

    runtime = await bench.runtime(turns(finish()))
    agent = Agent("a", hooks=Hooks(before_turn=hang, timeout_s=0.05))

    result = await runtime.run(agent, "Go.")

    assert (result.reason, "within 0.05 s" in result.message) == ("host", True)


async def test_a_hook_that_cancels_itself_is_a_failure_and_no_stop_of_the_worker(
    bench: Bench,
) -> None:
    async def quit_(run: Run) -> str | None:
        raise asyncio.CancelledError

    runtime = await bench.runtime(turns(finish()))

    result = await runtime.run(Agent("a", hooks=Hooks(before_turn=quit_)), "Go.")

    assert (result.reason, "cancelled from within" in result.message) == ("host", True)


@pytest.mark.parametrize("hook", [boom, quits, quits_later])
async def test_a_tool_that_has_run_has_its_result_though_the_hook_failed(
    bench: Bench, hook: Callable[..., Any]
) -> None:
    ledger = Ledger()

    @tool
    def pay() -> str:
        ledger.record("pay")
        return "paid"

    @tool(effect="read")
    async def wait() -> str:
        await asyncio.sleep(60)
        return "waited"

    runtime = await bench.runtime(turns(ask(("pay", {}), ("wait", {}))))
    agent = Agent("a", tools=[pay, wait], hooks=Hooks(after_tool=hook))

    result = await runtime.run(agent, "Go.")

    assert (result.reason, ledger["pay"]) == ("host", 1)
    assert [status for _, status in await bench.settled(result.run_id)] == ["success", "cancelled"]


async def test_a_failing_validation_keeps_what_the_model_said(bench: Bench) -> None:
    runtime = await bench.runtime(turns(finish("The answer.")))

    result = await runtime.run(Agent("a", hooks=Hooks(validate_terminal=boom)), "Go.")

    run = await bench.run_of(result.run_id)
    assert AssistantMessage("FINISH", "The answer.") in run.messages
    assert (result.answer, result.spent_tokens) == (None, USAGE.total_tokens)


async def test_a_crash_before_the_commit_asks_the_hook_again_and_tells_the_model_once(
    bench: Bench,
) -> None:
    asked: list[int] = []
    store = await bench.store()
    dying = await bench.runtime(turns(finish()), store=store, lease_s=0.3)
    hang = asyncio.Event()

    async def before(run: Run) -> str:
        asked.append(run.turns)
        if len(asked) == 1:
            hang.set()
            await asyncio.Event().wait()
        return "go on"

    agent = Agent("a", hooks=Hooks(before_turn=before))
    run_id = await dying.start(agent, "Go.")
    working = asyncio.create_task(dying.work(run_id, agent))
    await hang.wait()
    await die(store, working)
    runtime = await bench.runtime(model := turns(finish()))

    result = await take_over(runtime, run_id, agent)

    assert (result.status, asked) == ("done", [0, 0])
    assert notes(model.requests[0]) == ["go on"]


async def test_hooks_of_a_parent_are_not_those_of_its_child_runs(bench: Bench) -> None:
    agents: set[str] = set()

    def who(run: Run) -> None:
        agents.add(run.agent)

    def answer(request: StepRequest) -> Reply:
        assert request.protocol
        labels = request.protocol.allowed
        if "OUTLINE" in labels:
            return Reply(label="OUTLINE", text="- q", usage=USAGE)
        return finish()

    runtime = await bench.runtime(ScriptedModel(answer))
    agent = research("r", clarify=False, hooks=Hooks(before_turn=who))

    assert (await runtime.run(agent, "Go.")).status == "done"
    assert agents == {"r"}
