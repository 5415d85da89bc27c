"""What can be set about a store. Times are seconds, sizes bytes."""

from __future__ import annotations

import msgspec

from .durability import Durability

COMPRESS_FROM = 1024  # below that a body saves less than it costs, see docs/benchmarks.md


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults are for a laptop and for a small server alike."""

    connect_s: float = 3.0
    answer_s: float = 3.0  # a silent server; the command is then repeated on a new connection
    restart_s: float = 10.0  # how long a call outlasts a server that is away
    max_entry_bytes: int = 1 << 20
    max_commit_bytes: int = 8 << 20
    max_blob_bytes: int = 64 << 20
    early_blobs_s: float = 86_400.0  # how long blobs are kept whose run is not there yet
    live_length: int = 1_000
    live_expires_s: float = 3600.0
    memory_alarm: float = 0.9  # of the server's maxmemory: no new runs above; 0: no alarm
    fold_after_s: float = (
        60.0  # a finished run becomes one value; repeats of its last call are over
    )
    max_fold_bytes: int = 64 << 20  # a longer journal stays as it is
    compress_from: int | None = None  # bytes from which on bodies, blobs … are compressed
    durability: Durability | None = None  # what is waited for beyond the primary's answer
