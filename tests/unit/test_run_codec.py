"""What the codec takes and gives back: every kind of fact, and nothing else."""

from __future__ import annotations

import random
import struct
import time
from collections import OrderedDict, defaultdict
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.errors import CorruptRecord, NewerRecord, UsageError
from fsm_agent.run import codec, signal
from fsm_agent.run.content import (
    MAX_DEPTH,
    AssistantMessage,
    Call,
    File,
    NoteMessage,
    Part,
    Picture,
    Source,
    Usage,
    UserMessage,
    canonical_json,
    clean_text,
)
from fsm_agent.run.delta import (
    Answered,
    AnyDelta,
    Asked,
    AskedOn,
    Assessed,
    Attested,
    Barred,
    Began,
    Carried,
    Charged,
    Commented,
    Consented,
    Created,
    Criticised,
    Cut,
    Delegated,
    Detailed,
    Enclosed,
    Entered,
    Failed,
    Filed,
    Finalising,
    Forked,
    Given,
    Hinted,
    Intended,
    Judged,
    ModelFailed,
    Nested,
    Noticed,
    Observed,
    Perceived,
    Planned,
    Proposed,
    Raised,
    Replied,
    Reserved,
    Resumed,
    Revoked,
    Ruled,
    Settled,
    Signed,
    Stepped,
    Summarised,
    Versioned,
    Voted,
    Withheld,
)
from fsm_agent.run.limits import Limits
from fsm_agent.run.record import Record
from fsm_agent.run.state import State, Trigger

EXTREME = "NUL \0, emoji 👩‍🚀, bidi \u202e, astral 𝔄, combining é, \ufeff\u200b"
texts = st.text() | st.just(EXTREME) | st.text(alphabet="\0👩🚀\u202e\ud7ff\ue000\uffff\U0010ffff")
ints = st.integers(-(2**63), 2**64 - 1)
counts = st.integers(0, 2**63)
maybe = st.none() | texts
limits = st.builds(Limits, counts, counts, counts, st.floats(0, 1e12), counts, counts, counts,
                   counts, counts, st.sampled_from(["finalise", "error"]),
                   st.none() | st.floats(0, 1e12))  # fmt: skip
calls = st.builds(Call, texts, texts, texts, maybe)
usages = st.builds(Usage, ints, ints, st.booleans())
asks = st.sampled_from(["approval", "question", "in_doubt"])
verbs = st.sampled_from(
    ["approve", "reject", "edit", "answer", "happened", "rerun", "fail", "expire"]
)
endings = st.sampled_from(["reject", "fail_run", "approve"])
numbers = st.dictionaries(
    texts, st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False), max_size=3
)
effects = st.sampled_from(["read", "idempotent", "keyed", "probed", "unsafe"])
reasons = st.sampled_from(["model", "turns", "poison", "cancelled", "tool_missing", "host"])
purposes = st.sampled_from(["turn", "summary", "critic", "transcript"])
indices = st.lists(ints, max_size=4).map(tuple)
files = st.builds(File, texts, texts, counts, texts)
parts = st.builds(
    Part, files, st.sampled_from(["text", "pdf", "unknown"]), texts, texts,
    st.lists(st.builds(Picture, texts, texts), max_size=2).map(tuple), ints,
    st.dictionaries(texts, ints | texts | st.floats(allow_nan=False), max_size=3), texts,
)  # fmt: skip
statuses = st.sampled_from(["success", "error", "timeout", "partial", "denied", "in_doubt"])
hints = st.sampled_from(["repair", "warning", "final", "failure", "host"])
many_texts = st.lists(texts, max_size=3).map(tuple)
messages = (
    st.builds(UserMessage, texts)
    | st.builds(AssistantMessage, maybe, texts)
    | st.builds(NoteMessage, texts)
)

