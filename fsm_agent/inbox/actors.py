"""Who acts, and what they may do with what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from fsm_agent.run.person import identity

Role = Literal["viewer", "approver", "operator"]
Action = Literal["look", "decide", "operate"]

_MAY: dict[Role, frozenset[Action]] = {
    "viewer": frozenset({"look"}),
    "approver": frozenset({"look", "decide"}),
    "operator": frozenset({"look", "decide", "operate"}),
}


def least_role(action: Action) -> Role:
    """The role that one needs for it; those after it in the list have it too."""
    return next(role for role, actions in _MAY.items() if action in actions)


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """A person, as whatever established their name says."""

    name: str
    auth: str  # how the name was established: it goes on record with each decision
    role: Role = "operator"
    tenant: str | None = None  # None: every tenant
    aliases: tuple[str, ...] = ()  # other names of the same person
    groups: tuple[str, ...] = ()  # whom else a request may be meant for, with this person
    is_ambient: bool = False  # a browser adds the credential by itself, also for other sites

    def may(self, action: Action) -> bool:
        """Whether the role allows it at all."""
        return action in _MAY[self.role]

    def sees(self, tenant: str) -> bool:
        """Whether a tenant's runs exist for this person."""
        return self.tenant is None or self.tenant == tenant

    def is_also(self, name: str) -> bool:
        """Whether `name` is this person, under whichever of their names."""
        who = identity(name)
        return bool(who) and who in {identity(each) for each in (self.name, *self.aliases)}

    def is_among(self, names: Iterable[str]) -> bool:
        """Whether one of `names` is this person or a group of theirs."""
        asked = {identity(name) for name in names} - {""}
        return any(identity(own) in asked for own in (self.name, *self.aliases, *self.groups))
