"""A store whose writing calls are points, and whose time can be moved on."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from checkpoints.errors import RunNotFound
from checkpoints.model import Claim, Commit, Committed, Decision, Lease, Ruling, RunId
from checkpoints.store import Store

from .points import Points

# What changes the store. Reading twice is no fault, so reads are no points; `renew` is left out as
# the clock and not the run says when it is called.
WRITES = ("create", "claim", "commit", "release", "signal", "decide", "put_blob")


class Held(msgspec.Struct, frozen=True):
    """A lease that a process has asked for: written down before the request goes out."""

    run_id: str
    nonce: str
    owner: str


class PointedStore:
    """A store whose writing calls are points: before it is sent, and after it was acknowledged.

    What a dead process leaves behind need not be waited for. The sweep knows that it is dead: its
    leases are ended (`end_leases`), calls in doubt are not locked, and `skip_ms` moves the clock
    that the engine is told on, to when a parked run is due.
    """

    def __init__(self, store: Store, points: Points, leases: Path) -> None:
        self._store, self._points, self._leases = store, points, leases
        self.skip_ms = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._pointed(name, found) if name in WRITES else found

    def _pointed(
        self, name: str, call: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def pointed(*args: Any, **kwargs: Any) -> Any:
            number = self._points.enter(name)
            answer = await call(*args, **kwargs)
            self._points.pass_(name, number, "after")
            return answer

        return pointed

    async def claim(self, run_id: RunId, *, owner: str, nonce: str, term_ms: int) -> Claim:
        """See Store."""
        _append(self._leases, msgspec.json.encode(Held(run_id, nonce, owner)))
        call = self._pointed("claim", self._store.claim)
        claim: Claim = await call(run_id, owner=owner, nonce=nonce, term_ms=term_ms)
        return msgspec.structs.replace(claim, server_ms=claim.server_ms + self.skip_ms)

    async def commit(self, lease: Lease, commit: Commit) -> Committed:
        """See Store."""
        done: Committed = await self._pointed("commit", self._store.commit)(lease, commit)
        return msgspec.structs.replace(done, server_ms=done.server_ms + self.skip_ms)

    async def decide(self, run_id: RunId, ask_id: str, decision: Decision) -> Ruling:
        """See Store."""
        unlocked = msgspec.structs.replace(decision, needs_unlock=False)
        ruling: Ruling = await self._pointed("decide", self._store.decide)(run_id, ask_id, unlocked)
        return ruling

    async def skip_to_due(self, run_id: str) -> None:
        """Move the engine's clock to when the parked run is due, for what is left of the wait."""
        due_ms = (await self._store.head(RunId(run_id))).due_ms
        if due_ms is not None:
            self.skip_ms = max(self.skip_ms, due_ms - await self._store.now_ms() + 1)


async def end_leases(store: Store, leases: Path) -> None:
    """Let the leases that dead processes asked for run out now, as if their time had passed."""
    for held in _held(leases):
        run_id = RunId(held.run_id)
        try:
            head = await store.head(run_id)
        except RunNotFound:
            continue
        if head.lease_until_ms:
            await store.renew([Lease(run_id, head.token, held.nonce, held.owner, 1)])


def _held(leases: Path) -> list[Held]:
    lines = leases.read_bytes().splitlines() if leases.exists() else []
    return [msgspec.json.decode(line, type=Held) for line in lines]


def _append(path: Path, line: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line + b"\n")
    finally:
        os.close(handle)