KINDS: dict[type, st.SearchStrategy[Any]] = {
    Created: st.builds(Created, texts, texts, limits, texts, texts),
    Nested: st.builds(Nested, texts, texts),
    Carried: st.builds(Carried, texts, st.lists(messages, max_size=3).map(tuple), counts),
    Entered: st.builds(Entered, texts, texts),
    Planned: st.builds(Planned, many_texts, st.booleans()),
    Stepped: st.builds(Stepped, counts, st.sampled_from(["done", "failed", "dropped"])),
    Raised: st.builds(Raised, many_texts),
    Proposed: st.builds(Proposed, st.lists(calls, max_size=3).map(tuple)),
    Versioned: st.builds(Versioned, st.dictionaries(texts, texts, max_size=3), texts),
    Forked: st.builds(Forked, texts, counts, ints, texts, texts),
    Resumed: st.builds(Resumed, texts, ints, st.booleans(), ints),
    Observed: st.builds(Observed, texts, texts),
    Began: st.builds(Began, ints, ints),
    Replied: st.builds(Replied, maybe, texts, usages, st.lists(calls, max_size=3).map(tuple),
                       maybe, maybe, texts, texts),
    Signed: st.builds(Signed, texts),
    ModelFailed: st.builds(ModelFailed, texts, texts, st.booleans(), ints),
    Asked: st.builds(Asked, texts, texts, asks, texts, texts, ints, ints),
    Ruled: st.builds(Ruled, texts, texts, verbs, texts, ints, texts, texts, maybe, maybe),
    AskedOn: st.builds(AskedOn, texts, texts, asks, texts, texts, ints, ints, endings, counts,
                       st.booleans()),
    Judged: st.builds(Judged, texts, st.booleans(), texts, texts, texts, numbers),
    Commented: st.builds(Commented, texts, texts, texts, ints, texts),
    Voted: st.builds(Voted, texts, texts, verbs, texts, ints, texts, texts, texts, texts),
    Attested: st.builds(Attested, texts, texts, verbs, texts, ints, texts, texts, maybe, maybe,
                        ints, texts, texts),
    Consented: st.builds(Consented, texts, texts, texts, texts, ints, texts, texts, texts),
    Revoked: st.builds(Revoked, texts, texts, ints, texts),
    Intended: st.builds(Intended, texts, effects, texts, ints, ints, ints),
    Withheld: st.builds(Withheld, texts, texts),
    Delegated: st.builds(Delegated, texts, texts, ints, ints),
    Filed: st.builds(Filed, texts, ints, texts, st.sampled_from(["reject", "queue", "interrupt"])),
    Detailed: st.builds(Detailed, texts, st.booleans(), texts,
                        st.lists(st.builds(Source, texts, texts, texts), max_size=2).map(tuple),
                        ints, many_texts, ints),
    Reserved: st.builds(Reserved, ints, ints, purposes, ints, ints),
    Charged: st.builds(Charged, ints, ints),
    Assessed: st.builds(Assessed, ints, ints, indices, ints, ints),
    Barred: st.builds(Barred, st.lists(texts, max_size=3).map(tuple)),
    Criticised: st.builds(Criticised, st.sampled_from(["right", "wrong", "done"]), texts, usages,
                          texts),
    Cut: st.builds(Cut, ints, indices, ints, ints),
    Summarised: st.builds(Summarised, texts, ints, usages, texts),
    Enclosed: st.builds(Enclosed, texts, st.lists(files, max_size=2).map(tuple)),
    Given: st.builds(Given, st.lists(files, max_size=2).map(tuple)),
    Perceived: st.builds(Perceived, st.lists(parts, max_size=2).map(tuple), st.none() | usages),
    Noticed: st.builds(Noticed, texts, texts, texts),
    Settled: st.builds(Settled, texts, statuses, texts, ints, texts),
    Hinted: st.builds(Hinted, hints, texts),
    Finalising: st.builds(Finalising, reasons, ints),
    Answered: st.builds(Answered, texts, st.booleans()),
    Failed: st.builds(Failed, reasons, texts, texts),
}  # fmt: skip
records = st.builds(
    Record,
    st.none() | st.sampled_from(Trigger),
    ints,
    st.lists(st.one_of(*KINDS.values()), max_size=4).map(tuple),
)


