"""Files that come with results: kept once, read before the next turn, shown, and not repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from checkpoints.errors import EntryTooLarge
from checkpoints.model import RunId
from fsm_agent import Agent, Context, Limits, Runtime, terminate, tool, with_files
from fsm_agent.llm.model import StepRequest
from fsm_agent.observations.reading import Limits as FileLimits
from fsm_agent.run.content import AssistantMessage, IllustratedMessage, Message, ToolMessage
from fsm_agent.run.delta import Enclosed, Finalising, Perceived, Settled
from fsm_agent.telling.words import Story
from tests import files
from tests.conftest import (
    Bench,
    ScriptedModel,
    ask,
    die,
    finish,
    results,
    take_over,
    turns,
    until,
)

PICTURE = files.png(30, 20)


async def facts(runtime: Runtime, run_id: str, *kinds: type) -> list[Any]:
    return [
        delta
        for event in await runtime.history(run_id)
        for delta in event.record.deltas
        if isinstance(delta, kinds)
    ]


def giving(*given: Any, text: Any = "here", **settings: Any) -> Any:
    def render() -> Any:
        return with_files(text, *given)

    return tool(**{"effect": "read"} | settings)(render)


def pictures(messages: tuple[Message, ...]) -> list[bytes]:
    return [image.data for m in messages if isinstance(m, IllustratedMessage) for image in m.images]


async def test_the_model_sees_the_picture_that_a_tool_has_made(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(ask(("render", {})), finish("red")))

    result = await runtime.run(Agent("a", tools=[giving(("c.png", PICTURE))]), "Draw.")

    assert result.answer == "red"
    _, _, told, shown = model.requests[1].messages
    assert isinstance(told, ToolMessage)
    assert told.text == f"here\n[file c.png: {len(PICTURE):,} bytes, shown below]"
    assert isinstance(shown, IllustratedMessage)
    assert shown.text.startswith("[file c.png with the result of render, image/png, ")
    assert [image.data for image in shown.images] == [PICTURE]
    store = await bench.store()
    (enclosed,) = await facts(runtime, result.run_id, Enclosed)
    assert await store.get_blob(RunId(result.run_id), enclosed.files[0].digest) == PICTURE
    assert not any(PICTURE in entry.body for entry in await store.journal(RunId(result.run_id)))


async def test_each_kind_of_file_is_read_by_its_bytes_and_a_bad_one_says_why(bench: Bench) -> None:
    given = [
        ("x.png", files.pdf(["Build it in the north."])),
        ("bomb.png", files.png_bomb()),
        ("note", b"the total is 7"),
        ("/no/such/file"),
    ]
    runtime = await bench.runtime(model := turns(ask(("render", {})), finish()))

    result = await runtime.run(Agent("a", tools=[giving(*given, text=None)]), "Look.")

    assert result.status == "done"
    _, _, told, shown = model.requests[1].messages
    assert told.text.startswith("[file x.png: ")
    assert "[file file: not here: it cannot be read: No such file" in told.text
    for words in ("Build it in the north.", "60000 x 60000", "the total is 7\n[end of note]"):
        assert words in shown.text


async def test_files_of_a_batch_come_in_the_order_of_its_calls(bench: Bench) -> None:
    later = asyncio.Event()

    @tool(effect="read")
    async def slow() -> Any:
        await later.wait()
        return with_files("slow", ("1.txt", b"one"))

    @tool(effect="read")
    async def quick() -> Any:
        later.set()
        return with_files("quick", ("2.txt", b"two"))

    runtime = await bench.runtime(model := turns(ask(("slow", {}), ("quick", {})), finish()))

    await runtime.run(Agent("a", tools=[slow, quick]), "Go.")

    shown = model.requests[1].messages[-1].text
    assert shown.index("one") < shown.index("two")
    assert len(await facts(runtime, (await runtime.runs())[0].run_id, Perceived)) == 1


async def test_limits_of_the_agent_hold_and_what_is_left_out_is_told(bench: Bench) -> None:
    agent = Agent(
        "a",
        tools=[giving(("1", b"a"), ("2", b"x" * 99), ("3", b"b"), ("4", b"c"))],
        file_limits=FileLimits(files=2, file_bytes=50),
    )
    runtime = await bench.runtime(model := turns(ask(("render", {})), finish()))

    await runtime.run(agent, "Go.")

    ((_, _, told),) = results(model.requests[1])
    assert "[file 2: not here: it has 99 bytes, at most 50 are taken]" in told
    assert "[file 4: not here: the results of one turn have at most 2 files]" in told
    assert "[file 3: 1 bytes, shown below]" in told


async def test_a_store_without_room_for_the_bytes_costs_no_result(bench: Bench) -> None:
    class Full:
        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def put_blob(self, run_id: RunId, data: bytes) -> str:
            raise EntryTooLarge("the blob is too large")

    model = turns(ask(("render", {})), finish("ok"))
    runtime = await bench.runtime(model, store=Full(await bench.store()))  # type: ignore[arg-type]

    result = await runtime.run(Agent("a", tools=[giving(("c.png", PICTURE))]), "Draw.")

    assert result.answer == "ok"
    ((_, status, told),) = results(model.requests[1])
    assert status == "success"
    assert "not here: the blob is too large" in told


async def test_the_answer_of_a_run_has_no_words_but_the_tools_own(bench: Bench) -> None:
    @tool(effect="read")
    def report() -> Any:
        return terminate(with_files("The report.", ("r.txt", b"all of it")))

    runtime = await bench.runtime(turns(ask(("report", {}))))

    result = await runtime.run(Agent("a", tools=[report]), "Go.")

    assert result.answer == "The report."
    (enclosed,) = await facts(runtime, result.run_id, Enclosed)
    assert enclosed.files[0].name == "r.txt"


async def test_a_secret_in_a_text_file_is_not_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "swordfish-and-more")
    runtime = await bench.runtime(model := turns(ask(("render", {})), finish()))
    given = ("env.txt", b"key=swordfish-and-more")

    result = await runtime.run(Agent("a", tools=[giving(given)]), "Go.")

    (enclosed,) = await facts(runtime, result.run_id, Enclosed)
    store = await bench.store()
    assert await store.get_blob(RunId(result.run_id), enclosed.files[0].digest) == b"key=[secret]"
    assert "swordfish" not in model.requests[1].messages[-1].text


async def test_people_are_told_which_tool_gave_what(bench: Bench) -> None:
    runtime = await bench.runtime(turns(ask(("render", {})), finish()))
    given = [("c.png", PICTURE), ("../../notes\n.txt", b"x")]

    result = await runtime.run(Agent("a", tools=[giving(*given)]), "Draw.")

    story = Story()
    lines = [line for event in await runtime.history(result.run_id) for line in story.tell(event)]
    assert "render gave c.png, notes_.txt" in [line.text for line in lines]


async def test_the_next_run_of_a_thread_is_not_told_files_of_tools_as_words(bench: Bench) -> None:
    agent = Agent("a", tools=[giving(("c.txt", b"what the tool has found"))])
    runtime = await bench.runtime(model := turns(ask(("render", {})), finish("one"), finish("two")))
    thread = await runtime.run(agent, "Draw.", thread="t", files=[("mine.txt", b"my own words")])

    await runtime.run(agent, "And now?", thread="t", continues=thread.run_id)

    said = "\n".join(message.text for message in model.requests[-1].messages)
    assert "my own words" in said
    assert "what the tool has found" not in said


# -- crashes --------------------------------------------------------------------------------------


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, place: str) -> Iterator[asyncio.Event]:
    """The first one to come to a function of `engine.files` stays there."""
    from fsm_agent.engine import files as engine_files

    plain, came = getattr(engine_files, place), asyncio.Event()

    async def slow(*args: Any) -> Any:
        if not came.is_set():
            came.set()
            await asyncio.sleep(60)
        return await plain(*args)

    with monkeypatch.context() as patched:
        patched.setattr(engine_files, place, slow)
        yield came


async def test_a_worker_that_dies_while_it_reads_them_makes_no_call_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    @tool  # unsafe
    def render() -> Any:
        nonlocal made
        made += 1
        return with_files("here", ("c.png", PICTURE))

    agent, model = Agent("a", tools=[render]), turns(ask(("render", {})), finish("seen"))
    store = await bench.store()
    first = await bench.runtime(model, store=store, lease_s=0.3)
    second = await bench.runtime(model, lease_s=0.3)
    run_id = await first.start(agent, "Draw.")
    with held(monkeypatch, "read") as reading:
        working = asyncio.create_task(first.work(run_id, agent))
        await until(reading.is_set)
        await die(store, working)
        result = await take_over(second, run_id, agent)

    assert (result.answer, made) == ("seen", 1)
    assert pictures(model.requests[-1].messages) == [PICTURE]
    assert len(await facts(second, run_id, Perceived)) == 1


@pytest.mark.parametrize(
    ("effect", "status", "times"), [("read", "done", 2), ("unsafe", "waiting", 1)]
)
async def test_a_crash_before_the_record_follows_the_effect(
    bench: Bench, effect: Any, status: str, times: int
) -> None:
    made = 0

    @tool(effect=effect)
    def render() -> Any:
        nonlocal made
        made += 1
        return with_files("here", ("c.png", PICTURE))

    class Stuck:
        """A store whose first blob is never acknowledged."""

        def __init__(self, store: Any) -> None:
            self._store, self.came = store, asyncio.Event()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def put_blob(self, run_id: RunId, data: bytes) -> str:
            digest = await self._store.put_blob(run_id, data)
            self.came.set()
            await asyncio.sleep(60)
            return str(digest)

    agent, model = Agent("a", tools=[render]), turns(ask(("render", {})), finish("seen"))
    watched = await bench.store()
    stuck = Stuck(watched)
    first = await bench.runtime(model, store=stuck, lease_s=0.3)  # type: ignore[arg-type]
    second = await bench.runtime(model, lease_s=0.3)
    run_id = await first.start(agent, "Draw.")
    working = asyncio.create_task(first.work(run_id, agent))
    await until(stuck.came.is_set)
    await die(watched, working)

    result = await take_over(second, run_id, agent)

    assert (result.status, made) == (status, times)
    assert len(await facts(second, run_id, Settled)) == (status == "done")


async def test_a_fork_has_the_bytes_of_the_files(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(ask(("render", {})), finish("one")))
    agent = Agent("a", tools=[giving(("c.png", PICTURE))])
    origin = await runtime.run(agent, "Draw.", files=[("task.png", files.png(9, 9, "blue"))])
    settled = next(
        event.seq
        for event in await runtime.history(origin.run_id)
        if any(isinstance(delta, Settled) for delta in event.record.deltas)
    )

    fork = await runtime.fork(origin.run_id, at=settled)
    await runtime.work(fork.run_id, agent)

    assert pictures(model.requests[-1].messages) == pictures(model.requests[-2].messages)
    assert len(pictures(model.requests[-1].messages)) == 2


# -- judgement and context ------------------------------------------------------------------------


def looking(count: int) -> ScriptedModel:
    def answer(request: StepRequest) -> Any:
        spoken = sum(isinstance(m, AssistantMessage) for m in request.messages)
        return finish() if spoken >= count or not request.tools else ask(("look", {}))

    return ScriptedModel(answer)


@pytest.mark.parametrize(("changes", "loops"), [(True, 0), (False, 1)])
async def test_other_pictures_under_the_same_words_are_no_loop(
    bench: Bench, changes: bool, loops: int
) -> None:
    seen = iter(range(100))

    @tool(effect="read")
    def look() -> Any:
        return with_files(
            "the screen",
            ("screen.png", files.png(9, 9, f"hsl({next(seen) * changes * 30}, 90%, 50%)")),
        )

    runtime = await bench.runtime(looking(5))

    result = await runtime.run(Agent("a", tools=[look], limits=Limits(repeats=3)), "Watch.")

    ended = [f.why for f in await facts(runtime, result.run_id, Finalising)]
    assert ended == ["loop"] * loops


async def test_old_pictures_of_tools_leave_a_full_window_and_the_task_stays(bench: Bench) -> None:
    seen = iter(range(100))

    @tool(effect="read")
    def look() -> Any:
        return with_files(f"screen {next(seen)} " + "x" * 900, ("s.png", files.png(5 + next(seen))))

    runtime = await bench.runtime(model := looking(14))
    agent = Agent("a", tools=[look], context_tokens=12_000, context=Context(fresh=4))

    result = await runtime.run(agent, "Watch the screen.", files=[("map.png", PICTURE)])

    assert result.status == "done"
    last = model.requests[-1].messages
    assert last[0].text == "Watch the screen."
    assert PICTURE in pictures(last)  # what a person gave is pinned
    assert 2 <= len(pictures(last)) < 12
    assert any("not shown any more" in m.text for r in model.requests for m in r.messages)
