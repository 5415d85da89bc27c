"""Encryption at rest: keys by id, and bytes that only fit the place that they were sealed for."""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from .errors import MissingKey, StoreDiverged, StoreUsageError

KEYS, KEYS_FILE = "FSM_AGENT_KEYS", "FSM_AGENT_KEYS_FILE"
_ID = re.compile(r"[A-Za-z0-9._-]{1,32}")
_NONCE = 12


class KeyRing:
    """Keys of 32 bytes by id. The first one encrypts, all of them decrypt. Never shown."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        for name, key in keys.items():
            if not _ID.fullmatch(name):
                raise StoreUsageError(
                    f"{name[:40]!r} is no id of a key. Use 1 to 32 letters, digits, '.', '_', '-'."
                )
            if len(key) != 32:
                raise StoreUsageError(
                    f"key {name!r} has {len(key)} bytes instead of 32. "
                    "Make one: head -c 32 /dev/urandom | base64"
                )
        if not keys:
            raise StoreUsageError("there is no key. Give one as ID:BASE64.")
        self._keys = dict(keys)

    @classmethod
    def parse(cls, text: str, source: str) -> KeyRing:
        """Keys as `ID:BASE64`, with commas or line ends between them. Raises StoreUsageError."""
        keys: dict[str, bytes] = {}
        for number, each in enumerate(filter(None, re.split(r"[,\s]+", text)), 1):
            name, colon, encoded = each.partition(":")
            # Nothing of `each` in a message: what was meant as an id may be the key.
            try:
                key = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                colon = ""
            if not colon:
                raise StoreUsageError(f"{source}: key {number} is not written as ID:BASE64.")
            if name in keys:
                raise StoreUsageError(f"{source}: two keys have the id {name[:40]!r}.")
            keys[name] = key
        return cls(keys)

    @classmethod
    def of_environment(cls) -> KeyRing | None:
        """The keys of FSM_AGENT_KEYS, or of the file that FSM_AGENT_KEYS_FILE names; None: neither.

        Raises StoreUsageError.
        """
        if text := os.environ.get(KEYS):
            return cls.parse(text, KEYS)
        name = os.environ.get(KEYS_FILE)
        if not name:
            return None
        try:
            if Path(name).stat().st_mode & 0o022:
                raise StoreUsageError(f"{name} can be changed by others. Use chmod 600.")
            return cls.parse(Path(name).read_text(), name)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise StoreUsageError(f"{KEYS_FILE}: {name} cannot be read ({why}).") from error

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids, the one that encrypts first."""
        return tuple(self._keys)

    def key(self, name: str) -> bytes | None:
        """The key with this id, or None."""
        return self._keys.get(name)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self.ids)})"


class Sealing:
    """A Sealer (see codec.py) by AES-256-GCM, with a key for each run made from those of the ring.

    The nonce is made from the bytes and their place with a key of its own: the same bytes in the
    same place are the same when they are sealed again, so a repeat is known as one, and no nonce
    is used for two different ones.
    """

    def __init__(self, ring: KeyRing, namespace: str) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise StoreUsageError(
                "encryption needs the library cryptography: pip install 'fsm-agent[encryption]'."
            ) from error
        self._ring, self._namespace, self._cipher = ring, namespace, AESGCM
        self._of = lru_cache(maxsize=1024)(self._derived)

    def seal(self, run_id: str, place: str, data: bytes) -> bytes:
        """See Sealer."""
        name = self._ring.ids[0]
        cipher, nonce_key = self._of(name, run_id)
        bound = self._bound(run_id, place)
        nonce = blake2b(bound + b"\0" + data, digest_size=_NONCE, key=nonce_key).digest()
        sealed: bytes = cipher.encrypt(nonce, data, bound)
        return bytes([len(name)]) + name.encode() + nonce + sealed

    def open(self, run_id: str, place: str, data: bytes) -> bytes:
        """See Sealer."""
        from cryptography.exceptions import InvalidTag

        name, rest = _named(data)
        if self._ring.key(name) is None:
            raise MissingKey(f"run {run_id!r}: {place} is encrypted with the key {name!r}")
        cipher, _ = self._of(name, run_id)
        try:
            opened: bytes = cipher.decrypt(rest[:_NONCE], rest[_NONCE:], self._bound(run_id, place))
        except (InvalidTag, ValueError) as error:
            raise StoreDiverged(
                f"run {run_id!r}: {place} does not decrypt with the key {name!r}: its bytes were "
                "changed, or are of another place."
            ) from error
        return opened

    def _bound(self, run_id: str, place: str) -> bytes:
        return f"{self._namespace}\0{run_id}\0{place}".encode()

    def _derived(self, name: str, run_id: str) -> tuple[Any, bytes]:
        key = self._ring.key(name)
        assert key is not None
        scope = f"{self._namespace}\0{run_id}".encode()
        made = blake2b(scope, digest_size=64, key=key, person=b"fsm-run-keys").digest()
        return self._cipher(made[:32]), made[32:]

    # -- the namespace ------------------------------------------------------------------------

    def new_secret(self) -> bytes:
        """A secret of the namespace, sealed: it keys the hash chains."""
        return self.seal("", "secret", secrets.token_bytes(32))

    def secret_of(self, sealed: bytes) -> tuple[bytes, bytes | None]:
        """The secret, and how it is to be stored from now on where another key encrypts by now.

        Raises StoreUsageError if the ring has not its key, or another one under the same id.
        """
        name, _ = _named(sealed)
        where = f"namespace {self._namespace!r}"
        if self._ring.key(name) is None:
            known = ", ".join(self._ring.ids)
            raise MissingKey(f"{where} is encrypted with the key {name!r}, and given were: {known}")
        try:
            secret = self.open("", "secret", sealed)
        except StoreDiverged as error:
            raise StoreUsageError(
                f"{where} was encrypted with another key than the one that has the id {name!r} "
                "here. Give the right one."
            ) from error
        is_current = name == self._ring.ids[0]
        return secret, None if is_current else self.seal("", "secret", secret)


def _named(data: bytes) -> tuple[str, bytes]:
    """The id of the key that sealed `data`, and the rest of it."""
    size = data[0] if data else 0
    return data[1 : size + 1].decode(errors="replace"), data[size + 1 :]
