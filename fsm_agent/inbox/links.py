"""Signed links: the right to decide one request once, in the pocket of one person."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import cast

import msgspec

from fsm_agent.errors import UsageError
from fsm_agent.inbox.keys import Keys
from fsm_agent.people import verbs_of
from fsm_agent.run.delta import Verb
from fsm_agent.run.person import identity
from fsm_agent.waiting import Request

DEFAULT_S = 24 * 3600
LONGEST_S = 90 * 86_400
_PURPOSE = "link"


class Link(msgspec.Struct, frozen=True, array_like=True):
    """What a link says. It counts for exactly what was asked when it was made."""

    run_id: str
    ask_id: str
    digest: str
    audience: str  # whose decision it will be
    verbs: tuple[str, ...]
    until_s: int
    nonce: str

    @property
    def decision_id(self) -> str:
        """The same for every use, so that the store itself knows a second one."""
        return f"link-{self.nonce}"


class BadLink(Exception):
    """A link that does not count. `kind` is `forged` or `expired`."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def make_link(
    keys: Keys,
    request: Request,
    *,
    audience: str,
    now_s: float,
    expires_s: float = DEFAULT_S,
    verbs: Iterable[str] = (),
) -> str:
    """The token of a link, the last part of its address.

    `verbs` are those it may be used for (default: all that fit the request but edit, which needs
    more than a button). Raises UsageError.
    """
    if not identity(audience):
        raise UsageError("a link needs the name of the person whose decision it will be.")
    if not 60 <= expires_s <= LONGEST_S:
        raise UsageError("a link lasts from a minute to 90 days.")
    possible = tuple(verb for verb in verbs_of(request) if verb != "edit")
    chosen = tuple(verbs) or possible
    if request.ruling is not None or not chosen or set(chosen) - set(possible):
        if request.ruling is not None:
            raise UsageError(f"request {request.ask_id!r} is decided: there is nothing to link to.")
        offered = ", ".join(possible) or "nothing"
        raise UsageError(f"request {request.ask_id!r} takes by link: {offered}.")
    until_s = int(now_s + expires_s)
    if request.expires_ms:
        until_s = min(until_s, request.expires_ms // 1000)
    link = Link(
        request.run_id, request.ask_id, request.digest, audience, chosen, until_s,
        secrets.token_hex(12),
    )  # fmt: skip
    return keys.sign(_PURPOSE, msgspec.msgpack.encode(link))


def open_link(keys: Keys, token: str, now_s: float) -> Link:
    """What a token says. Raises BadLink."""
    payload = keys.opened(_PURPOSE, token)
    if payload is None:
        raise BadLink("forged")
    link = msgspec.msgpack.decode(payload, type=Link)
    if now_s >= link.until_s:
        raise BadLink("expired")
    return link


def verb_in(link: Link, verb: str) -> Verb:
    """The verb, if the link is good for it. Raises BadLink."""
    if verb not in link.verbs:
        raise BadLink("verb")
    return cast(Verb, verb)
