"""How records become bytes and come back: one format, a schema number, no fallback.

The first byte is the schema number. From number 2 on the version of this package that wrote the
record follows, as a msgpack string: so an older one, which cannot read what comes then, can still
say who wrote it. New kinds of facts and new fields with a default need no new number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from typing import Any, get_args

import msgspec

from fsm_agent.errors import CorruptRecord, NewerRecord

from .delta import AnyDelta
from .record import Record
from .state import State

SCHEMA = 1  # runs of every number are kept in tests/recorded
NAMES_ITS_WRITER = 2  # the first number whose records say which version wrote them

Upgrade = Callable[[Any], Any]

# From each number to the next: takes and returns the record as plain lists and values.
UPGRADES: dict[int, Upgrade] = {}

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)
_text = msgspec.msgpack.Decoder(str)
_facts = msgspec.msgpack.Decoder(tuple[msgspec.Raw, msgspec.Raw, list[list[msgspec.Raw]]])


class Format:
    """A schema number, with the way from all numbers before it."""

    def __init__(self, schema: int, upgrades: Mapping[int, Upgrade]) -> None:
        self.schema, self._upgrades = schema, upgrades

    def encode(self, record: Record) -> bytes:
        """The bytes of a record: the schema number, its writer, then msgpack."""
        plain = _begun(record) if record.trigger is None else record
        return self._head() + _encoder.encode(plain)

    def _head(self) -> bytes:
        writer = _encoder.encode(version()) if self.schema >= NAMES_ITS_WRITER else b""
        return bytes((self.schema,)) + writer

    def decode(self, body: bytes) -> Record:
        """The record of `body`, brought up to the present schema.

        Raises NewerRecord for what a newer version wrote, and CorruptRecord for anything else.
        """
        if not body:
            raise CorruptRecord("an empty entry")
        number = body[0]
        if number > self.schema:
            raise _newer(number, self.schema, _writer(body))
        try:
            packed = _after_head(body)
            if number == self.schema:
                return _decoder.decode(packed)
            return self._upgraded(msgspec.msgpack.decode(packed), number)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            if unknown := _unknown(body, error):
                raise NewerRecord(
                    f"it holds {unknown}, which fsm-agent {version()} does not know: a newer"
                    " version wrote it. Upgrade this one"
                ) from error
            raise CorruptRecord(str(error)) from error

    def _upgraded(self, plain: Any, number: int) -> Record:
        for step in range(number, self.schema):
            if step not in self._upgrades:
                raise CorruptRecord(f"there is no upgrade from schema {step}")
            try:
                plain = self._upgrades[step](plain)
            except (LookupError, TypeError, ValueError) as error:
                raise CorruptRecord(f"it is no record of schema {step}: {error!r}") from error
        return msgspec.convert(plain, Record)


def _begun(record: Record) -> Any:
    """The first entry of a run: limits that are not set since there are others stay out of it.

    So the same start is the same bytes, whichever version of this code is asked to make it.
    """
    plain = msgspec.to_builtins(record, builtin_types=(bytes,))
    for delta in plain[-1]:
        if delta[0] == "created" and delta[3][-1] is None:
            del delta[3][-1]
    return plain


def _newer(number: int, readable: int, writer: str = "") -> NewerRecord:
    who = f"fsm-agent {writer}" if writer else "a newer version of fsm-agent"
    return NewerRecord(
        f"{who} wrote it with schema {number}, and fsm-agent {version()} reads up to {readable}."
        " Upgrade this one"
    )


@cache
def version() -> str:
    """The version of this package."""
    try:
        return metadata.version("fsm-agent")
    except metadata.PackageNotFoundError:
        return "of a checkout"


def _after_head(body: bytes) -> memoryview:
    """The packed record behind the schema number and the name of its writer."""
    packed = memoryview(body)[1:]
    if body[0] < NAMES_ITS_WRITER:
        return packed
    return packed[_text_size(packed) :]


def _text_size(packed: memoryview) -> int:
    """Bytes of the short msgpack string that `packed` begins with. Raises ValueError."""
    first = packed[0] if packed else 0
    if first & 0xE0 == 0xA0:
        return 1 + (first & 0x1F)
    if first == 0xD9 and len(packed) > 1:
        return 2 + packed[1]
    raise ValueError("the version that wrote it is missing")


def _writer(body: bytes) -> str:
    """The version that wrote a newer record, as far as it says so."""
    packed = memoryview(body)[1:]
    try:
        named = _text.decode(packed[: _text_size(packed)])
    except (msgspec.MsgspecError, ValueError):
        return ""
    return named if named.isprintable() else ""


def _unknown(body: bytes, error: Exception) -> str:
    """What of a well-formed record this version has no name for; '' if that is not the matter.

    The store has checked the bytes against their hash: a name that is not known is no damage.
    """
    if not isinstance(error, msgspec.ValidationError):
        return ""
    if (said := str(error)).startswith("Invalid enum value "):
        return said.removeprefix("Invalid enum value ").partition(" - ")[0]
    try:
        _, _, facts = _facts.decode(_after_head(body))
        tags = [_text.decode(fact[0]) for fact in facts if fact]
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return ""
    return next((f"the fact {tag!r}" for tag in tags if tag not in _TAGS), "")


_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(AnyDelta))
_FORMAT = Format(SCHEMA, UPGRADES)
encode, decode = _FORMAT.encode, _FORMAT.decode


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
    tenant: str = ""
    priority: int = 0
    thread: str = ""


_snapshot_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot, with the schema number."""
    return bytes((SCHEMA,)) + _encoder.encode(snapshot)


def decode_snapshot(body: bytes) -> Snapshot:
    """The snapshot of `body`. Raises CorruptRecord."""
    if not body:
        raise CorruptRecord("an empty snapshot")
    if body[0] > SCHEMA:
        raise _newer(body[0], SCHEMA)
    try:
        return _snapshot_decoder.decode(memoryview(body)[1:])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise CorruptRecord(str(error)) from error
