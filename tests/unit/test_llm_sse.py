"""The event reader: any split of the bytes gives the same events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_agent.llm.sse import Event, EventTooLong, SseReader

LINES = [
    b"data: {}", b"data:{}", b"data:", b"data", b": keep-alive", b"event: error", b"event:x", b"",
    b"id: 1", b"retry: 5", b"<html>", b"data: \xe4\xbd\xa0", b"data: [DONE]", b"nonsense",
]  # fmt: skip
ENDS = [b"\n", b"\r\n", b"\r"]
streams = st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(ENDS)), max_size=12).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


def read(stream: bytes, cuts: list[int]) -> list[Event]:
    reader = SseReader()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    events = [event for start, end in pairwise(edges) for event in reader.feed(stream[start:end])]
    return events + reader.close()


@settings(max_examples=600, deadline=None)
@given(
    stream=streams,
    bom=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    cuts=st.lists(st.integers(min_value=0), max_size=8),
)
def test_any_split_gives_the_same_events(stream: bytes, bom: bytes, cuts: list[int]) -> None:
    whole = read(bom + stream, [])

    assert read(bom + stream, cuts) == whole
    assert read(bom + stream, list(range(len(bom + stream)))) == whole
    assert read(stream, []) == whole


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [("", b"a")]),
        (b"data:a\r\n\r\n", [("", b"a")]),
        (b"data: a\r\rdata: b\r\r", [("", b"a"), ("", b"b")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("", b"a")]),
        (b": hi\n\ndata: a\n\n: hi\n", [("", b"a")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"event: error\ndata: x\n\ndata: y\n\n", [("error", b"x"), ("", b"y")]),
        (b"data: last", [("", b"last")]),
        (b"data:\n\ndata: \n\n", [("", b""), ("", b"")]),
        (b"", []),
    ],
)
def test_events_are_framed_as_the_standard_says(
    stream: bytes, events: list[tuple[str, bytes]]
) -> None:
    assert read(stream, []) == events


def test_a_body_that_is_no_event_stream_is_kept_to_say_so() -> None:
    reader = SseReader()

    reader.feed(b"<html>\n<p>Sign in</p>\n")
    reader.close()

    assert not reader.has_events
    assert reader.stray == b"<html>\n<p>Sign in</p>\n"


@pytest.mark.parametrize("flood", [b"x" * 100, b"data: " + b"x" * 100, b"data: xxxxx\n"])
def test_an_event_without_an_end_is_refused_before_it_fills_the_memory(flood: bytes) -> None:
    reader = SseReader(max_event_bytes=1000)

    def feed_for_ever() -> None:
        while True:
            reader.feed(flood)

    with pytest.raises(EventTooLong):
        feed_for_ever()
