"""Files and events that come to a run: read once, on record, and shown to the model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from checkpoints.errors import RunExists
from checkpoints.model import RunId
from fsm_agent import Agent, Limits, Runtime, tool
from fsm_agent.engine import observe as observe_module
from fsm_agent.errors import ProviderError, UsageError
from fsm_agent.llm.client import OpenAIModel
from fsm_agent.llm.model import Reply, StepRequest, Use
from fsm_agent.observations import read as read_module
from fsm_agent.observations.reading import Limits as FileLimits
from fsm_agent.reflection.money import Price
from fsm_agent.run.content import (
    AssistantMessage,
    IllustratedMessage,
    NoteMessage,
    Usage,
    UserMessage,
)
from fsm_agent.run.delta import Given, Noticed, Observed, Perceived, Reserved
from tests import files
from tests.conftest import (
    USAGE,
    Bench,
    ScriptedModel,
    ask,
    die,
    finish,
    take_over,
    turns,
    until,
)

AGENT = Agent("clerk", max_tokens=100)
QUICK = 0.3


async def facts(runtime: Runtime, run_id: str, *kinds: type) -> list[Any]:
    return [
        delta
        for event in await runtime.history(run_id)
        for delta in event.record.deltas
        if isinstance(delta, kinds)
    ]


async def test_files_of_a_task_are_shown_to_the_model(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("The total is 7.")
    runtime = await bench.runtime(model := turns(finish("7")))
    given = [tmp_path / "notes.md", ("plan.pdf", files.pdf(["Build it in the north, soon."]))]

    result = await runtime.run(AGENT, "What is the total?", files=given)

    assert result.answer == "7"
    task, shown = model.requests[0].messages
    assert task == UserMessage("What is the total?")
    assert "The total is 7.\n[end of notes.md]" in shown.text
    assert "Build it in the north, soon." in shown.text


async def test_a_picture_reaches_the_model_and_the_journal_has_its_digest(bench: Bench) -> None:
    data = files.png(30, 20)
    runtime = await bench.runtime(model := turns(finish("red")))

    result = await runtime.run(AGENT, "Which colour?", files=[("a.png", data), ("b.png", data)])

    shown = model.requests[0].messages[1]
    assert isinstance(shown, IllustratedMessage)
    assert [image.data for image in shown.images] == [data, data]
    store = await bench.store()
    entries = await store.journal(RunId(result.run_id))
    assert not any(data in entry.body for entry in entries)
    ((perceived),) = await facts(runtime, result.run_id, Perceived)
    digests = {part.file.digest for part in perceived.parts}
    assert len(digests) == 1  # kept once
    assert await store.get_blob(RunId(result.run_id), digests.pop()) == data


async def test_a_picture_stays_in_the_window_from_turn_to_turn(bench: Bench) -> None:
    @tool(effect="read")
    async def look() -> str:
        return "seen"

    runtime = await bench.runtime(model := turns(ask(("look", {})), finish("done")))

    await runtime.run(Agent("eye", tools=[look]), "Look.", files=[("a.png", files.png())])

    for request in model.requests:
        assert isinstance(request.messages[1], IllustratedMessage)


async def test_what_cannot_be_read_is_told_and_ends_nothing(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(finish("sorry")))
    given = [("x.pdf", b"%PDF-1.4 broken"), ("bomb.png", files.png_bomb()), ("z.docx", b"PK\3\4")]

    result = await runtime.run(AGENT, "Read.", files=given)

    assert result.status == "done"
    shown = model.requests[0].messages[1].text
    assert shown.count("[not read: ") == 3
    assert "60000 x 60000" in shown


async def test_addresses_in_a_message_are_words_and_are_not_fetched(bench: Bench) -> None:
    came = 0

    async def count(reader: Any, writer: Any) -> None:
        nonlocal came
        came += 1
        writer.close()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x.png"
    page = f'<img src="{url}">![x]({url})'.encode()
    svg = f'<svg><image href="{url}"/></svg>'.encode()
    runtime = await bench.runtime(model := turns(finish("ok")))
    async with server:
        with pytest.raises(UsageError, match="is no file"):
            await runtime.run(AGENT, "See.", files=[url])

        result = await runtime.run(
            AGENT, f"See ![x]({url})", files=[("a.html", page), ("b.svg", svg)]
        )

    assert result.status == "done"
    assert came == 0
    assert not any(isinstance(m, IllustratedMessage) for m in model.requests[0].messages)


async def test_a_start_with_other_files_is_another_start(bench: Bench) -> None:
    runtime = await bench.runtime(turns(finish()))
    given = [("a.txt", b"one")]
    run_id = await runtime.start(AGENT, "Read.", run_id="r-files", files=given)

    assert await runtime.start(AGENT, "Read.", run_id="r-files", files=given) == run_id
    with pytest.raises(RunExists):
        await runtime.start(AGENT, "Read.", run_id="r-files", files=[("a.txt", b"two")])
    assert len(await facts(runtime, run_id, Given)) == 1


async def test_words_with_files_are_heard_together(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(finish("ok")))
    run_id = await runtime.start(AGENT, "Wait.")
    await runtime.say(run_id, "Here it is.", files=[("a.txt", b"the letter")])

    await runtime.work(run_id, AGENT)

    _, words, letter = model.requests[0].messages
    assert words == UserMessage("Here it is.")
    assert "the letter" in letter.text


async def test_a_worker_that_dies_while_it_reads_loses_no_word(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, reading = read_module.read, asyncio.Event()

    async def slow(*args: Any) -> Any:
        if not reading.is_set():
            reading.set()
            await asyncio.sleep(60)
        return await plain(*args)

    monkeypatch.setattr("fsm_agent.engine.files.read", slow)
    store = await bench.store()
    first = await bench.runtime(turns(finish()), store=store, lease_s=QUICK)
    second = await bench.runtime(model := turns(finish("ok")), lease_s=QUICK)
    run_id = await first.start(AGENT, "Wait.", files=[("b.txt", b"task file")])
    await first.say(run_id, "And this.", files=[("a.txt", b"the letter")])
    working = asyncio.create_task(first.work(run_id, AGENT))
    await until(reading.is_set)
    await die(store, working)

    await take_over(second, run_id, AGENT)

    assert len(await facts(second, run_id, Perceived)) == 2
    assert "task file" in model.requests[0].messages[1].text
    assert "the letter" in model.requests[0].messages[3].text


async def test_more_files_or_more_text_than_allowed_are_cut_and_say_so(bench: Bench) -> None:
    agent = Agent("clerk", file_limits=FileLimits(files=2, text_chars=50))
    runtime = await bench.runtime(model := turns(finish()))
    run_id = await runtime.start(agent, "Wait.", files=[("a.txt", b"x" * 900), ("b.txt", b"y")])

    await runtime.work(run_id, agent)

    shown = model.requests[0].messages[1].text
    assert "about 850 more bytes are not shown" in shown
    with pytest.raises(UsageError, match="at most 2"):
        await runtime.start(agent, "Wait.", files=[("a", b"1"), ("b", b"2"), ("c", b"3")])


async def test_a_file_whose_bytes_are_gone_is_told(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(finish()))
    run_id = await runtime.start(AGENT, "Wait.", files=[("a.txt", b"gone")])
    (given,) = await facts(runtime, run_id, Given)

    class Forgetful:
        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def get_blob(self, run_id: RunId, digest: str) -> bytes | None:
            return None

    forgetful = await bench.runtime(model, store=Forgetful(await bench.store()))  # type: ignore[arg-type]
    result = await forgetful.work(run_id, AGENT)

    assert result.status == "done"
    assert given.files[0].name in model.requests[0].messages[1].text
    assert "not in the store any more" in model.requests[0].messages[1].text


# -- events and deferral --------------------------------------------------------------------------


async def test_an_event_is_a_note_and_its_repeat_is_none(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(finish("ok")))
    run_id = await runtime.start(AGENT, "Wait.")
    for _ in range(2):
        await runtime.notify(run_id, "build 7 failed", source="ci", event_id="build-7")

    await runtime.work(run_id, AGENT)

    assert model.requests[0].messages[1:] == (NoteMessage("[event from ci]\nbuild 7 failed"),)
    assert len(await facts(runtime, run_id, Noticed)) == 1


async def test_people_are_heard_before_events_and_the_rest_waits_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe_module, "MAX_INPUTS", 3)
    runtime = await bench.runtime(model := turns(*[_think(n) for n in range(3)], finish("ok")))
    run_id = await runtime.start(AGENT, "Wait.")
    await runtime.notify(run_id, "an event", source="cron")
    for number in range(5):
        await runtime.say(run_id, f"word {number}")

    await runtime.work(run_id, AGENT)

    def heard(request: StepRequest) -> list[str]:
        return [m.text for m in request.messages if not isinstance(m, AssistantMessage)][1:]

    assert heard(model.requests[0]) == ["word 0", "word 1", "word 2"]
    assert heard(model.requests[1])[3:] == ["word 3", "word 4", "[event from cron]\nan event"]
    assert len(await facts(runtime, run_id, Observed)) == 5


async def test_long_messages_are_heard_over_several_turns_in_entries_that_the_store_takes(
    bench: Bench,
) -> None:
    runtime = await bench.runtime(model := turns(*[_think(n) for n in range(8)], finish("ok")))
    run_id = await runtime.start(AGENT, "Wait.")
    for number in range(4):
        await runtime.say(run_id, f"{number}" + "\N{HERB}" * 199_000)

    result = await runtime.work(run_id, AGENT)

    assert result.status == "done"
    heard = await facts(runtime, run_id, Observed)
    assert [fact.text[0] for fact in heard] == ["0", "1", "2", "3"]
    assert model.requests


def _think(number: int) -> Reply:
    return Reply(label="THINK", text=f"thought {number} about it", usage=USAGE)


@pytest.mark.parametrize(("text", "source"), [("", "ci"), ("x", " "), ("x" * 300_000, "ci")])
async def test_an_event_without_words_or_source_is_refused(
    bench: Bench, text: str, source: str
) -> None:
    runtime = await bench.runtime(turns(finish()))
    run_id = await runtime.start(AGENT, "Wait.")

    with pytest.raises(UsageError, match="event"):
        await runtime.notify(run_id, text, source=source)


# -- sound ----------------------------------------------------------------------------------------


class Hearing(ScriptedModel):
    """A model that also puts sound into words."""

    def __init__(self, heard: Any) -> None:
        super().__init__(lambda request: finish("ok"))
        self.heard, self.asked = heard, 0

    can_transcribe = True

    def name_of(self, use: Use) -> str:
        return "ears" if use == "transcript" else "mind"

    async def transcribe(self, data: bytes, media_type: str) -> tuple[str, Usage | None]:
        self.asked += 1
        said = self.heard(data, media_type)
        if asyncio.iscoroutine(said):
            said = await said
        if isinstance(said, Exception):
            raise said
        return said  # type: ignore[no-any-return]


async def test_sound_is_put_into_words_and_paid_for_once(bench: Bench) -> None:
    model = Hearing(lambda data, media_type: (f"{len(data)} bytes of {media_type}", Usage(70, 30)))
    runtime = await bench.runtime(model)
    data = files.wav(2.0)

    result = await runtime.run(AGENT, "Listen.", files=[("a.wav", data), ("b.wav", data)])

    shown = model.requests[0].messages[1].text
    assert shown.count(f"{len(data)} bytes of audio/wav") == 2
    assert result.spent_tokens == 200 + USAGE.total_tokens
    (begun, _) = await facts(runtime, result.run_id, Reserved)
    assert begun.purpose == "transcript"


async def test_sound_that_nobody_can_hear_is_told(bench: Bench) -> None:
    runtime = await bench.runtime(model := turns(finish("ok")))

    result = await runtime.run(AGENT, "Listen.", files=[("a.wav", files.wav())])

    assert result.status == "done"
    assert "FSM_AGENT_TRANSCRIBE_MODEL" in model.requests[0].messages[1].text


async def test_a_transcription_that_fails_is_told_and_what_was_refused_costs_nothing(
    bench: Bench,
) -> None:
    error = ProviderError("bad_request", "no sound", is_retryable=False, status=400)
    model = Hearing(lambda data, media_type: error)
    runtime = await bench.runtime(model)

    result = await runtime.run(AGENT, "Listen.", files=[("a.wav", files.wav())])

    assert "its sound is not in words: no sound" in model.requests[0].messages[1].text
    assert result.spent_tokens == USAGE.total_tokens


async def test_a_worker_that_dies_in_a_transcription_leaves_its_reserve_spent(
    bench: Bench,
) -> None:
    hang = asyncio.Event()

    async def hear(data: bytes, media_type: str) -> tuple[str, Usage | None]:
        if not hang.is_set():
            hang.set()
            await asyncio.sleep(60)
        return "hello", Usage(10, 5)

    model = Hearing(hear)
    store = await bench.store()
    first = await bench.runtime(model, store=store, lease_s=QUICK)
    second = await bench.runtime(model, lease_s=QUICK)
    run_id = await first.start(AGENT, "Listen.", files=[("a.wav", files.wav())])
    working = asyncio.create_task(first.work(run_id, AGENT))
    await until(hang.is_set)
    await die(store, working)

    result = await take_over(second, run_id, AGENT)

    begun = [b for b in await facts(second, run_id, Reserved) if b.purpose == "transcript"]
    assert len(begun) == 2
    assert result.spent_tokens == begun[0].reserve_tokens + 15 + USAGE.total_tokens


EARS = {"mind": Price(input=1, output=1), "ears": Price(input=6, output=10)}
OWN = USAGE.total_tokens  # micros of the turn


async def test_hearing_has_its_own_price_and_is_charged_once(bench: Bench) -> None:
    said = iter(
        [("one", Usage(70, 30)), ("two", None), ProviderError("x", "cut off", is_retryable=True)]
    )
    runtime = await bench.runtime(Hearing(lambda data, media_type: next(said)))
    agent = Agent("clerk", max_tokens=100, prices=EARS, limits=Limits(money=1.0))
    sounds = [(f"{n}.wav", files.wav(2.0)) for n in range(3)]

    result = await runtime.run(agent, "Listen.", files=sounds)

    guess = 2 * 12 + 500  # of the second, whose server gave no count, and of the third
    assert result.spent_money == pytest.approx((70 * 6 + 30 * 10 + 2 * guess * 6 + OWN) / 1e6)
    (begun, _) = await facts(runtime, result.run_id, Reserved)
    assert begun.micros == 3 * guess * 10


async def test_money_of_a_worker_that_dies_while_it_hears_is_spent_once(bench: Bench) -> None:
    hang = asyncio.Event()

    async def hear(data: bytes, media_type: str) -> tuple[str, Usage | None]:
        if not hang.is_set():
            hang.set()
            await asyncio.sleep(60)
        return "hello", Usage(10, 5)

    agent = Agent("clerk", max_tokens=100, prices=EARS)
    store, model = await bench.store(), Hearing(hear)
    first = await bench.runtime(model, store=store, lease_s=QUICK)
    second = await bench.runtime(model, lease_s=QUICK)
    run_id = await first.start(agent, "Listen.", files=[("a.wav", files.wav())])
    working = asyncio.create_task(first.work(run_id, agent))
    await until(hang.is_set)
    await die(store, working)

    result = await take_over(second, run_id, agent)

    dead = (await facts(second, run_id, Reserved))[0].micros
    assert dead == 5_120
    assert result.spent_money == pytest.approx((dead + 10 * 6 + 5 * 10 + OWN) / 1e6)


@pytest.mark.parametrize(
    ("money", "prices", "why"),
    [
        (0.001, EARS, "the budget has no room for it"),
        (1.0, {"mind": Price(input=1, output=1)}, "no price for the model that hears"),
    ],
)
async def test_with_a_limit_on_money_nothing_is_heard_that_might_pass_it(
    bench: Bench, money: float, prices: dict[str, Price], why: str
) -> None:
    runtime = await bench.runtime(model := Hearing(lambda data, media_type: ("x", None)))
    agent = Agent("clerk", max_tokens=100, prices=prices, limits=Limits(money=money))

    result = await runtime.run(agent, "Listen.", files=[("a.wav", files.wav())])

    assert (result.status, model.asked) == ("done", 0)
    assert why in model.requests[0].messages[1].text
    assert result.spent_money == pytest.approx(OWN / 1e6)


@asynccontextmanager
async def sound_server(status: int, body: dict[str, Any]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An endpoint for transcriptions, on loopback, and the requests that came."""
    came: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(
            line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
        )
        came.append(head + await reader.readexactly(int(fields[b"content-length"])))
        said = json.dumps(body).encode()
        writer.write(
            b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%s" % (status, len(said), said)
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", came


async def test_a_server_is_asked_for_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSM_AGENT_TRANSCRIBE_MODEL", "ears-1")
    usage = {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}
    async with sound_server(200, {"text": "hello there", "usage": usage}) as (url, came):
        model = OpenAIModel("m", url, "key")
        assert model.can_transcribe

        said = await model.transcribe(files.wav(), "audio/wav")

    assert said == ("hello there", Usage(14, 45))
    assert came[0].startswith(b"POST /v1/audio/transcriptions ")
    assert b"ears-1" in came[0]
    assert b'filename="sound.wav"' in came[0]


async def test_what_a_server_for_sound_refuses_is_its_own_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FSM_AGENT_TRANSCRIBE_MODEL", "ears-1")
    async with sound_server(401, {"error": {"message": "wrong key"}}) as (url, _):
        with pytest.raises(ProviderError) as refused:
            await OpenAIModel("m", url, "key").transcribe(files.wav(), "audio/wav")
    assert (refused.value.kind, str(refused.value)) == ("auth", "wrong key")

    with pytest.raises(ProviderError) as unreachable:
        await OpenAIModel("m", url, "key").transcribe(files.wav(), "audio/wav")
    assert unreachable.value.kind == "unreachable"


def test_without_a_model_for_it_nobody_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FSM_AGENT_TRANSCRIBE_MODEL", raising=False)

    assert not OpenAIModel("m").can_transcribe
