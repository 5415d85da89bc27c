"""The file of people who may log in: names, roles, tenants, and hashes of their tokens."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fsm_agent.errors import UsageError
from fsm_agent.inbox.actors import Actor, Role
from fsm_agent.run.person import identity


class User(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A line of the file. The token itself is in no file: it is shown once."""

    name: str
    token_sha256: str
    role: Role = "approver"
    tenant: str | None = None
    aliases: tuple[str, ...] = ()  # other names that runs may know this person by
    groups: tuple[str, ...] = ()  # such as 'support': requests may be meant for one
    slack: str = ""  # their id in Slack, such as U024BE7LH


class _File(msgspec.Struct, forbid_unknown_fields=True):
    users: list[User] = []


class Users:
    """People by name and by token. The file is read again when it changes."""

    def __init__(self, file: Path) -> None:
        self._file, self._stamp = file, (0, 0)
        self._users: dict[str, User] = {}
        self._read()

    def by_token(self, token: str) -> User | None:
        """Whose token it is. Every user is looked at, so that time tells nothing."""
        digest = token_digest(token)
        found = None
        for user in self._now().values():
            if hmac.compare_digest(user.token_sha256, digest):
                found = user
        return found

    def by_name(self, name: str) -> User | None:
        """The user with exactly this name."""
        return self._now().get(identity(name))

    def known_as(self, name: str) -> User | None:
        """The user with this name, or else the one who has it among their other names."""
        if user := self.by_name(name):
            return user
        who = identity(name)
        found = [user for user in self._now().values() if who in map(identity, user.aliases)]
        return found[0] if who and len(found) == 1 else None

    def by_slack(self, slack_id: str) -> User | None:
        """The user whose id in Slack it is."""
        found = [user for user in self._now().values() if slack_id and user.slack == slack_id]
        return found[0] if len(found) == 1 else None

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> dict[str, User]:
        try:
            status = self._file.stat()
        except OSError:
            return {}  # the file is gone: nobody may log in
        if (status.st_mtime_ns, status.st_size) != self._stamp:
            self._read()
        return self._users

    def _read(self) -> None:
        """Raises UsageError, naming what is wrong."""
        try:
            status = self._file.stat()
            found = msgspec.json.decode(self._file.read_bytes(), type=_File)
        except OSError as error:
            raise UsageError(
                f"{self._file}: {error.strerror}. Make it: fsm-agent inbox --users {self._file}"
                " --add NAME."
            ) from error
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(f"{self._file} is not a file of users: {error}") from error
        if status.st_mode & 0o022:
            raise UsageError(f"{self._file} can be written by others. Try chmod 600.")
        users = {identity(user.name): user for user in found.users}
        names = [who for user in found.users for who in _identities(user)]
        if len(set(names)) < len(names) or "" in users:
            raise UsageError(f"{self._file}: two users share a name, or one has none.")
        self._users, self._stamp = users, (status.st_mtime_ns, status.st_size)


def _identities(user: User) -> set[str]:
    return {identity(name) for name in (user.name, *user.aliases)} - {""}


def token_digest(token: str) -> str:
    """What is kept of a token. It has 256 random bits: no slow hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def add_user(
    file: Path, name: str, *, role: Role, tenant: str | None, groups: Sequence[str] = ()
) -> str:
    """Put a user in the file, or give a known one a new token; the token. Without `groups` a known
    one stays in theirs. Raises UsageError."""
    if not identity(name) or len(name) > 128:
        raise UsageError(f"{name!r} is not a name. Use 1 to 128 characters that can be seen.")
    users = dict(Users(file)._users) if file.exists() else {}
    token = secrets.token_urlsafe(32)
    known = users.get(identity(name))
    fresh = User(
        name=name, token_sha256=token_digest(token), role=role, tenant=tenant, groups=tuple(groups)
    )
    if known:
        fresh = msgspec.structs.replace(
            fresh,
            name=known.name,
            groups=fresh.groups or known.groups,
            aliases=known.aliases,
            slack=known.slack,
        )
    users[identity(name)] = fresh
    raw = msgspec.json.format(msgspec.json.encode(_File(list(users.values()))))
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(raw + b"\n")
    draft.replace(file)
    return token


def actor_of(user: User, auth: str, *, is_ambient: bool = False) -> Actor:
    """The person that a user is."""
    return Actor(
        name=user.name,
        auth=auth,
        role=user.role,
        tenant=user.tenant,
        aliases=user.aliases,
        groups=user.groups,
        is_ambient=is_ambient,
    )
