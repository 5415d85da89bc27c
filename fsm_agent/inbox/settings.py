"""What an inbox is told at its start: addresses, limits, times."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from fsm_agent.errors import UsageError

DEFAULT_PORT = 8765


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits and addresses. The defaults are safe on a laptop."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    base_url: str = ""  # as people reach it, such as https://inbox.example.org; '': host and port
    allowed_hosts: tuple[str, ...] = ()  # names besides those of loopback and of base_url
    max_body_bytes: int = 1_000_000
    body_s: float = 10.0  # a body that takes longer is given up
    max_streams: int = 2_000  # event streams that are open at once
    max_streams_of_one: int = 50  # of one person
    max_feeds: int = 64  # runs that are watched at once
    heartbeat_s: float = 15.0  # a comment on each idle stream
    look_s: float = 0.5  # between two looks at what waits for people
    session_s: float = 12 * 3600.0

    @property
    def url(self) -> str:
        """How people reach this inbox, without a slash at the end."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return (self.base_url or f"http://{shown}:{self.port}").rstrip("/")

    @property
    def is_https(self) -> bool:
        return self.url.startswith("https://")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, *, has_auth: bool) -> None:
    """Raises UsageError for an address that others reach while nobody has to say who they are."""
    if is_loopback(host) or has_auth:
        return
    raise UsageError(
        f"{host} can be reached from other machines, and nobody would have to log in. Give --users"
        " FILE or --proxy-header NAME, or listen on 127.0.0.1."
    )
