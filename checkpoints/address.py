"""Store addresses: what a URL says, before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NoReturn, cast
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from .errors import BadStoreUrl

FORMS = (
    "embedded:FOLDER, redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], rediss://… (TLS), "
    "unix://[[USER]:PASSWORD@]/PATH[?db=N], redis+cluster://HOST[:PORT] "
    "or redis+sentinel://HOST[:PORT]/SERVICE"
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


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store is. Exactly one of folder, path and host is set."""

    kind: Kind = "server"
    service: str = ""  # the name of the primary that a sentinel is asked for
    folder: Path | None = None
    path: str = ""
    host: str = ""
    port: int = 6379
    database: int = 0
    username: str = ""
    password: str = ""
    is_tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verifies: bool = True

    def __str__(self) -> str:
        """For messages: never the password."""
        if self.folder is not None:
            return f"embedded:{self.folder}"
        if self.service:
            return f"{self.host}:{self.port}/{self.service}"
        return self.path or f"{self.host}:{self.port}"


def parse(url: str) -> Address:
    """What a URL says. Raises BadStoreUrl, which never repeats a password."""
    if url.startswith("embedded:"):
        return _embedded(url)
    try:
        parts = urlsplit(url)
        port = parts.port or (26379 if "sentinel" in parts.scheme else 6379)
    except ValueError as error:
        _refuse(url, str(error))
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    if parts.scheme == "unix":
        if not parts.path or parts.path == "/" or parts.hostname:
            _refuse(url, "it needs an absolute path: unix:///run/redis.sock")
        database = _database(url, options.pop("db", "0"))
        _no_more(url, options)
        path = unquote(parts.path)
        return Address(path=path, database=database, username=username, password=password)
    if parts.scheme not in _SCHEMES:
        _refuse(url, "the part before ':' is none that I know")
    if not parts.hostname:
        _refuse(url, "it names no host")
    kind, path = cast(Kind, _SCHEMES[parts.scheme]), unquote(parts.path.strip("/"))
    service = path if kind == "sentinel" else ""
    if kind == "sentinel" and not service:
        _refuse(url, "it names no service: redis+sentinel://HOST/SERVICE")
    if kind == "cluster" and (path or "db" in options):
        _refuse(url, "a cluster has no databases")
    database = _database(url, options.pop("db", "") or ("" if service else path) or "0")
    tls = {name: options.pop(name) for name in list(options) if name in _TLS_OPTIONS}
    if tls and not parts.scheme.startswith("rediss"):
        _refuse(url, "certificates need rediss://")
    _no_more(url, options)
    return Address(
        kind=kind,
        service=service,
        host=parts.hostname,
        port=port,
        database=database,
        is_tls=parts.scheme.startswith("rediss"),
        ca_file=tls.get("ssl_ca_certs"),
        cert_file=tls.get("ssl_certfile"),
        key_file=tls.get("ssl_keyfile"),
        verifies=tls.get("ssl_cert_reqs", "required") != "none",
        username=username,
        password=password,
    )


def _embedded(url: str) -> Address:
    folder = url.removeprefix("embedded:")
    if not folder or "\0" in folder:
        _refuse(url, "it names no folder")
    return Address(folder=Path(folder).expanduser().absolute())


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
    raise BadStoreUrl(f"{shown!r} is not a store address: {why}. Use {FORMS}.")
