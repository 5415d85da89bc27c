"""What a reader makes of a file, and how much it may take."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of one file is read. All are checked before anything is decoded."""

    file_bytes: int = 32 << 20
    files: int = 16  # of one message
    text_chars: int = 20_000  # that the model is shown; the whole file is kept beside the run
    pixels: int = 50_000_000  # of a picture, by its header
    side: int = 1_568  # of a picture for the model: more is not seen by today's ones
    pages: int = 100  # of a PDF
    pictures: int = 4  # of one PDF or film
    read_s: float = 30.0
    memory_mb: int = 1_024  # of the process that decodes


class Picture(msgspec.Struct, frozen=True, array_like=True):
    """A picture for the model, encoded as PNG or JPEG."""

    media_type: str
    data: bytes


class Reading(msgspec.Struct, frozen=True, array_like=True):
    """What is in a file. `confidence` in percent says how far the text can be relied on."""

    text: str = ""
    pictures: tuple[Picture, ...] = ()
    confidence: int = 100
    facts: dict[str, int | float | str] = {}  # pages, width, seconds …
    problem: str = ""  # why there is nothing, or not all of it


class Unreadable(Exception):
    """The file cannot be read; the message says why, for the model and the person."""


def shown(text: str, most_chars: int) -> str:
    """The beginning of `text`, with a marker that says what is missing."""
    if len(text) <= most_chars:
        return text
    return f"{text[:most_chars]}\n[… {len(text) - most_chars} more characters are not shown]"
