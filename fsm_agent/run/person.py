"""When two names mean the same person."""

from __future__ import annotations

import unicodedata


def identity(name: str) -> str:
    """Equal for the ways in which one name can be written: case, blanks, forms of Unicode, and
    characters that nobody sees. Empty for a name that is none."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(char for char in folded if unicodedata.category(char)[0] not in "CZ")
