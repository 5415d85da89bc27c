"""The outbox: what is to be told to people and systems outside, and has not been yet."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from . import answers
from .calls import Calls
from .errors import StoreDiverged, StoreUsageError
from .model import Notice
from .transport import Arg

log = structlog.get_logger(__name__)


class Outbox(Calls):
    """Taking and settling notices."""

    async def take_notices(self, *, limit: int = 32, hold_ms: int = 60_000) -> Sequence[Notice]:
        """See Store."""
        if limit < 1 or hold_ms < 1:
            raise StoreUsageError("notices are taken at least one at a time, for at least 1 ms.")
        replies = await self._everywhere(
            "outbox",
            lambda part, until: self._script("take", (part.outbox,), limit, hold_ms, until=until),
        )
        found = []
        for reply in replies:
            pairs = zip(reply[1::2], reply[2::2], strict=True)
            found += [self._notice(packed, at) for packed, at in pairs]
        return sorted(filter(None, found), key=lambda notice: notice.at_ms)

    def _notice(self, packed: bytes, at: bytes) -> Notice | None:
        try:
            return answers.notice(packed, answers.number(at), self._codec.unpack)
        except StoreDiverged as error:
            # One that somebody tampered with must not hide the others.
            log.error("checkpoints.notice_unreadable", why=str(error))
            return None

    async def settle_notice(
        self, notice: Notice, *, again: Sequence[tuple[Notice, int]] = ()
    ) -> bool:
        """See Store."""
        run_id = notice.run_id
        args: list[Arg] = [notice.stored]
        for other, delay_ms in again:
            args += (delay_ms, answers.packed_notice(run_id, other, self._codec.pack))
        reply = await self._script("settle", (self._of(run_id).partition.outbox,), *args)
        return reply[0] == b"OK"
