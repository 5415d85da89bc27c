"""Files that come with a tool's result: taken while they are there, and never a failure of it."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

MAX_ATTACHED = 16  # of one result
MAX_ATTACHED_BYTES = 32 << 20  # of all files of one result
MAX_WHY_CHARS = 200

Attachable = str | Path | tuple[str, bytes]


class Attachment(msgspec.Struct, frozen=True):
    """A file as a tool gave it. With a problem there are no bytes."""

    name: str
    data: bytes = b""
    problem: str = ""


class Attached(msgspec.Struct, frozen=True):
    """A result, and the files that come with it."""

    result: Any
    files: tuple[Attachment, ...]


def with_files(result: Any, *files: Attachable | Attachment) -> Attached:
    """Return this for a result with files: paths, or `(name, bytes)`.

    They are read now, so they may be temporary. The model is shown what is in them after the
    result: pictures as pictures, the text of others. `result` may be None. What cannot be taken is
    told in the result, since the tool has run; nothing is raised.
    """
    return Attached(result, taken(files))


def taken(files: Iterable[Attachable | Attachment]) -> tuple[Attachment, ...]:
    """The files as far as there is room for them, the others with why there is not."""
    left, found = MAX_ATTACHED_BYTES, []
    for number, file in enumerate(files):
        if number >= MAX_ATTACHED:
            found.append(Attachment("more files", problem=f"a result has at most {MAX_ATTACHED}"))
            break
        one = file if isinstance(file, Attachment) else _taken(file, left)
        if len(one.data) > left:
            one = Attachment(one.name, problem=_too_large(len(one.data)))
        left -= len(one.data)
        found.append(one)
    return tuple(found)


def _taken(file: Any, most_bytes: int) -> Attachment:
    if isinstance(file, tuple) and len(file) == 2 and isinstance(file[1], bytes | bytearray):
        size_bytes = len(file[1])
        if size_bytes > most_bytes:
            return Attachment(str(file[0]), problem=_too_large(size_bytes))
        return Attachment(str(file[0]), bytes(file[1]))
    if not isinstance(file, str | os.PathLike):
        why = f"a {type(file).__name__} is no file. Give a path, or (name, bytes)"
        return Attachment("file", problem=why)
    path = Path(file)
    try:
        return _read(path, most_bytes)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        return Attachment(path.name, problem=f"it cannot be read: {why[:MAX_WHY_CHARS]}")


def _read(path: Path, most_bytes: int) -> Attachment:
    # Without waiting: a pipe that nobody writes to would hold the tool for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return Attachment(path.name, problem="it is no regular file")
        with open(descriptor, "rb", closefd=False) as opened:
            data = opened.read(most_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > most_bytes:
        return Attachment(path.name, problem=_too_large(max(found.st_size, len(data))))
    return Attachment(path.name, data)


def _too_large(size_bytes: int) -> str:
    return f"it has {size_bytes:,} bytes; the files of a result have {MAX_ATTACHED_BYTES:,} at most"


def to_plain(files: Iterable[Attachment]) -> list[list[str]]:
    """The files as JSON has them: from one process to another."""
    return [[f.name, base64.b64encode(f.data).decode(), f.problem] for f in files]


def from_plain(told: Iterable[Any]) -> tuple[Attachment, ...]:
    """The files of `to_plain`."""
    return taken(Attachment(name, base64.b64decode(data), why) for name, data, why in told)
