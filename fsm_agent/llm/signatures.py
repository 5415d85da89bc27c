"""What a provider signed of a reply, and wants back unchanged with the results of its calls.

Some models go on thinking after a tool call only where they find their own reasoning again, with
its signature: OpenRouter's `reasoning_details`, and the `extra_content` of Google's calls. Kept is
what carries a signature or encrypted data; reasoning in plain text is not needed for this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fsm_agent.llm.model import RequestedCall
from fsm_agent.run.content import clean_json

MAX_DETAILS = 256
MAX_REPLAY_CHARS = 1 << 20  # longer ones are not kept: the provider then says what is missing
_GROWING = ("text", "summary", "data", "signature")


class Details:
    """Puts the pieces of `reasoning_details` together, as the provider's own client does."""

    def __init__(self) -> None:
        self._details: list[dict[str, Any]] = []

    def add(self, pieces: Sequence[Any]) -> None:
        """Take the list of one chunk."""
        for piece in pieces:
            if isinstance(piece, dict):
                self._add(piece)

    def _add(self, piece: dict[str, Any]) -> None:
        last = self._details[-1] if self._details else None
        if last is None or not _goes_on(last, piece):
            if len(self._details) < MAX_DETAILS:
                self._details.append({**piece, _PIECES: {}})
            return
        for key, value in piece.items():
            if key in _GROWING and isinstance(value, str) and isinstance(last.get(key), str):
                last[_PIECES].setdefault(key, []).append(value)
            elif value is not None:
                last[key] = value

    def finish(self) -> list[dict[str, Any]]:
        """The whole details; none if nothing of them is signed or encrypted."""
        whole = [_joined(detail) for detail in self._details]
        is_signed = any(detail.get("signature") or detail.get("data") for detail in whole)
        return whole if is_signed else []


_PIECES = "\0pieces"  # under a key that no provider uses


def _goes_on(last: dict[str, Any], piece: dict[str, Any]) -> bool:
    same = all(piece.get(key, last.get(key)) == last.get(key) for key in ("type", "index", "id"))
    return same and piece.get("type") != "reasoning.encrypted"


def _joined(detail: dict[str, Any]) -> dict[str, Any]:
    whole = {key: value for key, value in detail.items() if key != _PIECES}
    for key, pieces in detail[_PIECES].items():
        whole[key] = whole[key] + "".join(pieces)
    return whole


def replay_of(details: Details, calls: Sequence[RequestedCall]) -> str:
    """What to keep with the message, as JSON; '' if nothing was signed."""
    kept: dict[str, Any] = {}
    if whole := details.finish():
        kept["reasoning_details"] = whole
    extras = {str(at): call.extra for at, call in enumerate(calls) if call.extra}
    if extras:
        kept["calls"] = extras
    if not kept or not calls:
        return ""
    text = msgspec.json.encode(clean_json(kept)).decode()
    return text if len(text) <= MAX_REPLAY_CHARS else ""


def replayed(message: dict[str, Any], replay: str) -> None:
    """Put what was kept back into an assistant message of a request."""
    kept = msgspec.json.decode(replay)
    if details := kept.get("reasoning_details"):
        message["reasoning_details"] = details
    calls = message.get("tool_calls", [])
    for at, extra in kept.get("calls", {}).items():
        if int(at) < len(calls):
            calls[int(at)]["extra_content"] = extra
