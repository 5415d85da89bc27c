"""Any file to what a model can be shown of it: never an error, no decoder in this process."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import msgspec

from fsm_agent.run.content import clean_text

from . import text
from .reading import Limits, Reading
from .sniff import Type

# The reader finds our modules where this process does, also without an installation.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from fsm_agent.observations.apart import main; main()"
)
_readings = msgspec.msgpack.Decoder(Reading)


async def read(data: bytes, found: Type, limits: Limits) -> Reading:
    """What is in the file. What cannot be read is a Reading that says why."""
    if not data:
        return Reading(confidence=0, problem="it is empty")
    if len(data) > limits.file_bytes:
        why = f"it has {len(data):,} bytes, at most {limits.file_bytes:,} are read"
        return Reading(confidence=0, problem=why)
    if found.kind == "unknown":
        why = f"files of type {found.media_type} are not read"
        return Reading(confidence=0, problem=why)
    if found.kind == "text":
        return _clean(text.read(data, limits))
    try:
        async with asyncio.timeout(limits.read_s):
            return _clean(await _read_apart(data, found.kind, limits))
    except TimeoutError:
        return Reading(confidence=0, problem=f"it takes longer than {limits.read_s:g} s to read")


async def _read_apart(data: bytes, kind: str, limits: Limits) -> Reading:
    # A clean environment: a parser that is taken over finds no keys in it.
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", _BOOT, json.dumps(sys.path), kind,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, env=kept, start_new_session=True,
    )  # fmt: skip
    try:
        head = msgspec.msgpack.encode(limits).hex().encode() + b"\n"
        said, _ = await process.communicate(head + data)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        return _readings.decode(said)
    except (msgspec.MsgspecError, ValueError):
        return Reading(confidence=0, problem="reading it ended its reader: it may be damaged")


def _clean(reading: Reading) -> Reading:
    facts = {
        name: clean_text(fact) if isinstance(fact, str) else fact
        for name, fact in reading.facts.items()
    }
    return msgspec.structs.replace(
        reading, text=clean_text(reading.text), problem=clean_text(reading.problem), facts=facts
    )
