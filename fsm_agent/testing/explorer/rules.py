"""What a protocol checks, and how much may go wrong while it is explored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rules:
    """The protocol, with each of its checks as a switch: a mutant leaves some out."""

    tool: Literal["unsafe", "keyed"] = "unsafe"
    has_intent: bool = True  # an entry before a tool starts
    key: Literal["position", "attempt"] = "position"  # what an idempotency key is made of
    op_marks: bool = True  # a repeat is recognised by its op
    fence: Literal["token+nonce", "token", "none"] = "token+nonce"
    tells_lost_repeats: bool = True  # DUP_NOT_OWNER: a repeat by who lost the run is no success
    seq: bool = True
    chain: bool = True
    closed: bool = True
    released: bool = True
    waits: bool = False  # a commit is acknowledged once a replica has it
    person_reruns: bool = False  # a person may press 'run it again' on a call in doubt


@dataclass(frozen=True)
class Bounds:
    """How often each fault may happen on one way through."""

    steps: int = 2  # tool calls of the run
    messages: int = 1  # lost, doubled, or still under way when their sender sends again
    expired: int = 2  # leases of owners that are alive
    crashes: int = 1
    stops: int = 0  # a worker gives its run back with a commit under way
    failovers: int = 0
    forgets: int = 2  # the last writes that a failover may lose
