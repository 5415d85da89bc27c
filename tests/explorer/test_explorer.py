"""The explored protocol: safe with its checks, broken without each that it needs, and the scripts'
own."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from checkpoints.chain import genesis, link, links
from checkpoints.redis_store import RedisStore
from checkpoints.testing.memory import MemoryServer, MemoryTransport
from fsm_agent.testing.explorer import VARIANTS, Bounds, Variant, explore, scripts
from fsm_agent.testing.explorer.rules import Rules
from fsm_agent.testing.explorer.scripts import Entry, Request, Stored

MUTANTS = [variant for variant in VARIANTS if variant.broken]
SOUND = [variant for variant in VARIANTS if not variant.broken]


def ids(variant: Variant) -> str:
    return variant.name


def quick(bounds: Bounds) -> Bounds:
    """The same with one step and fewer faults, which is a second instead of a minute."""
    return replace(bounds, steps=1, expired=0 if bounds.stops else 1)


@pytest.mark.parametrize("variant", MUTANTS, ids=ids)
def test_a_protocol_without_a_check_that_it_needs_breaks_its_promise(variant: Variant) -> None:
    finding = explore(variant.rules, quick(variant.bounds))

    assert finding.broken == variant.broken
    assert len(finding.way) == finding.depth


@pytest.mark.parametrize("variant", SOUND, ids=ids)
def test_the_protocol_is_safe_in_everything_that_can_happen_in_one_step(variant: Variant) -> None:
    finding = explore(variant.rules, quick(variant.bounds))

    assert finding.broken == ""
    assert finding.is_exhaustive
    assert finding.states > 1000


def test_an_exploration_that_was_cut_short_says_so() -> None:
    finding = explore(Rules(), Bounds(), max_states=500)

    assert not finding.is_exhaustive
    assert finding.result == "safe as far as it went"


# -- the model is what the scripts do -------------------------------------------------------------

R = "run"


async def real_store() -> RedisStore:
    server = MemoryServer()
    store = RedisStore(lambda: MemoryTransport(server))
    await store.begin("x", 1)
    await store.create(R, op="begin", body=b"", snapshot=b"")  # type: ignore[arg-type]
    return store


class Both:
    """The model and the real scripts, in step."""

    def __init__(self, store: RedisStore) -> None:
        self.store, self.keys = store, store._of(R)
        self.stored = Stored()

    async def script(self, name: Any, keys: tuple[bytes, ...], *args: Any) -> list[bytes]:
        return await self.store._script(name, keys, *args)

    async def claim(self, nonce: tuple[int, int]) -> None:
        self.stored, word = scripts.claim(self.stored, nonce)
        part = self.keys.partition
        keys = (self.keys.head, self.keys.snapshot, part.due, part.statuses)
        reply = await self.script("claim", keys, R, "w", str(nonce), 60_000)
        assert reply[0].decode() == word

    async def release(self, nonce: tuple[int, int], token: int) -> None:
        self.stored, word = scripts.release(self.stored, nonce, token)
        part = self.keys.partition
        keys = (self.keys.head, part.due, part.statuses)
        reply = await self.script("release", keys, R, token, str(nonce), "", "")
        assert reply[0].decode() == word

    async def expire(self) -> None:
        if self.stored.lease == "live":
            self.stored = self.stored._replace(lease="expired")
            await self.store._line.call("HSET", self.keys.head, "l", 1)

    async def commit(self, request: Request) -> str:
        self.stored, word = scripts.commit(self.stored, request, Rules())
        keys, part = self.keys, self.keys.partition
        names = (
            *(keys.head, keys.journal, keys.snapshot, keys.asks, keys.mailbox, keys.marks),
            *(part.due, part.statuses, part.open_asks, part.outbox),
        )
        if request.is_closing:
            names += (part.ended, keys.orphans, keys.blobs)
        bodies = [repr(entry).encode() for entry in request.view]
        start = link(genesis(R), 1, b"")
        chain = [start, *links(start, 1, bodies)][-1]
        body = repr(request.entry).encode()
        seq = len(request.view) + 1  # the real journal begins with its creation
        status = "done" if request.is_closing else "running"
        reply = await self.script(
            "commit",
            names,
            *(R, request.token, str(request.nonce), seq, str(request.entry.op), chain, 60_000),
            *(status, b"", "", int(request.is_releasing), 0, 1, 1, 0, 0, 0, 0, "", 0),
            *(link(chain, seq + 1, body), body),
        )
        assert reply[0].decode() == word, request
        return word


async def test_the_explored_scripts_answer_as_the_real_ones_do() -> None:
    words: set[str] = set()
    for seed in range(60):
        chance = Random(seed)
        both = Both(await real_store())
        requests: list[Request] = []
        for _ in range(40):
            nonce, token = (chance.randrange(2), chance.randrange(3)), both.stored.token
            if chance.random() < 0.2:
                token = max(0, token - 1)
            match chance.choice(["claim", "expire", "release", "commit", "commit", "again"]):
                case "claim":
                    await both.claim(nonce)
                case "expire":
                    await both.expire()
                case "release" if chance.random() < 0.3:
                    await both.release(both.stored.nonce or nonce, token)
                case "again" if requests:
                    words.add(await both.commit(chance.choice(requests)))
                case _:
                    request = drawn_request(chance, both.stored, nonce, token, len(requests))
                    requests.append(request)
                    words.add(await both.commit(request))

    assert words == {"OK", "DUP", "DUP_NOT_OWNER", "FENCED", "SEQ", "FORK", "CLOSED"}


def drawn_request(
    chance: Random, stored: Stored, nonce: tuple[int, int], token: int, number: int
) -> Request:
    """A commit by the owner or by somebody else, on the journal's end or on something else."""
    view = stored.journal
    if chance.random() < 0.2:
        view = view[: chance.randrange(len(view) + 1)]
    elif view and chance.random() < 0.2:
        view = (*view[:-1], view[-1]._replace(step=9))  # another history of the same length
    owner = stored.nonce if stored.nonce and chance.random() < 0.8 else nonce
    entry = Entry("intent", 0, (*owner, number))
    return Request(owner, token, view, entry, chance.random() < 0.05, chance.random() < 0.1)
