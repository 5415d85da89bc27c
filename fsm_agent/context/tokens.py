"""How many tokens a text costs, roughly and offline: for reserves and windows, never for bills."""

from __future__ import annotations

CHARS_PER_TOKEN = 3.6  # English prose and JSON; what providers count corrects it, run by run
DEFAULT_REPLY_TOKENS = 2_048  # set aside for a reply whose length nobody limited


def tokens_of(chars: int) -> int:
    """Tokens in `chars` characters, rounded up."""
    return int(chars / CHARS_PER_TOKEN) + 1


def shortened(text: str, most_chars: int) -> str:
    """The beginning and the end of `text`, with a marker that says how much is missing."""
    if len(text) <= most_chars:
        return text
    marker = f"\n[… {len(text) - most_chars} characters are left out here …]\n"
    room = max(0, most_chars - len(marker))
    return text[: room * 2 // 3] + marker + (text[-(room // 3) :] if room >= 3 else "")
