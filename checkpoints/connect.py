"""Opening a store from its address."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from . import durability, scripts
from .address import Address, Kind, parse
from .cluster import ClusterLines
from .errors import BadStoreUrl, StoreUnavailable
from .keys import checked_namespace
from .pipeline import Dial, Line, Wire
from .sealing import KeyRing
from .settings import COMPRESS_FROM, StoreSettings
from .transport import Ambiguous, ReplyError, Unreachable

if TYPE_CHECKING:
    from .redis_store import RedisStore

Revive = Callable[[], Awaitable[None]]


async def open_store(
    url: str,
    *,
    namespace: str = "fsm",
    partitions: int | None = None,
    durable: bool = False,
    settings: StoreSettings | None = None,
    keys: KeyRing | None = None,
) -> RedisStore:
    """A store at `embedded:FOLDER`, `redis://…` or another of the forms in address.py.

    The number of partitions is fixed when a namespace is created: 1 in a folder, 64 on a server by
    default; naming another one later is refused. `durable` makes an embedded server that this call
    starts write to the disk before each answer, against a loss of power. What the address says of
    `durability`, `compress` and `namespace` counts before the arguments. With `keys` (default:
    those of FSM_AGENT_KEYS or FSM_AGENT_KEYS_FILE) everything is encrypted.

    Fails fast: raises BadStoreUrl, StoreUnavailable naming the address, or StoreUsageError.
    """
    address = parse(url)
    namespace = checked_namespace(address.options.get("namespace", namespace))
    keys = keys or KeyRing.of_environment()
    settings = _with_options(settings or StoreSettings(), address)
    if address.folder is not None:
        return await _open_embedded(address, namespace, partitions, durable, settings, keys)
    from .redis_store import RedisStore

    # On a cluster a plain connection will do to listen: what is published reaches all nodes.
    ear = dialler(msgspec.structs.replace(address, kind=_ear_kind(address)), settings)
    store = RedisStore(
        lambda: _transport(address, settings), settings=settings, keys=keys, dial_ear=ear
    )
    await _begin(store, namespace, partitions, default=64)
    return store


def _transport(address: Address, settings: StoreSettings) -> Line | ClusterLines:
    if address.kind == "cluster":
        return ClusterLines(
            address.hosts,
            lambda host, port: dialler(_node(address, host, port), settings),
            str(address),
        )
    return Line(dialler(address, settings), str(address))


def _with_options(settings: StoreSettings, address: Address) -> StoreSettings:
    """The settings with what the address asks for."""
    options, policy = address.options, settings.durability
    if "compress" in options:
        compress_from = _compress_from(options["compress"])
        settings = msgspec.structs.replace(settings, compress_from=compress_from)
    if "durability" in options:
        policy = durability.parse(
            options["durability"],
            options.get("durability_for", "unsafe"),
            options.get("durability_s", "2"),
        )
    elif alone := [name for name in sorted(options) if name.startswith("durability_")]:
        raise BadStoreUrl(f"{alone[0]} needs durability=memory:N or disk:N beside it.")
    if policy is None:
        return msgspec.structs.replace(settings, durability=None)
    # A server that waits for its replicas is silent meanwhile, and not dead.
    patience_s = max(settings.answer_s, policy.wait_s + 2)
    return msgspec.structs.replace(settings, durability=policy, answer_s=patience_s)


def _compress_from(text: str) -> int | None:
    if text == "off":
        return None
    if text == "on":
        return COMPRESS_FROM
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise BadStoreUrl(f"compress={text!r} is not known. Use on, off, or a size in bytes.")
    return int(text)


def _node(address: Address, host: str, port: int) -> Address:
    """A node of a cluster as a server of its own."""
    return msgspec.structs.replace(address, kind="server", host=host, port=port, others=())


async def _open_embedded(
    address: Address,
    namespace: str,
    partitions: int | None,
    durable: bool,
    settings: StoreSettings,
    keys: KeyRing | None,
) -> RedisStore:
    from .embedded import EmbeddedServer
    from .redis_store import RedisStore

    assert address.folder is not None
    server = EmbeddedServer(address.folder, durable=durable)
    socket = await asyncio.to_thread(server.enter)
    local = Address(path=socket)

    async def revive() -> None:
        await asyncio.to_thread(server.ensure)

    async def leave() -> None:
        await asyncio.to_thread(server.leave)

    store = RedisStore(
        lambda: Line(dialler(local, settings, revive), str(address)),
        settings=settings,
        keys=keys,
        on_close=leave,
        dial_ear=dialler(local, settings),
    )
    await _begin(store, namespace, partitions, default=1)
    return store


def _ear_kind(address: Address) -> Kind:
    return "server" if address.kind == "cluster" else address.kind


async def _begin(
    store: RedisStore, namespace: str, partitions: int | None, *, default: int
) -> None:
    try:
        await store.begin(namespace, partitions, default=default)
    except BaseException:
        await store.aclose()
        raise


async def load_scripts(url: str) -> None:
    """Give the server at `url`, or every primary of the cluster, the scripts of this package.

    Raises BadStoreUrl or StoreUnavailable.
    """
    address, settings = parse(url), StoreSettings()
    if address.folder is not None:
        return  # its users may do so themselves
    transport = _transport(address, settings)
    try:
        lines = [transport] if isinstance(transport, Line) else await transport.primaries()
        for line in lines:
            await scripts.load_all(line)
    except ReplyError as error:
        raise refused(str(address), error) from error
    except (Unreachable, Ambiguous) as error:
        raise StoreUnavailable(str(error)) from error
    finally:
        await transport.aclose()


def dialler(address: Address, settings: StoreSettings, revive: Revive | None = None) -> Dial:
    """How to make a connection that is logged in and in its database.

    `revive` is called when nobody answers, then the connection is tried once more.
    """

    async def dial() -> Wire:
        try:
            async with asyncio.timeout(settings.connect_s):
                return await _greeted(address, settings)
        except (OSError, TimeoutError, Ambiguous) as error:
            if revive is None:
                raise Unreachable(_absent(address, error)) from error
        await revive()
        try:
            async with asyncio.timeout(settings.connect_s):
                return await _greeted(address, settings)
        except (OSError, TimeoutError, Ambiguous) as error:
            raise Unreachable(_absent(address, error)) from error

    return dial


async def _greeted(address: Address, settings: StoreSettings) -> Wire:
    """A connection that is logged in, at the primary that a sentinel names if there is one."""
    if address.kind != "sentinel":
        return await _logged_in(address, settings)
    wire = await _logged_in(await _primary(address, settings), settings)
    try:
        role = await wire.send(("ROLE",))
    except BaseException:
        wire.drop("the greeting failed")
        raise
    if role[0] != b"master":
        # The sentinel has not heard yet, or its word was old when it came.
        wire.drop("not a primary")
        raise ConnectionError("the sentinels name a server that is not a primary")
    return wire


async def _logged_in(address: Address, settings: StoreSettings) -> Wire:
    loop = asyncio.get_running_loop()
    if address.path:
        _, wire = await loop.create_unix_connection(lambda: Wire(settings.answer_s), address.path)
    else:
        _, wire = await loop.create_connection(
            lambda: Wire(settings.answer_s),
            address.host,
            address.port,
            ssl=_tls(address) if address.is_tls else None,
        )
    try:
        if address.password:
            login = (
                (address.username, address.password) if address.username else (address.password,)
            )
            await wire.send(("AUTH", *login))
        if address.database:
            await wire.send(("SELECT", address.database))
    except BaseException:
        wire.drop("the greeting failed")
        raise
    return wire


async def _primary(address: Address, settings: StoreSettings) -> Address:
    """Where the service's primary is now, asked before every connection: failovers move it.

    The first sentinel that knows is believed; one that is away or that knows nothing is passed by.
    """
    last: Exception = ConnectionError("no sentinel was asked")
    for host, port in address.hosts:
        sentinel = msgspec.structs.replace(
            _node(address, host, port),
            service="",
            username=address.sentinel_username,
            password=address.sentinel_password,
            database=0,
        )
        try:
            # Short of the whole time that a connection may take: the next one wants its turn.
            async with asyncio.timeout(settings.connect_s / (len(address.hosts) + 1)):
                return await _named(sentinel, address, settings)
        except (OSError, TimeoutError, Ambiguous) as error:
            last = error
    raise last


async def _named(sentinel: Address, address: Address, settings: StoreSettings) -> Address:
    """The primary that this sentinel names. Raises ConnectionError if it names none."""
    wire = await _logged_in(sentinel, settings)
    try:
        found = await wire.send(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service))
    except ReplyError as error:
        raise ConnectionError(f"the sentinel answered: {error}") from error
    finally:
        wire.drop("asked")
    if found is None:
        raise ConnectionError(f"the sentinel knows no service {address.service!r}")
    return msgspec.structs.replace(_node(address, found[0].decode(), int(found[1])), service="")


def _tls(address: Address) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.ca_file)
        if address.cert_file:
            context.load_cert_chain(address.cert_file, address.key_file)
    except OSError as error:  # SSLError too
        names = ", ".join(filter(None, (address.ca_file, address.cert_file, address.key_file)))
        why = error.strerror or str(error)
        raise ConnectionError(f"a certificate or key cannot be used: {why}: {names}") from error
    if not address.verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _absent(address: Address, error: Exception) -> str:
    match error:
        case ConnectionRefusedError():
            why = "connection refused"
        case FileNotFoundError():
            why = "no such socket"
        case TimeoutError():
            why = "no answer in time"
        case ssl.SSLError():
            why = f"TLS failed: {error.reason or error}"
        case OSError() if error.strerror:
            why = error.strerror.lower()
        case _:
            why = str(error) or type(error).__name__
    return f"no Redis at {address} ({why}). Start one, or use --store embedded:FOLDER."


def refused(address: str, error: ReplyError) -> StoreUnavailable:
    """A server that will not have us: nothing that waiting would change."""
    hint = {
        "NOAUTH": "Put the password into the address: redis://:PASSWORD@HOST.",
        "WRONGPASS": "The user name or password in the address is wrong.",
        "NOPERM": "The user of this store lacks a permission; see: fsm-agent doctor --acl.",
        "MOVED": "This is a node of a cluster: use redis+cluster://.",
        "CROSSSLOT": "This is a cluster: use redis+cluster://.",
    }.get(error.code, "")
    return StoreUnavailable(
        f"the store at {address} refuses: {error}. {hint}".strip(), applied=False
    )
