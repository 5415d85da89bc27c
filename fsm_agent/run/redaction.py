"""Secrets taken out of text before it is kept, logged or shown: known values, and known forms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from .event import LiveEvent

T = TypeVar("T", bound=msgspec.Struct)

MARK = "[secret]"
SHORTEST = 8  # of a known value: a shorter one may be a word like any other
_SECRET_NAME = re.compile(
    r"(^|_)(keys?|token|secret|password|passwd|pwd|credentials?|auth|dsn)($|_)|apikey",
    re.IGNORECASE,
)
_FORMS = re.compile(
    r"""
      \b(?:sk|rk|pk)-(?:[A-Za-z0-9]+[-_])*[A-Za-z0-9_-]{20,}                   # OpenAI, Anthropic
    | \b(?:sk|rk|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,}                         # Stripe
    | \b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{40,}  # GitHub
    | \bglpat-[A-Za-z0-9_-]{18,}                                                 # GitLab
    | \bxox[abeoprs]-[A-Za-z0-9-]{10,}                                           # Slack
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b                                              # AWS
    | \bAIza[A-Za-z0-9_-]{30,}                                                   # Google
    | \bhf_[A-Za-z0-9]{30,}                                                      # Hugging Face
    | \beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}            # JWT
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----(?:[^-]|-(?!----END))*
      (?:-----END\ [A-Z ]*PRIVATE\ KEY-----)?
    | (?<=://)[^/\s:@"'<>]*:[^/\s@"'<>]+(?=@)                                    # user:pass@host
    | (?i:(?<=bearer\ )|(?<=basic\ ))[A-Za-z0-9._~+/=-]{16,}                     # Authorization
    """,
    re.VERBOSE,
)
_SCHEMES = ("bearer", "basic")
_SCHEME_AT_END = re.compile(r"(?i)\b(?:bearer|basic)(?:\s+\S*)?$")
_TOKEN = re.compile(r"[\w-]+$")
_PEM_END = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
# Looking for these costs a microsecond; text without any of them has no secret of a known form.
_SIGNS = (
    "sk-", "rk-", "pk-", "sk_", "rk_", "whsec_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_",
    "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "AIza", "hf_", "eyJ", "PRIVATE KEY", "://",
    "earer ", "asic ",
)  # fmt: skip
_BARE = frozenset({int, bool, float, type(None)})


class Redactor:
    """Takes secrets out. One that was made with nothing still knows the forms."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = sorted({v for v in values if len(v) >= SHORTEST}, key=len, reverse=True)
        # As they stand inside of JSON too, where quotes and backslashes are escaped.
        escaped = {msgspec.json.encode(v)[1:-1].decode(errors="replace") for v in known}
        self.known = [*known, *sorted(escaped - set(known), key=len, reverse=True)]

    def text(self, text: str) -> str:
        """`text` with a mark in place of each secret."""
        if len(text) < SHORTEST:
            return text
        for value in self.known:
            if value in text:
                text = text.replace(value, MARK)
        for sign in _SIGNS:
            if sign in text:
                return _FORMS.sub(MARK, text)
        return text

    def struct(self, struct: T) -> T:
        """A struct of any depth, every text of it redacted. The same one if there was nothing."""
        changed = {}
        for name in struct.__struct_fields__:
            old = getattr(struct, name)
            # Most are numbers, flags and short words: each fact of a run passes here.
            if type(old) in _BARE or (type(old) is str and len(old) < SHORTEST):
                continue
            if (new := self._value(old)) is not old:
                changed[name] = new
        return msgspec.structs.replace(struct, **changed) if changed else struct

    def plain(self, value: Any) -> Any:
        """Texts inside of lists and mappings; what a mapping says under a secret's name as well."""
        if isinstance(value, Mapping):
            return {
                key: MARK if is_secret_name(str(key)) and isinstance(item, str) and item
                else self.plain(item)
                for key, item in value.items()
            }  # fmt: skip
        return self._value(value)

    def _value(self, value: Any) -> Any:
        match value:
            case str():
                new: Any = self.text(value)
                return value if new == value else new
            case msgspec.Struct():
                return self.struct(value)
            case tuple() | list():
                items = [self._value(item) for item in value]
                if all(new is old for new, old in zip(items, value, strict=True)):
                    return value
                return tuple(items) if isinstance(value, tuple) else items
            case _:
                return value


_Key = tuple[str, int, Literal["thinking", "body", "progress", "retracted"], str]


class LiveRedactor:
    """Text that comes in pieces: what may be the beginning of a secret waits for its end."""

    LONGEST = 4_000  # of a word that is held back

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: dict[_Key, str] = {}

    def event(self, event: LiveEvent) -> LiveEvent:
        """The event with as much of its text as is known to be no secret."""
        key: _Key = (event.run_id, event.attempt, event.channel, event.call_id)
        if event.channel == "retracted":
            self._held = {k: v for k, v in self._held.items() if k[0] != event.run_id}
            return event
        if event.channel == "progress":
            return msgspec.structs.replace(event, text=self._redactor.text(event.text))
        text = self._held.pop(key, "") + event.text
        cut = _known_whole(text, self._redactor.known)
        if len(text) - cut > self.LONGEST:
            cut = len(text)
        self._forget_others(key)
        if rest := text[cut:]:
            self._held[key] = rest
        return msgspec.structs.replace(event, text=self._redactor.text(text[:cut]))

    def rest(self, run_id: str) -> list[LiveEvent]:
        """What was held back of a run, now that nothing follows."""
        held = [key for key in self._held if key[0] == run_id]
        return [
            LiveEvent(run_id, channel, self._redactor.text(self._held.pop(key)), attempt, call_id)
            for key in held
            for _, attempt, channel, call_id in (key,)
        ]

    def _forget_others(self, key: _Key) -> None:
        """What an earlier attempt of the run held back is never told: its entry has all of it."""
        old = [k for k in self._held if k[0] == key[0] and k[1] < key[1]]
        for each in old:
            del self._held[each]


def _known_whole(text: str, values: Iterable[str]) -> int:
    """How much of a text can be judged before what follows has come: all but a last word that may
    be the beginning of a secret, or of what stands before one."""
    word = max(text.rfind(" "), text.rfind("\n")) + 1
    tail, token = text[word:], _TOKEN.search(text)
    last = token.group() if token else ""
    begins = (*_SIGNS, "-----BEGIN")
    may_be = any(sign in tail or (last and sign.startswith(last)) for sign in begins)
    may_be = may_be or bool(last and any(each.startswith(last.lower()) for each in _SCHEMES))
    cut = word if may_be or tail.endswith((":", ":/")) else len(text)
    if scheme := _SCHEME_AT_END.search(text):
        cut = min(cut, scheme.start())
    begin = text.rfind("-----BEGIN ")
    if begin >= 0 and not _PEM_END.search(text, begin):
        cut = min(cut, begin)
    for value in values:
        longest = min(len(value) - 1, len(text))
        held = next((n for n in range(longest, 0, -1) if text.endswith(value[:n])), 0)
        cut = min(cut, len(text) - held)
    return cut


def is_secret_name(name: str) -> bool:
    """Whether what has this name is one: OPENAI_API_KEY, authorization, db-password."""
    return bool(_SECRET_NAME.search(re.sub(r"[^A-Za-z0-9]+", "_", name)))


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """The values of an environment that are secrets by their names."""
    return [v for name, v in environ.items() if is_secret_name(name) and _is_random(v)]


def _is_random(value: str) -> bool:
    """Not a path, nor a word that texts may hold as well, such as `not-needed`."""
    if value.startswith("/"):
        return False
    return len(value) >= 16 or any(char.isdigit() for char in value)