def test_every_kind_of_delta_has_a_strategy_here() -> None:
    assert set(KINDS) == set(get_args(AnyDelta))


@given(records)
def test_a_record_comes_back_as_it_was_stored(record: Record) -> None:
    assert codec.decode(codec.encode(record)) == record


@given(st.text(alphabet=st.characters(exclude_categories=()) | st.sampled_from("\ud800\udfff")))
def test_cleaned_text_always_has_bytes_and_clean_text_stays_as_it_is(text: str) -> None:
    cleaned = clean_text(text)

    assert cleaned.encode().decode() == cleaned
    assert clean_text(cleaned) == cleaned
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert cleaned == text


def test_half_a_pair_becomes_a_replacement_character_and_a_whole_one_stays() -> None:
    assert clean_text("a\ud83db") == "a\ufffdb"
    assert clean_text("\ud83d\ude80") == "🚀"


def test_an_integer_beyond_64_bits_is_refused_and_never_stored_as_another() -> None:
    with pytest.raises(OverflowError):
        codec.encode(Record(None, 2**64, ()))


def _message(body: bytes) -> str:
    with pytest.raises(CorruptRecord) as refused:
        codec.decode(body)
    return str(refused.value)


GOOD = codec.encode(
    Record(
        Trigger.CALLS,
        1234567890123,
        (
            Resumed("worker", 3, True, 17),
            Replied("TOOL", EXTREME, Usage(10, 20), (Call("c4-0", "send", '{"a":1}'),), "stop"),
            Intended("c4-0", "keyed", "k" * 64, 1, 5, 9),
        ),
    )
)


# -- other schemas --------------------------------------------------------------------------------


def written_by(schema: int, version: str, record: Any) -> bytes:
    """A record as a version with that schema would store it."""
    return bytes((schema,)) + msgspec.msgpack.encode(version) + msgspec.msgpack.encode(record)


def test_a_newer_schema_is_refused_and_the_version_that_wrote_it_is_named() -> None:
    with pytest.raises(NewerRecord) as refused:
        codec.decode(written_by(2, "0.9.0", ["anything", {"at": "all"}]))

    assert str(refused.value) == (
        f"fsm-agent 0.9.0 wrote it with schema 2, and fsm-agent {codec.version()} reads up to 1."
        " Upgrade this one"
    )


@pytest.mark.parametrize(
    "rest", [b"", b"\xa5", b"\xc1", b"\xa2\xff\xfe", b"\xa1\x1b", b"\xd9", GOOD[1:]]
)
def test_a_newer_schema_that_does_not_say_who_wrote_it_is_still_told_from_damage(
    rest: bytes,
) -> None:
    with pytest.raises(NewerRecord, match="a newer version of fsm-agent wrote it with schema 255"):
        codec.decode(b"\xff" + rest)


def test_a_newer_snapshot_is_told_from_damage() -> None:
    with pytest.raises(NewerRecord, match="with schema 2"):
        codec.decode_snapshot(bytes((codec.SCHEMA + 1,)))
    with pytest.raises(CorruptRecord) as refused:
        codec.decode_snapshot(bytes((codec.SCHEMA,)) + b"\x91\xa1x")
    assert not isinstance(refused.value, NewerRecord)


@pytest.mark.parametrize(
    ("later", "what"),
    [
        ([None, 1, [["observed", "hi", "s"], ["dreamt", "of", "sheep"]]], "the fact 'dreamt'"),
        (["daydreamt", 1, []], "'daydreamt'"),
        ([None, 1, [["failed", "bored", "no reason"]]], "'bored'"),
    ],
)
def test_what_a_newer_version_has_a_name_for_is_named_here(later: Any, what: str) -> None:
    with pytest.raises(NewerRecord, match=f"it holds {what}, which fsm-agent .* does not know"):
        codec.decode(b"\x01" + msgspec.msgpack.encode(later))


