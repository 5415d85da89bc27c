"""The process that decodes a file: a parser that crashes, hangs or swells is its end, not ours.

Its first argument is the kind of the file: limits as msgpack on the first line of
stdin (in hex), the file after it; the Reading as msgpack on stdout.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys

import msgspec

from .reading import Limits, Reading, Unreadable

READERS = {"image": "image", "pdf": "pdf", "audio": "media", "video": "media"}
NEEDS = {"image": "pillow", "pdf": "pypdfium2", "media": "av"}


def main() -> None:
    """Read the file and say what is in it."""
    stdin, out = sys.stdin.buffer, os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    line = stdin.readline()
    limits = msgspec.msgpack.decode(bytes.fromhex(line.decode()), type=Limits)
    _limit(limits)
    with os.fdopen(out, "wb") as channel:
        channel.write(msgspec.msgpack.encode(reading_of(sys.argv[1], stdin.read(), limits)))


def reading_of(kind: str, data: bytes, limits: Limits) -> Reading:
    """What is in the file; a problem where it cannot be read."""
    name = READERS[kind]
    try:
        reader = importlib.import_module(f"fsm_agent.observations.{name}")
    except ImportError:
        why = f"reading it needs {NEEDS[name]}: pip install 'fsm-agent[files]'"
        return Reading(confidence=0, problem=why)
    try:
        reading: Reading = reader.read(data, limits)
    except Unreadable as error:
        return Reading(confidence=0, problem=str(error))
    except MemoryError:
        return Reading(confidence=0, problem=f"it takes more than {limits.memory_mb} MB to read")
    except Exception as error:  # at the edge of the process: any parser fault is the file's
        words = f"{type(error).__name__}: {error}"[:200]
        return Reading(confidence=0, problem=f"it cannot be read ({words})")
    return reading


def _limit(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = int(limits.read_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        size = limits.memory_mb << 20
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
