"""Who decided what, and why: the facts of a journal that bear on decisions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from checkpoints.model import RunId
from fsm_agent.engine.deps import Deps
from fsm_agent.run import codec
from fsm_agent.run.delta import (
    AnyDelta,
    Asked,
    Commented,
    Consented,
    Created,
    Failed,
    Forked,
    Intended,
    Judged,
    Resumed,
    Revoked,
    Ruled,
    Settled,
    Versioned,
    Voted,
    Withheld,
)

_AUDITED = (
    Created, Resumed, Judged, Asked, Voted, Commented, Ruled, Consented, Revoked, Intended,
    Withheld, Settled, Failed, Versioned, Forked,
)  # fmt: skip


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of the journal that bears on a decision, with the hash that chains its entry."""

    run_id: str
    seq: int
    at_ms: int
    chain: str  # hex, over the entry before, the seq and the entry's bytes
    fact: AnyDelta


class Audit:
    """The record of decisions."""

    _deps: Deps

    async def audit(self, run_id: str, *, call_id: str | None = None) -> Sequence[AuditRow]:
        """Who asked for the run, what its rules said, who decided what, when, by which word, and
        what came of it: in order, from the journal whose hash chain has been verified.

        With `call_id`, only what bears on that call. Raises RunNotFound, or CorruptEntry naming
        the entry that was changed.
        """
        rows = []
        for entry in await self._deps.store.journal(RunId(run_id)):
            record = codec.decode(entry.body)
            for fact in record.deltas:
                if not isinstance(fact, _AUDITED):
                    continue
                if call_id is not None and getattr(fact, "call_id", None) != call_id:
                    continue
                rows.append(
                    AuditRow(
                        run_id=run_id,
                        seq=entry.seq,
                        at_ms=record.at_ms,
                        chain=entry.chain.hex(),
                        fact=fact,
                    )
                )
        return rows
