"""What a tool may return besides a value: an end, a question, half a result, sources, files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fsm_agent.run.content import Source, clean_text

from .attachments import Attached, Attachment, taken

MAX_SOURCES = 50  # of one result
MAX_TITLE_CHARS = 300
MAX_URL_CHARS = 2000
MAX_SPAN_CHARS = 2000


class Terminate(msgspec.Struct, frozen=True):
    """The run is over, and `content` is its answer."""

    content: Any


class Pause(msgspec.Struct, frozen=True):
    """The user has to be asked first; the answer is the call's result."""

    question: str
    options: tuple[str, ...] = ()


class Partial(msgspec.Struct, frozen=True):
    """A result that is not all of it."""

    result: Any
    why: str


class Sourced(msgspec.Struct, frozen=True):
    """A result, and where it comes from."""

    result: Any
    sources: tuple[Source, ...]


def terminate(content: Any) -> Terminate:
    """Return this to end the run with `content` as its answer, once no other call is open."""
    return Terminate(content)


def pause(question: str, *, options: tuple[str, ...] = ()) -> Pause:
    """Return this to ask the user; the run waits, and the answer becomes the call's result."""
    return Pause(clean_text(str(question)), tuple(clean_text(str(o)) for o in options))


def partial(result: Any, why: str) -> Partial:
    """Return this for a result that is incomplete; the model is told why."""
    return Partial(result, why)


def with_sources(result: Any, *sources: Source | Mapping[str, str] | str) -> Sourced:
    """Return this for a result with its sources: `Source`, a dict of its fields, or an address.

    They are collected in the run and shown with its answer; `MAX_SOURCES` of one result at most.
    """
    return Sourced(result, tuple(map(_source, sources[:MAX_SOURCES])))


def _source(given: Source | Mapping[str, str] | str) -> Source:
    if isinstance(given, str):
        given = Source(given, given)
    read = given.get if isinstance(given, Mapping) else lambda name, other: getattr(given, name)
    title, url, span = (clean_text(str(read(name, "") or "")) for name in ("title", "url", "span"))
    title = title or url
    return Source(title[:MAX_TITLE_CHARS], url[:MAX_URL_CHARS], span[:MAX_SPAN_CHARS])


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool returned, taken apart. With a `pause` there is no value."""

    value: Any = None
    why_partial: str | None = None
    ends: bool = False
    pause: Pause | None = None
    sources: tuple[Source, ...] = ()
    files: tuple[Attachment, ...] = ()


def opened(value: Any) -> Opened:
    """Take a returned value apart: outcomes may stand inside of each other."""
    found = Opened(value=value)
    while True:
        match found.value:
            case Terminate(content):
                found = msgspec.structs.replace(found, value=content, ends=True)
            case Partial(result, why):
                why = clean_text(str(why))
                found = msgspec.structs.replace(found, value=result, why_partial=why)
            case Sourced(result, sources):
                every = (*found.sources, *sources)[:MAX_SOURCES]
                found = msgspec.structs.replace(found, value=result, sources=every)
            case Attached(result, files):
                every_file = taken((*found.files, *files))
                found = msgspec.structs.replace(found, value=result, files=every_file)
            case Pause() as question:
                return Opened(pause=question, sources=found.sources)
            case _:
                return found
