"""What the chunks of a reply amount to, in process: any split, any wrong type, any rubbish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_agent.labels.protocol import DEFAULT
from fsm_agent.llm.model import Piece, Reply, StepRequest, ToolSpec
from fsm_agent.llm.reading import Reading, ReplyTooLong
from fsm_agent.llm.sse import SseReader
from fsm_agent.llm.wire import Chunk, cached_of, decode, decode_event
from fsm_agent.testing.script import item_bytes

CASES_DIR = Path(__file__).parent.parent / "cases/stream"
PAUSES = ("_delay_ms", "_hang", "_drop", "_repeat")


def _cases() -> list[Any]:
    lines = [
        line
        for path in sorted(CASES_DIR.glob("*.jsonl"))
        for line in path.read_text("utf-8").splitlines()
    ]
    cases = [json.loads(line) for line in lines]
    return [pytest.param(case, id=case["id"]) for case in cases if case["chunks"]]


def reading_of(names: list[str], pieces: list[Piece] | None = None, **options: Any) -> Reading:
    request = StepRequest(
        instructions="",
        messages=(),
        tools=tuple(ToolSpec(name, "", {}) for name in names),
        protocol=DEFAULT,
    )
    show = (lambda piece: None) if pieces is None else pieces.append
    return Reading(request, show, **({"is_live": False, "max_chars": 1 << 22} | options))


def read(parts: list[bytes], names: list[str]) -> Reply:
    reading, reader = reading_of(names), SseReader()
    events = [event for part in parts for event in reader.feed(part)] + reader.close()
    for event in events:
        for chunk in decode_event(event.data.strip()):
            reading.take(chunk or Chunk())
    return reading.finish()


@pytest.mark.parametrize("case", _cases())
def test_the_bytes_of_a_stream_may_be_split_anywhere(case: dict[str, Any]) -> None:
    items = [item for item in case["chunks"] if not any(key in item for key in PAUSES)]
    pieces = [item_bytes(item) for item in items]
    stream = b"".join(piece for piece in pieces if piece is not None)

    whole = read([stream], case["tools"])

    assert read([stream[at : at + 1] for at in range(len(stream))], case["tools"]) == whole
    assert read([stream[at : at + 7] for at in range(0, len(stream), 7)], case["tools"]) == whole


KEYS = (
    "choices delta message content tool_calls function arguments index id name finish_reason usage "
    "error reasoning_details type text thinking prompt_tokens refusal function_call reasoning"
)
rubbish = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS.split()),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=1500, deadline=None)
@given(choice=rubbish, usage=rubbish, error=rubbish)
def test_no_type_is_so_wrong_that_it_raises(choice: Any, usage: Any, error: Any) -> None:
    value = {"choices": [{"delta": choice}, choice], "usage": usage, "error": error}
    reading = reading_of(["now"])

    for data in (json.dumps(value).encode(), json.dumps(choice).encode()):
        reading.take(decode(data) or Chunk())

    assert msgspec.json.encode(reading.finish())


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60))
def test_bytes_that_are_no_json_are_no_chunk(data: bytes) -> None:
    assert decode(data) is None or isinstance(decode(data), Chunk)


def say(reading: Reading, text: str) -> None:
    chunk = {"choices": [{"delta": {"content": text}}]}
    reading.take(decode(json.dumps(chunk).encode()) or Chunk())


def test_the_halves_of_a_surrogate_pair_in_two_chunks_are_one_character() -> None:
    reading = reading_of([])
    for text in ("``FINISH``\nok \ud83d", "\ude80!"):
        say(reading, text)

    assert reading.finish().text == "ok 🚀!"


def test_a_lone_surrogate_at_the_very_end_can_be_stored() -> None:
    reading = reading_of([])
    say(reading, "``FINISH``\nok \ud83d")

    assert reading.finish().text == "ok \ufffd"


def test_chunks_that_repeat_all_before_them_are_read_once() -> None:
    reading = reading_of([])
    for text in ("``FIN", "``FINISH``\nTide", "``FINISH``\nTide table", "``FINISH``\nTide table"):
        say(reading, text)

    assert reading.finish().text == "Tide table"


def test_equal_pieces_are_real_text() -> None:
    reading = reading_of([])
    for text in ("``FINISH``\n", "ha", "ha", "haha"):
        say(reading, text)

    assert reading.finish().text == "hahahaha"


def test_more_than_the_limit_is_refused_whatever_channel_it_comes_in() -> None:
    endless = [
        {"content": "x" * 100},
        {"reasoning": "x" * 100},
        {"refusal": "x" * 100},
        {"tool_calls": [{"index": 0, "function": {"name": "n", "arguments": "x" * 100}}]},
        {"tool_calls": [{"index": 0}]},
    ]
    for delta in endless:
        reading = reading_of([], max_chars=1000)
        data = json.dumps({"choices": [{"delta": delta}]}).encode()

        def feed_for_ever(reading: Reading = reading, data: bytes = data) -> None:
            while True:
                reading.take(decode(data) or Chunk())

        with pytest.raises(ReplyTooLong):
            feed_for_ever()


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 60}}, 60),
        ({"input_tokens_details": {"cached_tokens": 7}}, 7),
        ({"prompt_cache_hit_tokens": 5}, 5),
        ({"cache_read_input_tokens": 4}, 4),
        ({"prompt_tokens_details": None}, 0),
        ({"prompt_tokens_details": {"cached_tokens": "many"}}, 0),
        ({"prompt_cache_hit_tokens": -3}, 0),
        (None, 0),
    ],
)
def test_cached_tokens_are_found_wherever_providers_put_them(usage: Any, cached: int) -> None:
    assert cached_of(usage) == cached
