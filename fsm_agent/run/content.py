"""What messages are made of: the words of user, model and tools, as plain frozen values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from fsm_agent.errors import UsageError

ResultStatus = Literal[
    "success",
    "error",
    "timeout",
    "partial",
    "denied",
    "expired",
    "duplicate",
    "in_doubt",
    "cancelled",
]
EffectClass = Literal["read", "idempotent", "keyed", "probed", "unsafe"]

MAX_DEPTH = 200  # of arguments; what reads them later may take several frames a level
MAX_INNER = 1_000_000  # objects and arrays in arguments
_PLAIN = frozenset({str, int, bool, type(None)})


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one model call, as billed; `is_estimate` where the provider gave none."""

    prompt_tokens: int
    completion_tokens: int
    is_estimate: bool = False

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A tool call that the model asked for.

    `call_id` is ours, from the journal position, unique in the run. `arguments` is canonical JSON
    of an object, or what the model wrote where `problem` says that it is no such thing.
    """

    call_id: str
    name: str
    arguments: str
    problem: str | None = None  # why the call must not run, in words for the model


class Source(msgspec.Struct, frozen=True, array_like=True):
    """Where a tool's result comes from: a page or file, and which part of it."""

    title: str
    url: str = ""
    span: str = ""  # the words that the result rests on


class Image(msgspec.Struct, frozen=True, array_like=True):
    """A picture, by its address or as bytes of a media type such as ``image/png``."""

    url: str = ""
    data: bytes = b""
    media_type: str = ""


class UserMessage(msgspec.Struct, frozen=True, array_like=True, tag="user"):
    """What a person, or the runtime on their behalf, says to the model."""

    text: str


class IllustratedMessage(UserMessage, frozen=True, array_like=True, tag="illustrated"):
    """A user's message with pictures. A model that cannot see them is told that there were some."""

    images: tuple[Image, ...] = ()


PartKind = Literal["text", "image", "pdf", "audio", "video", "unknown"]


class File(msgspec.Struct, frozen=True, array_like=True):
    """A file that somebody or a tool gave, not read yet. Its bytes are a blob of the run."""

    name: str
    digest: str
    size_bytes: int
    origin: str = ""  # the tool whose result it came with; '': a person gave it


class Picture(msgspec.Struct, frozen=True, array_like=True):
    """A picture for the model, whose bytes are a blob of the run."""

    digest: str
    media_type: str


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was understood, by its bytes and not by its name."""

    file: File
    kind: PartKind
    media_type: str
    text: str = ""  # what of it can be read, perhaps cut
    pictures: tuple[Picture, ...] = ()  # what of it can be looked at
    confidence: int = 100  # in percent: how far the text can be relied on
    facts: dict[str, int | float | str] = {}  # pages, width, seconds …
    problem: str = ""  # why there is nothing, or not all of it

    def __hash__(self) -> int:
        # Messages are kept by their hash, and a dict has none.
        return hash((self.file, self.kind, self.text, self.pictures, self.problem))


class FilesMessage(UserMessage, frozen=True, array_like=True, tag="files"):
    """Files of a user or of tools, in words. Pictures are put in when the model is asked."""

    parts: tuple[Part, ...] = ()

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Those of all parts."""
        return tuple(picture for part in self.parts for picture in part.pictures)

    @property
    def is_from_tools(self) -> bool:
        """Whether nobody but tools gave them: then no person said anything here."""
        return bool(self.parts) and all(part.file.origin for part in self.parts)


class AssistantMessage(msgspec.Struct, frozen=True, array_like=True, tag="assistant"):
    """A reply of the model. `label` is kept so that the model sees its own format."""

    label: str | None
    text: str
    calls: tuple[Call, ...] = ()
    reasoning: str = ""  # kept only where the provider wants it back


class SignedMessage(AssistantMessage, frozen=True, array_like=True, tag="signed_assistant"):
    """A reply of which the provider signed something, and wants it back as it came."""

    replay: str = ""  # JSON, see fsm_agent.llm.signatures


class ToolMessage(msgspec.Struct, frozen=True, array_like=True, tag="tool"):
    """The result of one call. Every call of an assistant message has exactly one."""

    call_id: str
    name: str
    text: str
    status: ResultStatus = "success"


class NoteMessage(msgspec.Struct, frozen=True, array_like=True, tag="note"):
    """The runtime speaking to the model: a correction, a warning, the order to finish."""

    text: str


Message = (
    UserMessage
    | IllustratedMessage
    | FilesMessage
    | AssistantMessage
    | SignedMessage
    | ToolMessage
    | NoteMessage
)


def clean_text(text: str) -> str:
    """`text` with lone surrogates replaced by U+FFFD, so that it can be encoded and restored."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean_json(value: Any) -> Any:
    """`value`, made of JSON's types, with every string of it cleaned."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    if isinstance(value, dict):
        return {clean_json(key): clean_json(item) for key, item in value.items()}
    return value


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no blanks. Equal values give equal text.

    Raises UsageError for NaN and infinities, which msgspec would silently turn into null, for
    anything that is not JSON, and for what is nested more than MAX_DEPTH deep or without an end.
    """
    try:
        _refuse_foreign(value, MAX_DEPTH, itertools.count())
        return msgspec.json.encode(value, order="deterministic").decode()
    except (TypeError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise UsageError(f"the value is not JSON: {error}") from error
    except RecursionError as error:  # who asks stands deep in a stack already
        raise UsageError("the value is nested too deeply.") from error


def _refuse_foreign(value: Any, levels: int, inner: Iterator[int]) -> None:
    """Raises UsageError for what msgspec would encode, but JSON cannot say: bytes, sets, dates.

    `levels` is how many may be below, and `inner` counts the objects and arrays: a few that hold
    each other twice are a text without an end at no great depth.
    """
    kind = type(value)
    if kind in _PLAIN:
        return
    if kind is float:
        if value - value != 0:  # so of NaN and the infinities alone
            raise UsageError(f"{value} is not a JSON number. Use a finite number or null.")
        return
    if not levels:
        raise UsageError(f"the value is nested more than {MAX_DEPTH} deep, or holds itself.")
    if next(inner) >= MAX_INNER:
        raise UsageError(f"the value holds more than {MAX_INNER:,} objects and arrays.")
    for item in _items(value, kind):
        if type(item) not in _PLAIN:
            _refuse_foreign(item, levels - 1, inner)


def _items(value: Any, kind: type) -> Iterable[Any]:
    """What an object or array holds; nothing for a word of an enum. Raises UsageError."""
    if kind is list or kind is tuple:
        return value  # type: ignore[no-any-return]
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (str, int)):
        return ()
    raise UsageError(
        f"a {kind.__name__} is not JSON. Use dict, list, str, int, float, bool and None."
    )
