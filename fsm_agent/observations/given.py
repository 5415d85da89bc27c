"""Files as a caller gives them: paths, or bytes with a name."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from fsm_agent.errors import UsageError

from .reading import Limits

MAX_NAME_CHARS = 120
Givable = str | Path | tuple[str, bytes]


def load(files: Sequence[Givable], limits: Limits) -> list[tuple[str, bytes]]:
    """Name and bytes of each. Nothing is fetched: an address is not a path.

    Raises UsageError for a path that leads to no file, too many of them, and one that is too large.
    """
    if isinstance(files, (str, Path)):
        raise UsageError(f"files is {str(files)!r}. Give a list of paths, or of (name, bytes).")
    if len(files) > limits.files:
        raise UsageError(f"{len(files)} files were given, a message has at most {limits.files}.")
    return [_loaded(file, limits) for file in files]


def _loaded(file: Givable, limits: Limits) -> tuple[str, bytes]:
    if isinstance(file, tuple):
        name, data = file
        _check_size(name, len(data), limits)
        return safe_name(name), bytes(data)
    path = Path(file).expanduser()
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no file"
        raise UsageError(f"{str(file)!r} is {what}. Give the path of a file.")
    try:
        _check_size(str(file), path.stat().st_size, limits)
        with path.open("rb") as opened:
            data = opened.read(limits.file_bytes + 1)
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error.strerror}.") from error
    _check_size(str(file), len(data), limits)  # it may have grown
    return safe_name(path.name), data


def _check_size(name: str, size_bytes: int, limits: Limits) -> None:
    if size_bytes > limits.file_bytes:
        raise UsageError(
            f"{name!r} has {size_bytes:,} bytes, at most {limits.file_bytes:,} are taken. "
            "Put it where a tool can read it."
        )


def safe_name(name: str) -> str:
    """The last part of a name, on one line and without characters that show as something else."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    kept = "".join(c if unicodedata.category(c)[0] not in "CZ" or c == " " else "_" for c in last)
    kept = kept.replace("[", "(").replace("]", ")").strip()
    return kept[-MAX_NAME_CHARS:] or "file"
