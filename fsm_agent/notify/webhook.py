"""A webhook: an address that is told of requests and endings, in signed JSON.

Headers and signature are those of the Standard Webhooks specification: `webhook-id` is the same in
every delivery of a notice, `webhook-signature` is `v1,` and the base64 of the HMAC-SHA256 over
`id.timestamp.body`. Receivers check it with the libraries that exist for that.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from fsm_agent.errors import MissingSetting, UsageError

URLS, SECRET, INBOX = "FSM_AGENT_WEBHOOK", "FSM_AGENT_WEBHOOK_SECRET", "FSM_AGENT_INBOX_URL"
TIMEOUT_S = 10.0
LEAST_SECRET_BYTES = 16
MOST_ANSWER_BYTES = 65_536


@dataclass(frozen=True)
class Webhook:
    """An address (http or https) and the secret that signs what goes there.

    The secret is any text of 16 characters or more; `whsec_` and base64 means the decoded bytes.
    Raises UsageError for an address or a secret that cannot work.
    """

    url: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise UsageError(
                f"{self.where!r} is no webhook address. Use https://HOST/PATH, or http:// inside "
                "your own network."
            )
        if len(_key_of(self.secret)) < LEAST_SECRET_BYTES:
            raise UsageError(
                f"the webhook secret is shorter than {LEAST_SECRET_BYTES} bytes. "
                "Make one: openssl rand -hex 32."
            )

    @property
    def where(self) -> str:
        """The address without what may be secret in it: paths and queries often are."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{re.split(r'[/?#]', rest, maxsplit=1)[0].rpartition('@')[2]}"

    @property
    def channel(self) -> str:
        """A short name for the address, for rows of the outbox that are for it alone."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:12]

    def headers(self, notice_id: str, at_s: int, body: bytes) -> dict[str, str]:
        """What goes with a body that is sent at `at_s` (seconds since 1970)."""
        signed = f"{notice_id}.{at_s}.".encode() + body
        mac = hmac.new(_key_of(self.secret), signed, hashlib.sha256).digest()
        return {
            "content-type": "application/json",
            "user-agent": "fsm-agent",
            "webhook-id": notice_id,
            "webhook-timestamp": str(at_s),
            "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
        }


@dataclass(frozen=True)
class Failure:
    """A delivery that did not arrive, as far as we know."""

    why: str
    retry_after_s: float | None = None  # the receiver's own wish
    is_final: bool = False  # the receiver wants no more of it (410)


class Sender:
    """Sends to webhooks over a client of its own. Redirects are not followed."""

    def __init__(self) -> None:
        self._httpx: Any = import_module("httpx2")
        self._client = self._httpx.AsyncClient(
            timeout=TIMEOUT_S, follow_redirects=False, max_redirects=0
        )

    async def send(
        self, webhook: Webhook, notice_id: str, body: bytes, *, at_s: int
    ) -> Failure | None:
        """Deliver once, within TIMEOUT_S in all. None: the receiver took it (2xx)."""
        headers = webhook.headers(notice_id, at_s, body)
        reply: Any = None
        try:
            # The client's own limit is for each read: an answer a byte at a time would never end.
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._client.stream("POST", webhook.url, content=body, headers=headers) as reply,
            ):
                await _drain(reply)
        except (self._httpx.HTTPError, TimeoutError) as error:
            if reply is None:
                return Failure(type(error).__name__)
        if 200 <= reply.status_code < 300:
            return None
        return Failure(
            f"HTTP {reply.status_code}",
            retry_after_s=_seconds(reply.headers.get("retry-after")),
            is_final=reply.status_code == 410,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def webhooks_of(environ: Mapping[str, str] = os.environ) -> tuple[Webhook, ...]:
    """The webhooks that the environment names: addresses in FSM_AGENT_WEBHOOK, separated by
    blanks, one secret for all in FSM_AGENT_WEBHOOK_SECRET.

    Raises MissingSetting without the secret, and UsageError for what cannot work.
    """
    urls = environ.get(URLS, "").split()
    if not urls:
        return ()
    secret = environ.get(SECRET, "")
    if not secret:
        raise MissingSetting(f"{URLS} is set and {SECRET} is not. Make one: openssl rand -hex 32.")
    return tuple(Webhook(url, secret) for url in dict.fromkeys(urls))


def _key_of(secret: str) -> bytes:
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError("the webhook secret begins with 'whsec_' and is not base64.") from error


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_reachable = bool(parts.hostname) and parts.port != 0  # `port` raises above 65535
    except ValueError:
        return False
    is_plain = url.isprintable() and not any(char.isspace() for char in url)
    return is_plain and is_reachable and parts.scheme in ("http", "https")


async def _drain(reply: Any) -> None:
    """Read the end of a short answer, so that the connection can be used again. What it says
    means nothing to us, so a long one is left where it is."""
    size_bytes = 0
    async for chunk in reply.aiter_raw():
        size_bytes += len(chunk)
        if size_bytes > MOST_ANSWER_BYTES:
            return


def _seconds(text: str | None) -> float | None:
    """Of a Retry-After in seconds; one with a date is not worth its parser."""
    return float(text) if text and text.isdigit() and len(text) < 10 else None