@pytest.mark.parametrize(
    "damaged", [[None, 1, [["observed", 7, "s"]]], [None, "x", []], [1, 1, []]]
)
def test_damage_is_not_taken_for_a_newer_version(damaged: Any) -> None:
    with pytest.raises(CorruptRecord) as refused:
        codec.decode(b"\x01" + msgspec.msgpack.encode(damaged))

    assert not isinstance(refused.value, NewerRecord)


def test_an_older_schema_without_an_upgrade_is_refused_in_words() -> None:
    assert "no upgrade from schema 0" in _message(b"\0" + GOOD[1:])


def from_0(plain: list[Any]) -> list[Any]:
    """Schema 0 had no time of its own in a record."""
    trigger, deltas = plain
    return [trigger, 0, deltas]


def from_1(plain: list[Any]) -> list[Any]:
    """Schema 2 calls the words of a person something else."""
    trigger, at_ms, deltas = plain
    said = [["hinted", "warning", *d[1:2]] if d[0] == "observed" else d for d in deltas]
    return [trigger, at_ms, said]


NEXT = codec.Format(2, {0: from_0, 1: from_1})  # what this package may be one day


def test_records_of_every_number_go_through_the_chain_to_the_present_one() -> None:
    oldest = b"\0" + msgspec.msgpack.encode(["observed", [["observed", "hi", "s"]]])
    older = codec.encode(Record(Trigger.OBSERVED, 5, (Observed("hi", "s"),)))

    assert NEXT.decode(oldest) == Record(Trigger.OBSERVED, 0, (Hinted("warning", "hi"),))
    assert NEXT.decode(older) == Record(Trigger.OBSERVED, 5, (Hinted("warning", "hi"),))


def test_what_the_next_schema_writes_comes_back_there_and_names_its_writer_here() -> None:
    record = Record(Trigger.OBSERVED, 5, (Hinted("warning", EXTREME),))
    stored = NEXT.encode(record)

    assert stored[0] == 2
    assert NEXT.decode(stored) == record
    assert codec.version() in _message(stored)


@given(records)
def test_the_next_schema_stores_any_record_and_reads_those_of_the_present_one(
    record: Record,
) -> None:
    same = codec.Format(2, {1: lambda plain: plain})

    assert same.decode(same.encode(record)) == record
    assert same.decode(codec.encode(record)) == record


@pytest.mark.parametrize("plain", [[], ["observed"], 7, None, {"a": 1}, ["observed", 7]])
def test_an_upgrade_that_meets_something_else_refuses_it(plain: Any) -> None:
    with pytest.raises(CorruptRecord):
        NEXT.decode(b"\0" + msgspec.msgpack.encode(plain))


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x01",
        b"\x01\xc1",
        b"\x01\xd4\x05\x00",  # ext type 5
        b"\x01\x93\xc0\x01\x91\xc7\x01\x05\x00",  # an ext among the deltas
        b"\x01\x93\xc0\xd6\xff\x00\x00\x00\x00\x90",  # a timestamp in place of at_ms
        b"\x01\x93\xc0\x01\xdd\xff\xff\xff\xff",  # four thousand million deltas
        b"\x01\x93\xc0\x01\x91\x92\xa6hinted\xdb\xff\xff\xff\xff",
        b"\x00\xdf\xff\xff\xff\xff",
        b"\x00" + b"\x91" * 100_000,  # nested deeply
        b"\x01" + b"\x91" * 100_000,
        b"\x01\x93\xc0\x01\x91\x92\xa7unknown\xa1x",
        b"\x01\x93\xa5bogus\x01\x90",
        b"\x01\x93\xc0\x01\x91\x93\xa6hinted\xa6repair\xa2\xff\xfe",  # no UTF-8
        GOOD + b"\x00",
        GOOD[:-1],
    ],
)
def test_bytes_that_are_no_record_are_refused(packed: bytes) -> None:
    assert _message(packed)


