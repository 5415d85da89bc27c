"""How records become bytes and come back: one format, a schema number, no fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fsm_agent.errors import CorruptRecord

from .record import Record
from .state import State

SCHEMA = 1  # the first byte of every stored record; runs of every number are kept in tests/recorded

# From each number to the next: takes and returns the record as plain lists and values.
UPGRADES: dict[int, Callable[[Any], Any]] = {}

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """The bytes of a record: the schema number, then msgpack."""
    return bytes((SCHEMA,)) + _encoder.encode(record)


def decode(body: bytes) -> Record:
    """The record of `body`, brought up to the present schema.

    Raises CorruptRecord for anything else, and for a schema that is newer than this code.
    """
    if not body:
        raise CorruptRecord("an empty entry")
    number, packed = body[0], memoryview(body)[1:]
    if number > SCHEMA:
        raise CorruptRecord(f"schema {number} is newer than this version knows ({SCHEMA}): upgrade")
    try:
        if number == SCHEMA:
            return _decoder.decode(packed)
        return _upgraded(msgspec.msgpack.decode(packed), number)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise CorruptRecord(str(error)) from error


def _upgraded(plain: Any, number: int) -> Record:
    for step in range(number, SCHEMA):
        if step not in UPGRADES:
            raise CorruptRecord(f"there is no upgrade from schema {step}")
        plain = UPGRADES[step](plain)
    return msgspec.convert(plain, Record)


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """What lists show of a run without reading its journal: of constant size."""

    agent: str
    title: str
    state: State
    turns: int
    spent_tokens: int
    asks: tuple[str, ...]
    ending: str  # the answer's first line, or why there is none
    parent: str = ""  # the run that this one works for
    children: tuple[str, ...] = ()  # those that work for it, as far as they are not over


_snapshot_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot, with the schema number."""
    return bytes((SCHEMA,)) + _encoder.encode(snapshot)


def decode_snapshot(body: bytes) -> Snapshot:
    """The snapshot of `body`. Raises CorruptRecord."""
    if not body or body[0] > SCHEMA:
        raise CorruptRecord("a snapshot of an unknown schema")
    try:
        return _snapshot_decoder.decode(memoryview(body)[1:])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise CorruptRecord(str(error)) from error
