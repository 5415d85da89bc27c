"""What a model is shown of a tool's result or failure."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from fsm_agent.run.content import clean_text

from .attachments import Attachment

MAX_CAUSE_CHARS = 500
MAX_FULL_BYTES = 64 * 2**20

_CONTROLS = {code: " " for code in (*range(32), *range(127, 160))}


class Shown(msgspec.Struct, frozen=True):
    """The text for the model, and the bytes of the whole where the text was cut."""

    text: str
    full: bytes | None = None


class Reported(Exception):
    """A failure that was told in words, by a tool's own process or by another server."""

    def __init__(self, cause: str, *, may_pass: bool) -> None:
        super().__init__(cause)
        self.cause, self.may_pass = cause, may_pass


class Died(Exception):
    """A tool's process that ended without a result: how far it came is not known."""


class CannotShow(Exception):
    """A result that is no text and no JSON. The tool has run nevertheless."""


def show(value: Any, max_chars: int) -> Shown:
    """The text of a result. Raises CannotShow.

    Text stays as it is, None becomes '(no result)', anything else JSON, in the order it has.
    """
    text = clean_text(text_of(value))
    if len(text) <= max_chars:
        return Shown(text)
    return Shown(shortened(text, max_chars), _kept(text))


def text_with(value: Any, files: Sequence[Attachment]) -> str:
    """The text of a result with files: it may be nothing else. Raises CannotShow."""
    return "" if value is None and files else text_of(value)


def text_of(value: Any) -> str:
    if value is None:
        return "(no result)"
    if isinstance(value, str):
        return str.__str__(value)  # a subclass may have ideas of its own
    if isinstance(value, bytes | bytearray | memoryview):
        raise CannotShow(
            "it returned bytes. Return text, with_files(text, (name, bytes)) for a file, or bytes"
            " inside a dict (sent as base64)"
        )
    if inspect.iscoroutine(value):
        value.close()
        raise CannotShow("it returned a coroutine. Declare the tool with `async def`")
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_foreign)
        return json.dumps(plain, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise CannotShow("its result is nested too deeply, or contains itself") from None
    except Exception as error:  # the value's own code may run here, and the tool has run already
        why = "NaN and infinity are not JSON" if "Out of range float" in str(error) else str(error)
        raise CannotShow(f"its result, a {type(value).__name__}, is not JSON: {why}") from error


def _foreign(value: Any) -> Any:
    """Pydantic models know their own plain form."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def shortened(text: str, max_chars: int) -> str:
    """Head and tail, as the end of a log says how it ended."""
    marker = f"\n[… {len(text) - max_chars:,} of {len(text):,} characters cut …]\n"
    room = max_chars - len(marker) - 4  # the marker's own room is cut from the text as well
    head = room * 3 // 4
    tail = room - head
    cut = len(text) - head - tail
    return f"{text[:head]}\n[… {cut:,} of {len(text):,} characters cut …]\n{text[-tail:]}"


def _kept(text: str) -> bytes:
    whole = text.encode()
    if len(whole) <= MAX_FULL_BYTES:
        return whole
    note = f"\n[… cut: the result had {len(whole):,} bytes, {MAX_FULL_BYTES:,} are kept]"
    head = whole[:MAX_FULL_BYTES].decode(errors="ignore")  # not in the middle of a character
    return (head + note).encode()


def cause_of(error: BaseException) -> str:
    """The short true cause: `TypeError: first line of the message`, at most 500 characters."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, Reported):
        return _brief(error.cause)
    lines = _message(error).strip().splitlines()
    first = clean_text(lines[0]).translate(_CONTROLS).strip() if lines else ""
    return _brief(f"{type(error).__name__}: {first}" if first else type(error).__name__)


def _brief(text: str) -> str:
    return text if len(text) <= MAX_CAUSE_CHARS else text[: MAX_CAUSE_CHARS - 1] + "…"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide that the tool failed
        return ""
