"""Runs as lines of a file, and whether such a file still says what was exported.

Each entry stands there twice: as facts to read, and as the bytes that the hash chain is made of.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from checkpoints.chain import genesis, link
from checkpoints.model import Head, RunId
from checkpoints.store import Store
from fsm_agent import archive
from fsm_agent.cli import asjson
from fsm_agent.cli.asjson import JsonObject
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.event import EntryEvent
from fsm_agent.run.record import Run, apply

VERSION = 2


class Tampered(Exception):
    """A line of an export that does not fit those before it. The text says which, and why."""


async def lines_of(store: Store, head: Head) -> list[JsonObject]:
    """A run: its head, every entry with its bytes, large outputs, and the end of its chain.

    The chain is over what was decrypted: it is that of `audit` where the store is not encrypted.
    Raises RunNotFound or CorruptEntry.
    """
    run_id = head.run_id
    begin: JsonObject = {**asjson.head(head), "event": "export", "version": VERSION}
    lines = [begin | {"digest": _digest(begin)}]
    chain, digests = genesis(run_id), []
    pages = await archive.history(store, run_id)
    for entry, event in pages:
        chain = link(chain, entry.seq, entry.body)
        body = base64.b64encode(entry.body).decode()
        lines.append(asjson.event(event) | {"chain": chain.hex(), "body": body})
        digests += [d for d in (getattr(f, "blob", "") for f in event.record.deltas) if d]
    for digest in dict.fromkeys(digests):
        data = await store.get_blob(RunId(run_id), digest)
        if data is not None:
            shown = base64.b64encode(data).decode()
            lines.append({"event": "blob", "run_id": run_id, "digest": digest, "data": shown})
    blobs = len(lines) - 1 - len(pages)
    end = {"event": "end", "run_id": run_id, "entries": len(pages), "blobs": blobs,
           "chain": chain.hex()}  # fmt: skip
    return [*lines, end]


def _digest(begin: JsonObject) -> str:
    """Of a run's first line, whose times and owner no entry tells."""
    told = {name: value for name, value in begin.items() if name != "digest"}
    return hashlib.sha256(asjson.line(told).encode(errors="surrogatepass")).hexdigest()


def _once(pairs: list[tuple[str, Any]]) -> JsonObject:
    """An object of JSON. Of two fields with one name, readers would see either."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field stands there twice")
    return found


def verify(lines: Iterable[bytes | str]) -> Iterator[tuple[str, int]]:
    """The id and the number of entries of each run in an export that is as it was written.

    Raises Tampered at the first line that is not, or for an end that is missing.
    """
    reading: _Reading | None = None
    number = 0
    for number, raw in enumerate(lines, 1):
        try:
            line = json.loads(raw, object_pairs_hook=_once)
            kind = line["event"]
            if kind == "export":
                if reading:
                    raise Tampered(f"run {reading.run_id!r} has no end before it")
                reading = _Reading(line)
            elif reading is None or line["run_id"] != reading.run_id:
                raise Tampered("it belongs to no run that began before it")
            elif kind == "entry":
                reading.entry(line)
            elif kind == "blob":
                reading.blob(line)
            elif kind == "end":
                reading.end(line)
                yield reading.run_id, reading.run.seq
                reading = None
            else:
                raise Tampered(f"there is no kind of line called {kind!r}")
        except Tampered as error:
            raise Tampered(f"line {number}: {error}.") from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Tampered(f"line {number}: it is no line of an export ({error}).") from error
    if reading:
        raise Tampered(f"line {number + 1}: run {reading.run_id!r} has no end.")
    if not number:
        raise Tampered("line 1: there is nothing in it.")


class _Reading:
    """One run of an export, as far as it was read."""

    def __init__(self, line: JsonObject) -> None:
        if line["version"] != VERSION:
            raise Tampered(f"version {line['version']} is not one that this program reads")
        if line["digest"] != _digest(line):
            raise Tampered(f"what it says of run {str(line['run_id'])!r} was changed")
        self.run_id = str(line["run_id"])
        self._blobs = 0
        self.run = Run(run_id=self.run_id)
        self._chain = genesis(self.run_id)

    def entry(self, line: JsonObject) -> None:
        seq = self.run.seq + 1
        if line["seq"] != seq:
            raise Tampered(f"entry {line['seq']} stands where entry {seq} belongs")
        body = base64.b64decode(line["body"], validate=True)
        self._chain = link(self._chain, seq, body)
        if line["chain"] != self._chain.hex():
            raise Tampered(f"the bytes of entry {seq} do not match their hash")
        try:
            record = codec.decode(body)
            self.run = apply(self.run, record)
        except (CorruptRecord, KeyError) as error:
            raise Tampered(f"entry {seq} cannot be read ({error})") from error
        shown = asjson.event(EntryEvent(self.run_id, seq, self.run.state, record))
        told = {name: value for name, value in line.items() if name not in ("chain", "body")}
        if json.loads(asjson.line(shown)) != told:
            raise Tampered(f"the facts of entry {seq} are not those of its bytes")

    def blob(self, line: JsonObject) -> None:
        data = base64.b64decode(line["data"], validate=True)
        if hashlib.sha256(data).hexdigest() != line["digest"]:
            raise Tampered("the bytes of a blob do not match its digest")
        self._blobs += 1

    def end(self, line: JsonObject) -> None:
        found: dict[str, Any] = {"entries": self.run.seq, "chain": self._chain.hex()}
        if {name: line[name] for name in found} != found:
            raise Tampered(f"run {self.run_id!r} ends at another entry than it says")
        if line["blobs"] != self._blobs:
            raise Tampered(f"run {self.run_id!r} had {line['blobs']} blobs, not {self._blobs}")
