"""What one turn did, in forms that tell whether a later turn does the same again."""

from __future__ import annotations

import hashlib
import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from posixpath import normpath
from typing import Any

import msgspec

from .content import Call, ResultStatus
from .delta import Replied, Settled

LOOKED_AT = (400, 300)  # characters of the beginning and the end of a long text that are compared
SKETCH = 48  # values that stand for a text's words
ALIKE = 0.75  # texts that share so much say the same
FAILED: tuple[ResultStatus, ...] = ("error", "timeout", "denied", "expired", "cancelled")

# Begins with a digit: the search then skips over everything else at the speed of C.
_FIGURE = re.compile(r"[0-9][0-9a-fA-FxTZ:.,+-]*(?: ?(?:ms|µs|us|ns|s|secs?|seconds?)\b)?")
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"  # a date
    r"|\d{1,2}:\d\d:\d\d(?:[.,]\d+)?Z?"  # a time of day
    r"|\d+(?:[.,]\d+)? ?[a-zµ]*s(?:econds?|ecs?)?"  # a duration
    r"|1\d{9}(?:\d{3})?(?:\.\d+)?"  # seconds or milliseconds since 1970
    r"|0x[0-9a-fA-F]+"
)
_HEX = re.compile(r"[0-9a-fA-F-]*")
_HEX_LETTERS = frozenset("abcdefABCDEF")
_ID = "\0"  # stands for the rest of an id until its beginning is gone too
_ID_BEGINNING = re.compile(f"[a-fA-F]*{_ID}[0-9a-zA-Z-]*")
MIN_ID = 8  # hexadecimal digits, one of them a letter
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_]+", re.UNICODE)
_NUMBER = re.compile(r"\d+")
_PATH = re.compile(r"\S*[/\\]\S*|\.")
MAX_END = 200  # characters of a result that says that there is no more
_END = re.compile(
    r"\b(?:no (?:more|further)|nothing (?:more|further|left)|end of"
    r"|(?:past|beyond|after) the (?:end|last)|out of (?:range|bounds)|last page"
    r"|page \d+ does not exist)\b"
    r"|^\W*(?:\w+\W+)?\[\s*\]\W*$"  # an empty list, perhaps under a name
    r"|没有更多|超出范围|最后一页",
    re.IGNORECASE,
)
_PLACE = re.compile(
    r"(?:.*_)?(?:page|offset|skip|start|cursor|from|index)(?:_.*|no|num|number)?", re.IGNORECASE
)
_PROSE = re.compile(r"[^\W_]{3,}(?:[\s,.:;?!'\"()-]+[^\W_]{3,})+[\s.:?!]*")

Sketch = Sequence[int]


class Did(msgspec.Struct, frozen=True):
    """One call and what came of it, as small values: a live run holds them for many turns."""

    tool: str
    what: int  # equal for calls that ask the same in other words
    outcome: int  # equal for results that say the same at another time
    sketch: Sketch  # of the result
    is_failure: bool


class Step(msgspec.Struct, frozen=True, dict=True):
    """A reply and the results of its calls. Its forms are computed once, when they are needed."""

    reply: Replied
    results: tuple[Settled, ...] = ()
    files: tuple[tuple[str, str], ...] = ()  # that came with results: id of the call, digest

    @cached_property
    def did(self) -> tuple[Did, ...]:
        """The calls that have a result, in their order."""
        results = {result.call_id: result for result in self.results}
        return tuple(
            _did(call, result, [d for call_id, d in self.files if call_id == call.call_id])
            for call in self.reply.calls
            if (result := results.get(call.call_id)) is not None
        )

    @cached_property
    def asked(self) -> tuple[tuple[str, int], ...]:
        """Tool and digest of each call, in an order of their own."""
        return tuple(sorted((did.tool, did.what) for did in self.did))

    @cached_property
    def failed(self) -> tuple[tuple[str, int], ...]:
        """Those of the calls that failed."""
        return tuple((did.tool, did.what) for did in self.did if did.is_failure)

    @cached_property
    def _was_refused(self) -> bool:
        """Whether a call was answered without being made, since another one did the same."""
        return any(result.status == "duplicate" for result in self.results)

    @cached_property
    def sketch(self) -> Sketch:
        """Of the text."""
        return sketch(self.reply.text)

    @cached_property
    def numbers(self) -> tuple[str, ...]:
        """Those in the text, in their order."""
        return tuple(_NUMBER.findall(shortened(self.reply.text)))

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for steps that do the same with the same outcome, or say the same."""
        if self.did:
            return ("did", *sorted((d.tool, d.what, d.outcome) for d in self.did))
        if self.reply.calls:
            return ("asked", *sorted((c.name, what(c)) for c in self.reply.calls))
        said = _without_counter(words(shortened(self.reply.text)))
        return ("said", self.reply.label, len(self.reply.text) // 64, *said)

    def is_like(self, other: Step) -> bool:
        """Whether this step brings nothing that `other` had not: the same, or nearly so."""
        if self.key == other.key:
            return True
        if self._was_refused or other._was_refused:
            return self.asked == other.asked
        if self.reply.calls or other.reply.calls or self.reply.label != other.reply.label:
            return False
        if _differences(self.numbers, other.numbers) > 1:
            return False  # more than a counter has moved: the numbers are the news
        return likeness(self.sketch, other.sketch) >= ALIKE


def _did(call: Call, result: Settled, files: Sequence[str]) -> Did:
    text = stable(shortened(result.text))
    # Beyond the last page one page is like the other, whatever its number.
    is_end = len(result.text) <= MAX_END and bool(_END.search(result.text))
    if is_end:
        text = _NUMBER.sub("", text)
    # Another picture under the same words is another result.
    told = " ".join((result.status, str(len(result.text) // 64), text, *files))
    return Did(
        tool=call.name,
        # Another number does not make another call of one that runs out of time each time.
        what=what(call, without_numbers=result.status == "timeout", without_places=is_end),
        outcome=zlib.crc32(told.encode()),
        sketch=sketch(text),
        is_failure=result.status in FAILED,
    )


def what(call: Call, *, without_numbers: bool = False, without_places: bool = False) -> int:
    """A digest of a call that is the same for other cases, orders and endings of its words, and
    for other ways to write a path. `without_places` passes over numbers of pages and the like."""
    if len(call.arguments) > sum(LOOKED_AT):
        return zlib.crc32(f"{call.name} {call.arguments}".encode())
    try:
        given = msgspec.json.decode(call.arguments)
        if without_places and isinstance(given, dict):
            given = {name: item for name, item in given.items() if not _is_place(name, item)}
        said = "\n".join(_forms(given))
    except (msgspec.DecodeError, RecursionError):
        said = call.arguments
    if without_numbers:
        said = _NUMBER.sub("", said)
    return zlib.crc32(f"{call.name} {said}".encode())


def _forms(value: Any) -> Iterator[str]:
    """The strings, names and numbers of a JSON value; of prose the words, in one order."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _forms(item)
    elif isinstance(value, list):
        for item in value:
            yield from _forms(item)
    elif isinstance(value, str):
        value = _path(" ".join(value.split()))
        # The words of a question to a search engine have no order; a command is another one.
        prose = sorted(map(_stem, words(value))) if _PROSE.fullmatch(value) else None
        yield " ".join(prose) if prose else value
    else:
        yield str(value)


