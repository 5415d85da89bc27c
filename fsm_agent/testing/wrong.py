"""Runtimes that are wrong on purpose: a kit that does not catch each of them shows nothing.

Each is a context: inside of it, this process and what it forks make the one mistake.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha1
from typing import Any

from checkpoints import scripts
from checkpoints.transport import Arg, Transport
from fsm_agent.engine import act, calls


@contextmanager
def _instead(owner: Any, name: str, other: Any) -> Iterator[None]:
    right = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, right)


@contextmanager
def no_intent() -> Iterator[None]:
    """Starts tools before their intent is on record: it goes with the result."""

    async def forgetful(batch: Any, works: list[calls.Work]) -> None:
        for work in works:
            batch._seen.forget(work.call_id)

    with _instead(act._Batch, "_put_intents_on_record", forgetful):
        yield


@contextmanager
def key_per_attempt() -> Iterator[None]:
    """Makes the idempotency key from the attempt, so that a repeat is a new order."""
    by_position = calls.Scene._key

    def by_attempt(scene: calls.Scene, call: Any, tool: Any, bound: Any) -> str:
        return f"{by_position(scene, call, tool, bound)}-{call.starts}"

    with (
        _instead(calls.Scene, "_key", by_attempt),
        _instead(calls.Scene, "_change_of", lambda *_: ""),
    ):
        yield


@contextmanager
def no_op_id() -> Iterator[None]:
    """Gives each try of a commit an op id of its own, so that the store knows no repeat."""
    run = scripts.run

    async def renamed(
        transport: Transport, name: scripts.Name, keys: tuple[bytes, ...], args: tuple[Arg, ...]
    ) -> list[bytes]:
        if name == "commit":
            args = (*args[:4], secrets.token_bytes(8), *args[5:])
        return await run(transport, name, keys, args)

    with _instead(scripts, "run", renamed):
        yield


@contextmanager
def token_ignored() -> Iterator[None]:
    """Takes commits of a worker that has lost the run, as long as their seq fits."""
    right = scripts.load
    fence = b"local is_mine = h[1] == ARGV[2] and h[2] == ARGV[3]"

    def unfenced(name: scripts.Name) -> scripts.Script:
        script = right(name)
        if name != "commit":
            return script
        assert fence in script.text, "commit.lua has changed: its fence is not where it was"
        text = script.text.replace(fence, b"local is_mine = true")
        return scripts.Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())

    with _instead(scripts, "load", unfenced):
        yield


WRONG: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "no intent": no_intent,
    "no op id": no_op_id,
    "key per attempt": key_per_attempt,
    "token ignored": token_ignored,
}
