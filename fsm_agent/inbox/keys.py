"""The secret that signs links and sessions."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from fsm_agent.errors import UsageError

MIN_BYTES = 16
_ENV = "FSM_AGENT_INBOX_SECRET"


class Keys:
    """Signs with the first secret, and takes the signatures of all: so a secret can be changed."""

    def __init__(self, *keys: bytes) -> None:
        if not keys or any(len(key) < MIN_BYTES for key in keys):
            raise UsageError(
                f"a secret of the inbox has fewer than {MIN_BYTES} bytes. Make one: "
                "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        self._keys: Sequence[bytes] = keys

    def sign(self, purpose: str, payload: bytes) -> str:
        """The payload with its signature, in letters that a URL may hold."""
        return f"{_text(payload)}.{_text(self._mac(self._keys[0], purpose, payload))}"

    def opened(self, purpose: str, signed: str) -> bytes | None:
        """The payload, or None if nobody with a secret signed exactly this for this purpose."""
        if len(signed) > 4_000:
            return None
        payload, mac = map(_bytes, (signed.partition(".")[0], signed.partition(".")[2]))
        if payload is None or mac is None:
            return None
        fits = [hmac.compare_digest(mac, self._mac(key, purpose, payload)) for key in self._keys]
        # Only in the one spelling that `sign` gives: base64 has several for the same bytes.
        return payload if any(fits) and f"{_text(payload)}.{_text(mac)}" == signed else None

    @staticmethod
    def _mac(key: bytes, purpose: str, payload: bytes) -> bytes:
        return hmac.digest(key, purpose.encode() + b"\0" + payload, "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None


def load_keys(store: str, folder: Path | None) -> Keys:
    """The secrets of FSM_AGENT_INBOX_SECRET (several with commas, the first signs), or the one
    that this machine keeps for the store, made on first use.

    `folder` is that of an embedded store; the secret of any other stands in the user's state.
    Raises UsageError for a secret that is too short, or that others can read.
    """
    if given := os.environ.get(_ENV):
        return Keys(*(part.strip().encode() for part in given.split(",") if part.strip()))
    if folder is None:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        digest = hashlib.sha256(store.encode()).hexdigest()[:12]
        file = Path(state) / "fsm-agent" / f"inbox-{digest}.key"
    else:
        file = folder / "inbox.key"
    return Keys(_kept(file))


def _kept(file: Path) -> bytes:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    if not file.exists():
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(secrets.token_urlsafe(32).encode())
        try:
            os.link(draft, file)  # of two processes that begin at once, one secret stays
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    status = file.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UsageError(f"{file} can be read by others, so it is no secret. Remove it.")
    return file.read_bytes().strip()