def _is_place(name: str, value: Any) -> bool:
    is_number = isinstance(value, int) or (isinstance(value, str) and value.isdigit())
    return is_number and not isinstance(value, bool) and bool(_PLACE.fullmatch(name))


def _path(text: str) -> str:
    """A path in the one way to write it, from wherever; any other text as it is.

    Two calls are alike only where what came of them is too, so that `/a` passes for `a`.
    """
    if not _PATH.fullmatch(text):
        return text
    return normpath(text.replace("\\", "/").lstrip("/"))


def call_digest(name: str, arguments: str) -> str:
    """Equal for equal calls only: what bars one of them."""
    return hashlib.blake2b(f"{name} {arguments}".encode(), digest_size=8).hexdigest()


def shortened(text: str) -> str:
    """The parts of a long text that are looked at."""
    head, tail = LOOKED_AT
    return text if len(text) <= head + tail else f"{text[:head]} {text[-tail:]}"


def stable(text: str) -> str:
    """`text` without what differs each time although nothing has changed: times, durations, ids.

    Percentages and counts stay: they are how a job that is polled shows that it gets on.
    """
    text = _FIGURE.sub(_steadied, text.replace(_ID, " "))
    return _ID_BEGINNING.sub("~", text) if _ID in text else text


def _steadied(found: re.Match[str]) -> str:
    figure, text, start = found[0], found.string, found.start()
    bare = figure.rstrip(".,:+-")
    if _TIME.fullmatch(bare):
        return "~" + figure[len(bare) :]
    begun = start
    while begun > max(0, start - MIN_ID) and text[begun - 1] in _HEX_LETTERS:
        begun -= 1
    id_like = text[begun:start] + bare
    if begun and text[begun - 1].isalnum() and begun > start - MIN_ID:
        return figure  # the end of a longer word
    if len(id_like) >= MIN_ID and _HEX.fullmatch(id_like) and not _HEX_LETTERS.isdisjoint(id_like):
        return _ID + figure[len(bare) :]
    return figure


def words(text: str) -> list[str]:
    """The words of a text in lower case; of scripts without blanks, the characters."""
    return _WORD.findall(text.lower())


def sketch(text: str) -> Sketch:
    """The smallest hashes of a text's words: what two of them share tells how alike texts are."""
    found = set(_without_counter(words(shortened(text))))
    return array("I", sorted(zlib.crc32(word.encode()) for word in found)[:SKETCH])


def likeness(one: Sketch, other: Sketch) -> float:
    """How alike the texts of two sketches are: 0 to 1. Texts without words are alike."""
    if not one and not other:
        return 1.0
    both, union = set(one) & set(other), sorted({*one, *other})[:SKETCH]
    return sum(value in both for value in union) / len(union)


def _without_counter(found: list[str]) -> list[str]:
    """'Attempt 4 …' says what 'Attempt 3 …' said; of texts with more numbers, they are the news."""
    numbers = [word for word in found if word.isdigit()]
    if len(numbers) == 1 and len(found) > 3:
        return [word for word in found if word is not numbers[0]]
    return found


def _differences(one: Sequence[str], other: Sequence[str]) -> int:
    changed = sum(a != b for a, b in zip(one, other, strict=False))
    return changed + abs(len(one) - len(other))


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") else word
