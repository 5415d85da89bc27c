"""Words of a call that a tool, a file or an event brought, and no person: where injections show.

A hint and no wall: a model that puts things in its own words leaves no trace here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from .content import FilesMessage, Message, NoteMessage, ToolMessage, UserMessage
from .value import Run

MAX_TAINTS = 10
MAX_SOURCE_CHARS = 2_000_000  # of the newest words that are looked through
MAX_PIECES = 200  # of one call
MAX_SHOWN = 120
LEAST_CHARS = 6  # of words that are worth a look; short ones stand everywhere
LEAST_SIGNED = 4  # of those with a digit or a sign: accounts, addresses, amounts
RUN_OF_WORDS = 6
ASKS_PEOPLE = "ask_user"  # its result is a person's answer

_SIGNED = re.compile(r"[0-9@/:\\]")
_EVENT = re.compile(r"\[event from ([^\]]*)\]")


class Taint(msgspec.Struct, frozen=True, array_like=True):
    """Words in an argument that no person of the run said."""

    path: str  # of the argument, such as `to` or `lines[0].account`
    text: str  # the words, cut after 120 characters
    source: str  # what brought them: 'the result of fetch', 'the file invoice.pdf' …


def taints(run: Run, arguments: str) -> tuple[Taint, ...]:
    """Where the canonical JSON `arguments` repeats what only tools, files or events have said.

    Looked for are whole values, words with digits or signs in them (accounts, addresses, amounts),
    and six words in a row; letters that cannot be seen, and capitals, make no difference. Trusted
    is what people say: the task, further messages, answers. Ten at the most, one for an argument
    and a source.
    """
    messages = (*run.history, *run.messages)
    sources = list(_sources(messages))
    if not sources:
        return ()
    trusted = _plain("\n".join(_said_by_people(run, messages)))
    found: dict[tuple[str, str], Taint] = {}
    for path, piece in _pieces(arguments):
        plain = _plain(piece)
        if _holds(trusted, plain):
            continue
        for source, words in sources:
            if _holds(words, plain):
                found.setdefault((path, source), Taint(path, piece[:MAX_SHOWN], source))
                break
        if len(found) >= MAX_TAINTS:
            break
    return tuple(found.values())


def in_words(taint: Taint) -> str:
    """'to: "mallory@x.example" came with the result of fetch, and no person said it'."""
    return f"{taint.path}: {taint.text!r} came with {taint.source}, and no person said it"


def _sources(messages: Iterable[Message]) -> Iterator[tuple[str, str]]:
    """What was said by nobody, the newest first: what it came with, and the words in plain form."""
    left = MAX_SOURCE_CHARS
    for message in reversed(tuple(messages)):
        for source, text in _brought(message):
            if left <= 0:
                return
            yield source, _plain(text[:left])
            left -= len(text)


def _brought(message: Message) -> Iterator[tuple[str, str]]:
    match message:
        case ToolMessage(name=name, text=text):
            if name != ASKS_PEOPLE:
                yield f"the result of {name}", text
        case FilesMessage(parts=parts):
            for part in parts:
                yield f"the file {part.file.name}", part.text
        case NoteMessage(text=text):
            if event := _EVENT.match(text):
                yield f"an event from {event[1]}", text
        case _:
            pass


def _said_by_people(run: Run, messages: Iterable[Message]) -> Iterator[str]:
    # The task of a child run is its parent's model's: neither a person's word nor a source.
    task = run.task if run.parent else None
    for message in messages:
        match message:
            case FilesMessage():
                # Its words are the files' own, in the main; what a person said with them is apart.
                continue
            case UserMessage(text=text) if text != task:
                yield text
            case ToolMessage(name=name, text=text) if name == ASKS_PEOPLE:
                yield text
            case _:
                pass


def _pieces(arguments: str) -> Iterator[tuple[str, str]]:
    """What is looked for, each with the path of its argument."""
    count = 0
    for path, value in _leaves("", msgspec.json.decode(arguments)):
        for piece in _pieces_of(value):
            if (count := count + 1) > MAX_PIECES:
                return
            yield path, piece


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}" if path else str(name), item)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(f"{path}[{number}]", item)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield path, value


def _pieces_of(value: str | int | float) -> Iterator[str]:
    if not isinstance(value, str):
        if abs(value) >= 1000:
            yield str(value)
        return
    words = value.split()
    if len(words) <= RUN_OF_WORDS and _is_telling(value.strip()):
        yield value.strip()
    for word in words:
        bare = word.strip(".,;!?()[]{}<>\"'“”‘’")
        if len(words) > 1 and _SIGNED.search(bare) and _is_telling(bare):
            yield bare
    for at in range(len(words) - RUN_OF_WORDS):
        yield " ".join(words[at : at + RUN_OF_WORDS])


def _is_telling(text: str) -> bool:
    return len(text) >= (LEAST_SIGNED if _SIGNED.search(text) else LEAST_CHARS)


def _holds(words: str, piece: str) -> bool:
    """Whether a piece stands in the words, and not in the middle of a longer one."""
    at = words.find(piece) if piece else -1
    while at >= 0:
        end = at + len(piece)
        is_begun = at > 0 and words[at - 1].isalnum() and piece[0].isalnum()
        goes_on = end < len(words) and words[end].isalnum() and piece[-1].isalnum()
        if not (is_begun or goes_on):
            return True
        at = words.find(piece, at + 1)
    return False


def _plain(text: str) -> str:
    """Without what cannot be seen, without capitals, with single spaces."""
    text = unicodedata.normalize("NFKC", text)
    if not text.isascii():
        text = "".join(c for c in text if unicodedata.category(c) != "Cf")
    return " ".join(text.casefold().split())
