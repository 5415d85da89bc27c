"""When two names mean the same person."""

from __future__ import annotations

import re
import unicodedata

# What no font draws although its category says letter, mark or symbol: of Unicode's
# Default_Ignorable_Code_Point all that is not of category C, a blank of Braille, a note head of no
# shape, and marks that only join or fill. Fonts keep adding scripts, so this list may grow.
_UNSEEN = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800),
        (0x2D7F, 0x2D7F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0),
        (0x16FE4, 0x16FE4), (0x1D159, 0x1D159), (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
)  # fmt: skip


def identity(name: str) -> str:
    """Equal for the ways in which one name can be written: case, blanks, widths, forms of Unicode,
    and characters that nobody sees. Empty for a name that is none."""
    folded = unicodedata.normalize("NFKD", name).casefold()
    seen = (c for c in folded if c not in _UNSEEN and unicodedata.category(c)[0] not in "CZ")
    # Turkish writes 'IŞIK' for 'ışık' and 'İ' for 'i': which of the two is meant, no case tells.
    dotted = re.sub("[ıi]\u0307*", "i", "".join(seen))
    return unicodedata.normalize("NFKC", dotted)
