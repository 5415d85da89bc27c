"""What stands beside the journal: orphan reports, live text, blobs."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Iterable,
    Sequence,
)
from hashlib import blake2b, sha256

import structlog

from . import answers, scripts
from .calls import Calls
from .errors import (
    EntryTooLarge,
    StoreDiverged,
    StoreUnavailable,
)
from .model import (
    RunId,
)

log = structlog.get_logger(__name__)


class Beside(Calls):
    """Evidence, hints and bulk: never the truth about a run."""

    async def report_orphan(self, run_id: RunId, body: bytes) -> None:
        """See Store. The same report again is kept once."""
        keys = self._of(run_id)
        self._check_sizes((body,), b"")
        packed = self._codec.pack(run_id, "report", body)
        await self._script("report", (keys.orphans, keys.head), packed)

    async def orphans(self, run_id: RunId) -> Sequence[bytes]:
        """See Store."""
        found: list[bytes] = await self._read("LRANGE", self._of(run_id).orphans, 0, -1)
        return [self._codec.unpack(run_id, "report", body) for body in found]

    async def publish(self, run_id: RunId, payloads: Iterable[bytes]) -> None:
        """See Store. One try: what does not arrive is logged and forgotten."""
        key = self._of(run_id).live
        limit = self.settings.live_length
        expires_ms = int(self.settings.live_expires_s * 1000)

        async def once() -> None:
            for payload in payloads:
                packed = self._codec.pack(run_id, "live", payload)
                await self._line.call("XADD", key, "MAXLEN", "~", limit, "*", "b", packed)
            await self._line.call("PEXPIRE", key, expires_ms)

        try:
            await self._settled(once, until=0.0)
        except (StoreUnavailable, StoreDiverged) as error:
            log.debug("checkpoints.live_lost", run_id=run_id, reason=str(error))

    async def live(self, run_id: RunId, *, after: str = "$") -> AsyncIterator[tuple[str, bytes]]:
        """See Store. '$' is the end of the stream when listening begins."""
        key = self._of(run_id).live
        block_ms = int(self.settings.answer_s * 500)  # a longer block would look like a dead server
        if after == "$":
            newest = await self._read("XREVRANGE", key, "+", "-", "COUNT", 1)
            after = newest[0][0].decode() if newest else "0-0"
        # A connection of its own: a blocking read would hold up everybody's answers behind it.
        transport = self._new_transport()
        try:
            while True:
                reply = await self._settled(
                    lambda: transport.call("XREAD", "BLOCK", block_ms, "STREAMS", key, after)  # noqa: B023
                )
                for item_id, fields in reply[0][1] if reply else ():
                    after = item_id.decode()
                    try:
                        payload = self._codec.unpack(run_id, "live", fields[1])
                    except StoreDiverged as error:  # somebody else's, or of another key: only text
                        log.warning("checkpoints.live_unreadable", run_id=run_id, why=str(error))
                        continue
                    yield after, payload
        finally:
            await transport.aclose()

    async def put_blob(self, run_id: RunId, data: bytes) -> str:
        """See Store. Raises EntryTooLarge."""
        keys = self._of(run_id)
        if len(data) > self.settings.max_blob_bytes:
            raise EntryTooLarge(
                f"a blob of {len(data)} bytes is above the cap of {self.settings.max_blob_bytes}."
            )
        digest = sha256(data).hexdigest()
        packed = self._codec.pack(run_id, f"blob {digest}", data)
        names, early_ms = (keys.head, keys.blobs), int(self.settings.early_blobs_s * 1000)
        args = (self._blob_field(digest), packed, early_ms)
        # Beside the commits: megabytes must not stand before one.
        reply = await self._settled(lambda: scripts.run(self._reads, "keep", names, args))
        if reply[0] == b"FOREIGN":
            raise answers.foreign(reply[1])
        return digest

    def _blob_field(self, digest: str) -> str:
        """The name of a blob; where the store is encrypted, one that says nothing of its bytes."""
        if not self._chain_key:
            return digest
        return blake2b(digest.encode(), digest_size=32, key=self._chain_key).hexdigest()

    async def get_blob(self, run_id: RunId, digest: str) -> bytes | None:
        """See Store. Raises StoreDiverged if the bytes are not those of the digest."""
        field = self._blob_field(digest)
        packed: bytes | None = await self._read("HGET", self._of(run_id).blobs, field)
        if packed is None:
            return None
        data = self._codec.unpack(run_id, f"blob {digest}", packed)
        if sha256(data).hexdigest() != digest:
            raise StoreDiverged(f"run {run_id!r}: blob {digest[:12]}… does not match its digest.")
        return data
