"""The Lua scripts as functions of a value: the same checks in the same order.

A test runs both on the same requests and compares the answers. What a script does besides
(indexes, mailbox, snapshot) bears on nothing that is explored here.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from .rules import Rules

Nonce = tuple[int, int]  # a worker, and which of its claims
Op = tuple[int, int, int]  # a nonce, and the expected seq: chosen once per commit
Kind = Literal["intent", "result", "ask"]
Lease = Literal["none", "live", "expired"]


class Entry(NamedTuple):
    """One transition of the run."""

    kind: Kind
    step: int
    op: Op


class Stored(NamedTuple):
    """A run as the store holds it."""

    journal: tuple[Entry, ...] = ()
    token: int = 0
    nonce: Nonce | None = None
    lease: Lease = "none"
    is_closed: bool = False
    writes: int = 0  # counted where failovers are explored


class Request(NamedTuple):
    """A commit on its way: with what the writer believes to stand before it."""

    nonce: Nonce
    token: int
    view: tuple[Entry, ...]
    entry: Entry
    is_closing: bool
    is_releasing: bool


def claim(stored: Stored, nonce: Nonce) -> tuple[Stored, str]:
    """claim.lua: the answer is OK, BUSY or CLOSED."""
    if stored.is_closed:
        return stored, "CLOSED"
    is_repeat = stored.lease != "none" and stored.nonce == nonce
    if stored.lease == "live" and not is_repeat:
        return stored, "BUSY"
    token = stored.token if is_repeat else stored.token + 1
    return stored._replace(token=token, nonce=nonce, lease="live"), "OK"


def release(stored: Stored, nonce: Nonce, token: int) -> tuple[Stored, str]:
    """release.lua: the answer is OK or LOST."""
    if (stored.token, stored.nonce) != (token, nonce) or stored.lease == "none":
        return stored, "LOST"
    return stored._replace(lease="none"), "OK"


def commit(stored: Stored, request: Request, rules: Rules) -> tuple[Stored, str]:
    """commit.lua, with the checks that `rules` leaves in.

    The answer is OK, DUP, DUP_NOT_OWNER, FENCED, SEQ, FORK or CLOSED.
    """
    expected = len(request.view)
    is_mine = _is_mine(stored, request, rules)
    there = stored.journal[expected : expected + 1]
    if rules.op_marks and there and there[0].op == request.entry.op:
        return stored, "DUP" if is_mine or not rules.tells_lost_repeats else "DUP_NOT_OWNER"
    if not is_mine:
        return stored, "FENCED"
    if rules.seq and len(stored.journal) != expected:
        return stored, "SEQ"
    if rules.chain and stored.journal != request.view:
        return stored, "FORK"
    if rules.closed and stored.is_closed:
        return stored, "CLOSED"
    if rules.released and stored.lease == "none":
        return stored, "FENCED"
    after = stored._replace(
        journal=(*stored.journal, request.entry),
        lease="none" if request.is_closing or request.is_releasing else "live",
        is_closed=stored.is_closed or request.is_closing,
    )
    return after, "OK"


def _is_mine(stored: Stored, request: Request, rules: Rules) -> bool:
    match rules.fence:
        case "token+nonce":
            return (stored.token, stored.nonce) == (request.token, request.nonce)
        case "token":
            return stored.token == request.token
        case "none":
            return True
