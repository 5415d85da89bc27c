"""Who is asking: from a token, a session, or the headers of a proxy that has checked it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from fsm_agent.inbox.actors import Actor, Role
from fsm_agent.inbox.keys import Keys
from fsm_agent.inbox.users import User, Users, actor_of, token_digest

if TYPE_CHECKING:  # the command line uses this room also where no web server is installed
    from starlette.requests import Request

COOKIE = "fsm_inbox"
_SESSION = "session"


class Auth(Protocol):
    """How people prove who they are."""

    mode: Literal["local", "users", "proxy"]

    def by_token(self, token: str) -> Actor | None:
        """Whose token it is."""

    def by_session(self, name: str, mark: str) -> Actor | None:
        """Who a session belongs to, if it still holds. `mark` is what `mark_of` gave."""

    def by_headers(self, request: Request) -> Actor | None:
        """Who a proxy says it is."""

    def mark_of(self, actor: Actor) -> str:
        """What a session of this person depends on."""

    def by_link(self, name: str) -> Actor:
        """The person for whom a link was made. A link says itself what may be done with it."""


@dataclass
class LocalToken:
    """One person, the one who started the inbox, with a token that was printed once."""

    name: str
    token: str = field(repr=False)
    mode: Literal["local", "users", "proxy"] = "local"

    def by_token(self, token: str) -> Actor | None:
        if not hmac.compare_digest(token_digest(token), token_digest(self.token)):
            return None
        return Actor(name=self.name, auth="local_token")

    def by_session(self, name: str, mark: str) -> Actor | None:
        fits = name == self.name and hmac.compare_digest(mark, token_digest(self.token)[:16])
        return Actor(name=name, auth="local_token", is_ambient=True) if fits else None

    def by_headers(self, request: Request) -> Actor | None:
        return None

    def mark_of(self, actor: Actor) -> str:
        return token_digest(self.token)[:16]

    def by_link(self, name: str) -> Actor:
        return linked(name)


@dataclass
class StaticUsers:
    """The people of a file, each with a token. Who is taken out of it is out at once."""

    users: Users
    mode: Literal["local", "users", "proxy"] = "users"

    def by_token(self, token: str) -> Actor | None:
        user = self.users.by_token(token)
        return actor_of(user, "user_token") if user else None

    def by_session(self, name: str, mark: str) -> Actor | None:
        user = self.users.by_name(name)
        if user is None or not hmac.compare_digest(mark, self._mark(user)):
            return None
        return actor_of(user, "user_token", is_ambient=True)

    def by_headers(self, request: Request) -> Actor | None:
        return None

    def mark_of(self, actor: Actor) -> str:
        user = self.users.by_name(actor.name)
        return self._mark(user) if user else ""

    def by_link(self, name: str) -> Actor:
        # Whoever has several names is one person by link as well, whichever of them it is made for.
        user = self.users.known_as(name)
        return linked(user.name, user.aliases) if user else linked(name)

    @staticmethod
    def _mark(user: User) -> str:
        return user.token_sha256[:16]


@dataclass
class Proxy:
    """People that an authenticating proxy names in a header, which nobody else may send.

    The proxy proves itself with a shared secret in X-Proxy-Secret.
    """

    header: str
    secret: str = field(repr=False)
    tenant_header: str = ""
    groups_header: str = ""  # names of groups with commas between them
    role: Role = "approver"
    operators: frozenset[str] = frozenset()
    mode: Literal["local", "users", "proxy"] = "proxy"

    def by_token(self, token: str) -> Actor | None:
        return None

    def by_session(self, name: str, mark: str) -> Actor | None:
        return None

    def by_headers(self, request: Request) -> Actor | None:
        given = request.headers.getlist("x-proxy-secret")
        names = request.headers.getlist(self.header)
        if len(given) != 1 or len(names) != 1 or not names[0].strip():
            return None
        if not hmac.compare_digest(token_digest(given[0]), token_digest(self.secret)):
            return None
        name = names[0].strip()
        tenant: str | None = None
        if self.tenant_header:
            tenants = request.headers.getlist(self.tenant_header)
            if len(tenants) != 1 or not tenants[0].strip():
                return None  # never everybody's runs for want of a header
            tenant = tenants[0].strip()
        role: Role = "operator" if name in self.operators else self.role
        return Actor(
            name=name,
            auth="proxy",
            role=role,
            tenant=tenant,
            groups=self._groups(request),
            is_ambient=True,
        )

    def _groups(self, request: Request) -> tuple[str, ...]:
        if not self.groups_header:
            return ()
        named = ",".join(request.headers.getlist(self.groups_header)).split(",")
        return tuple(name.strip() for name in named if name.strip())

    def mark_of(self, actor: Actor) -> str:
        return ""

    def by_link(self, name: str) -> Actor:
        return linked(name)


def linked(name: str, aliases: tuple[str, ...] = ()) -> Actor:
    """A person who comes by a signed link."""
    return Actor(name=name, auth="signed_link", role="approver", aliases=aliases)


class _Session(msgspec.Struct, array_like=True):
    name: str
    mark: str
    until_s: int


def new_session(keys: Keys, auth: Auth, actor: Actor, until_s: int) -> str:
    """What the cookie holds."""
    session = _Session(actor.name, auth.mark_of(actor), until_s)
    return keys.sign(_SESSION, msgspec.msgpack.encode(session))


def actor_by_request(request: Request, auth: Auth, keys: Keys, now_s: float) -> Actor | None:
    """Who sends a request, or None. A token that is wrong is not made good by a session."""
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        return None  # somebody before us may have looked at the other one
    if given:
        scheme, _, token = given[0].partition(" ")
        return auth.by_token(token.strip()) if scheme.lower() == "bearer" else None
    if found := auth.by_headers(request):
        return found
    payload = keys.opened(_SESSION, request.cookies.get(COOKIE, ""))
    if payload is None:
        return None
    session = msgspec.msgpack.decode(payload, type=_Session)
    return auth.by_session(session.name, session.mark) if now_s < session.until_s else None
