"""Store addresses: what a URL says, before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NoReturn, cast
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from .errors import BadStoreUrl

FORMS = (
    "embedded:FOLDER, redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss://… (TLS), "
    "unix://[[USER]:PASSWORD@]/PATH[?db=N], redis+cluster://HOST[:PORT][,HOST…] "
    "or redis+sentinel://HOST[:PORT][,HOST…]/SERVICE"
)
_SCHEMES = {
    "redis": "server",
    "rediss": "server",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
}
Kind = Literal["server", "cluster", "sentinel"]
_TLS_OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"})
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})
# What a store is to do, which `connect` reads; secrets have no place among them.
_STORE_OPTIONS = frozenset(
    {"durability", "durability_for", "durability_s", "compress", "namespace"}
)


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store is. Exactly one of folder, path and host is set."""

    kind: Kind = "server"
    service: str = ""  # the name of the primary that a sentinel is asked for
    folder: Path | None = None
    path: str = ""
    host: str = ""
    port: int = 6379
    others: tuple[tuple[str, int], ...] = ()  # further sentinels, or nodes of the cluster
    database: int = 0
    username: str = ""
    password: str = ""
    is_tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verifies: bool = True
    sentinel_username: str = ""
    sentinel_password: str = ""
    options: dict[str, str] = {}  # of _STORE_OPTIONS

    def __str__(self) -> str:
        """For messages: never the password."""
        if self.folder is not None:
            return f"embedded:{self.folder}"
        if self.path:
            return self.path
        shown = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{shown}/{self.service}" if self.service else shown

    @property
    def hosts(self) -> tuple[tuple[str, int], ...]:
        """Every host that the address names, the first one first."""
        return ((self.host, self.port), *self.others)


def parse(url: str) -> Address:
    """What a URL says. Raises BadStoreUrl, which never repeats a password."""
    if url.startswith("embedded:"):
        return _embedded(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        _refuse(url, str(error))
    options = _options(parts.query)
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    hosts_text = parts.netloc.rpartition("@")[2]
    wishes = {name: options.pop(name) for name in list(options) if name in _STORE_OPTIONS}
    if parts.scheme == "unix":
        if not parts.path or parts.path == "/" or hosts_text:
            _refuse(url, "it needs an absolute path: unix:///run/redis.sock")
        database = _database(url, options.pop("db", "0"))
        _no_more(url, options)
        return Address(
            path=unquote(parts.path),
            database=database,
            username=username,
            password=password,
            options=wishes,
        )
    if parts.scheme not in _SCHEMES:
        _refuse(url, "the part before ':' is none that I know")
    if not hosts_text:
        _refuse(url, "it names no host")
    kind, path = cast(Kind, _SCHEMES[parts.scheme]), unquote(parts.path.strip("/"))
    service = path if kind == "sentinel" else ""
    if kind == "sentinel" and not service:
        _refuse(url, "it names no service: redis+sentinel://HOST/SERVICE")
    (host, port), *others = _hosts(url, hosts_text, 26379 if kind == "sentinel" else 6379)
    if others and kind == "server":
        _refuse(url, "several hosts need redis+sentinel:// or redis+cluster://")
    if kind == "cluster" and (path or "db" in options):
        _refuse(url, "a cluster has no databases")
    database = _database(url, options.pop("db", "") or ("" if service else path) or "0")
    tls = {name: options.pop(name) for name in list(options) if name in _TLS_OPTIONS}
    if tls and not parts.scheme.startswith("rediss"):
        _refuse(url, "certificates need rediss://")
    logins = {name: options.pop(name) for name in list(options) if name in _SENTINEL_OPTIONS}
    if logins and kind != "sentinel":
        _refuse(url, "a sentinel's password needs redis+sentinel://")
    _no_more(url, options)
    return Address(
        kind=kind,
        service=service,
        host=host,
        port=port,
        others=tuple(others),
        database=database,
        is_tls=parts.scheme.startswith("rediss"),
        ca_file=tls.get("ssl_ca_certs"),
        cert_file=tls.get("ssl_certfile"),
        key_file=tls.get("ssl_keyfile"),
        verifies=tls.get("ssl_cert_reqs", "required") != "none",
        username=username,
        password=password,
        sentinel_username=logins.get("sentinel_username", ""),
        sentinel_password=logins.get("sentinel_password", ""),
        options=wishes,
    )


def has_password(url: str) -> bool:
    """Whether the address tells a secret. Raises BadStoreUrl."""
    address = parse(url)
    return bool(address.password or address.sentinel_password)


def without_password(url: str) -> str:
    """The address as it may be shown and kept. Raises BadStoreUrl."""
    if not has_password(url):
        return url
    scheme, _, rest = url.partition("://")
    place, _, query = rest.rpartition("@")[2].partition("?")
    kept = [each for each in query.split("&") if not each.startswith("sentinel_password=")]
    return f"{scheme}://{place}" + ("?" + "&".join(kept) if kept != [""] and kept else "")


def _options(query: str) -> dict[str, str]:
    """Also those without a value: a promise that is spelled badly must not be passed over."""
    return {name: each[-1] for name, each in parse_qs(query, keep_blank_values=True).items()}


def _hosts(url: str, text: str, default: int) -> list[tuple[str, int]]:
    """`HOST[:PORT][,HOST[:PORT]]…`; an IPv6 address stands in brackets."""
    found = []
    for each in text.split(","):
        try:
            one = urlsplit(f"//{each}")
            host, port = one.hostname, one.port or default
        except ValueError as error:
            _refuse(url, str(error).lower())
        if not host:
            _refuse(url, "it names no host")
        found.append((host, port))
    return found


def _embedded(url: str) -> Address:
    place = url.removeprefix("embedded:")
    folder, _, query = place.rpartition("?")
    if not folder or "=" not in query:  # a name may hold a '?'; what follows it is no option then
        folder, query = place, ""
    options = _options(query)
    if not folder or "\0" in folder:
        _refuse(url, "it names no folder")
    if any(name.startswith("durability") for name in options):
        _refuse(url, "a folder's server has no copies to wait for, and is synced from outside")
    _no_more(url, {name: options[name] for name in options if name not in _STORE_OPTIONS})
    return Address(folder=Path(folder).expanduser().absolute(), options=options)


def _database(url: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        _refuse(url, "the database is not a number")
    return int(text)


def _no_more(url: str, options: dict[str, str]) -> None:
    if options:
        _refuse(url, f"there is no option {sorted(options)[0]!r}")


def _refuse(url: str, why: str) -> NoReturn:
    shown = url[:200]
    if "@" in shown:  # everything between scheme and host may be secret
        scheme, _, rest = shown.partition("://")
        shown = f"{scheme}://…@{rest.rpartition('@')[2]}"
    if "password=" in shown:
        shown = shown.partition("?")[0] + "?…"
    raise BadStoreUrl(f"{shown!r} is not a store address: {why}. Use {FORMS}.")
