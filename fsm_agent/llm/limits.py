"""How long a reply may take, and how long it may be."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one model call. Keep-alive comments count as silence.

    Chosen so that hosted reasoning models, which may be silent for a minute before they begin,
    come through, and a dead connection does not hold a run for long.
    """

    connect_s: float = 15.0  # until there is a connection
    first_s: float = 120.0  # from the request to the first chunk
    idle_s: float = 50.0  # between two chunks
    idle_answer_s: float = 14.0  # between two chunks of text for the user, which comes steadily
    whole_s: float = 600.0  # from the request to the end
    trailer_s: float = 2.0  # from the finish reason on, for the usage
    max_reply_chars: int = 4 << 20  # text, thinking and arguments together
