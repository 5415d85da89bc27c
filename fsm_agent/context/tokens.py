"""How many tokens a text costs, roughly and offline: for reserves and windows, never for bills."""

from __future__ import annotations

CHARS_PER_TOKEN = 3.6  # English prose and JSON; the provider's own count replaces it once known
DEFAULT_REPLY_TOKENS = 2_048  # set aside for a reply whose length nobody limited


def tokens_of(chars: int) -> int:
    """Tokens in `chars` characters, rounded up."""
    return int(chars / CHARS_PER_TOKEN) + 1