def test_a_hundred_thousand_mutations_give_a_record_or_corrupt_record_and_nothing_else() -> None:
    rng = random.Random(79)
    slowest = 0.0
    for _ in range(100_000):
        body = bytearray(GOOD)
        for _ in range(rng.randint(1, 4)):
            match rng.randrange(4):
                case 0:
                    body[rng.randrange(len(body))] = rng.randrange(256)
                case 1:
                    del body[rng.randrange(len(body)) :]
                    body += rng.randbytes(rng.randrange(8)) or b"\x01"
                case 2:
                    at = rng.randrange(len(body))
                    body[at:at] = rng.choice([b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
                    body[at + 1 : at + 1] = struct.pack(">I", rng.choice([2**32 - 1, 2**31, 7]))
                case _:
                    at = rng.randrange(len(body))
                    body[at:at] = b"\x91" * rng.randrange(2000)
        began = time.thread_time()
        with suppress(CorruptRecord):
            codec.decode(bytes(body))
        slowest = max(slowest, time.thread_time() - began)

    assert slowest < 0.05


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_snapshot_signal_or_question(body: bytes) -> None:
    for decode in (codec.decode_snapshot, signal.decode_signal, signal.decode_question):
        try:
            value = decode(body)
        except CorruptRecord:
            continue
        assert isinstance(value, msgspec.Struct)


def test_a_snapshot_comes_back() -> None:
    snapshot = codec.Snapshot("a", EXTREME, State.ACT, 3, 4, ("a4-0",), "")

    assert codec.decode_snapshot(codec.encode_snapshot(snapshot)) == snapshot


@given(st.one_of(
    st.builds(signal.Decided, texts, verbs, texts, texts, maybe, maybe, texts, texts,
              st.booleans()),
    st.builds(signal.Consent, texts, texts, texts, texts, texts, texts),
    st.builds(signal.Revoke, texts, texts, texts),
    st.builds(signal.CancelRequested, texts, texts),
    st.builds(signal.Said, texts, texts),
))  # fmt: skip
def test_a_signal_comes_back(said: Any) -> None:
    assert signal.decode_signal(signal.encode(said)) == said


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_values)
def test_canonical_json_is_one_text_for_equal_values(value: Any) -> None:
    text = canonical_json(value)

    assert canonical_json(msgspec.json.decode(text)) == text


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_json_are_refused_at_any_depth(number: float) -> None:
    with pytest.raises(UsageError, match="not a JSON number"):
        canonical_json({"a": [1, ({"b": number},)]})


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def test_what_is_nested_too_deeply_or_holds_itself_is_refused() -> None:
    itself: dict[str, Any] = {}
    itself |= {"a": itself, "b": [itself]}
    twice: list[Any] = []
    for _ in range(60):  # 2 ** 60 lists once written out
        twice = [twice, twice]

    for endless in (nested(MAX_DEPTH + 1), nested(3_000), itself, twice):
        with pytest.raises(UsageError, match=r"nested more than 200 deep|more than 1,000,000"):
            canonical_json(endless)
    assert canonical_json(nested(MAX_DEPTH)).count("{") == MAX_DEPTH


@pytest.mark.parametrize(
    "foreign",
    [b"x", bytearray(), {1, 2}, frozenset({1}), date(2030, 1, 1), Decimal(1), UserMessage("x")],
    ids=lambda foreign: type(foreign).__name__,
)
def test_what_json_cannot_say_is_refused_wherever_it_stands(foreign: Any) -> None:
    for value in (foreign, {"a": [(foreign,)]}):
        with pytest.raises(UsageError, match=f"a {type(foreign).__name__} is not JSON"):
            canonical_json(value)
    with pytest.raises(UsageError, match="not JSON"):
        canonical_json({1: "a"})


def test_kinds_of_dict_list_and_word_are_written_as_what_they_are() -> None:
    value = OrderedDict(b=defaultdict(list, a=[State.DONE]), a=(10**20, True))

    assert canonical_json(value) == '{"a":[100000000000000000000,true],"b":{"a":["DONE"]}}'


def test_a_lone_surrogate_in_arguments_is_refused_and_not_changed_silently() -> None:
    with pytest.raises(UsageError, match="not JSON"):
        canonical_json({"a": "\ud800"})
