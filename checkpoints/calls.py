"""What all calls of a store share: connections, repeats, checks of ids and sizes."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
)
from math import inf
from random import Random, SystemRandom
from typing import Any, NamedTuple, Self, TypeVar

import structlog

from . import answers, scripts
from .attempts import settle
from .codec import Codec
from .durability import Confirming, Shortfall
from .errors import (
    CheckpointError,
    EntryTooLarge,
    MissingKey,
    NotDurable,
    RunNotFound,
    StoreDiverged,
    StoreRegressed,
    StoreUnavailable,
    StoreUsageError,
)
from .keys import Keys, PartitionKeys, RunKeys, meta_key
from .pipeline import Dial
from .sealing import KeyRing, Sealing
from .settings import StoreSettings
from .steady import monotonic
from .together import together
from .transport import Arg, Reply, ReplyError, Transport

T = TypeVar("T")
log = structlog.get_logger(__name__)

_LAYOUT = 1
_KNOWN = 4096  # runs and leases that are remembered
_FRESH_S = 3600.0


class Written(NamedTuple):
    """A script's answer, what its copies lack yet, and the local time before it was sent."""

    reply: list[bytes]
    short: Shortfall | None
    sent: float


class Known(NamedTuple):
    """What the store has acknowledged of a run to this process."""

    seq: int = 0
    created: int = 0  # by the store's clock, in ms; 0: not told. Another one is another run
    written_s: float = -inf  # local time when it was last written or claimed here

    def is_other(self, created: int) -> bool:
        """Whether the run of this name that was created then is another one."""
        return bool(created and self.created and created != self.created)

    @property
    def is_fresh(self) -> bool:
        """Whether it was written here so lately that, if it is gone, a failover may have lost it.
        Later it is likely to have ended and been removed."""
        return monotonic() - self.written_s < _FRESH_S


_UNKNOWN = Known()


class Calls:
    """One process's way to a namespace."""

    def __init__(
        self,
        new_transport: Callable[[], Transport],
        *,
        settings: StoreSettings | None = None,
        keys: KeyRing | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
        chance: Random | None = None,
        dial_ear: Dial | None = None,
    ) -> None:
        """`chance` is what marks and pauses are drawn from (default: the system's)."""
        self._chance = chance or SystemRandom()
        """`dial_ear` makes a connection to listen for wake-ups on; without it there are none."""
        self.settings = settings or StoreSettings()
        self._new_transport, self._dial_ear = new_transport, dial_ear
        # Two connections: a journal of megabytes must not stand before a commit.
        self._line, self._reads = new_transport(), new_transport()
        policy = self.settings.durability
        self._confirming = Confirming(policy, new_transport) if policy else None
        self.address = self._line.address
        self.key_ring = keys
        self._codec = Codec(compress_from=self.settings.compress_from)
        self._chain_key = b""  # of the hash chains, where the store is encrypted
        self._on_close = on_close
        self._keys: Keys | None = None
        self._pid = os.getpid()
        # Per lease nonce: local time before the last call that moved the lease's end was sent.
        self._confirmed: OrderedDict[str, float] = OrderedDict()
        self._known: OrderedDict[str, Known] = OrderedDict()
        # Indexes that could not be read when they were last looked at: each is told of once.
        self._skipped: set[tuple[str, bytes]] = set()
        # Runs that were seen to be over: that they are gone some day is no loss.
        self._over: OrderedDict[str, None] = OrderedDict()

    async def begin(self, namespace: str, partitions: int | None, *, default: int = 64) -> None:
        """Read the namespace's partition count, or fix it. One try: who opens wants to know now.

        Raises StoreUsageError if another count was fixed before, or by a newer layout.
        """
        wanted = default if partitions is None else partitions
        if not 1 <= wanted <= 1024:
            raise StoreUsageError(f"{wanted} partitions are not possible. Use 1 to 1024.")
        key = meta_key(namespace)

        sealing = Sealing(self.key_ring, namespace) if self.key_ring else None

        async def fix() -> Reply:
            call = self._line.call
            if sealing:
                # Before the count: a namespace that has one is there, with what is in it.
                before, secret = await call("HMGET", key, "partitions", "secret")
                if before is None and secret is None:
                    await call("HSETNX", key, "secret", sealing.new_secret())
            await call("HSETNX", key, "partitions", wanted)
            await call("HSETNX", key, "layout", _LAYOUT)
            return await call("HMGET", key, "partitions", "layout", "secret")

        fixed, layout, secret = await self._settled(fix, until=0.0)
        if self._confirming:
            await self._settled(self._confirming.check, until=0.0)
        if fixed is None or layout is None or int(layout) != _LAYOUT:
            raise StoreUsageError(
                f"namespace {namespace!r} at {self.address} is of another layout than {_LAYOUT}. "
                "Use another namespace, or the version that made it."
            )
        if partitions is not None and int(fixed) != partitions:
            raise StoreUsageError(
                f"namespace {namespace!r} at {self.address} has {int(fixed)} partitions, "
                f"not {partitions}. The number is fixed when a namespace is created."
            )
        await self._unlock(namespace, key, sealing, secret)
        self._keys = Keys(namespace, int(fixed))

    def twin(self) -> Self:
        """See Schedule."""
        twin = type(self)(self._new_transport, settings=self.settings, dial_ear=self._dial_ear)
        twin._keys = self._all_keys()
        return twin

    async def _unlock(
        self, namespace: str, key: bytes, sealing: Sealing | None, secret: bytes | None
    ) -> None:
        """A namespace is encrypted from its first entry on, or never. Raises StoreUsageError."""
        if sealing is None:
            if secret is not None:
                raise MissingKey(f"namespace {namespace!r} at {self.address} is encrypted")
            return
        if secret is None:
            raise StoreUsageError(
                f"namespace {namespace!r} at {self.address} holds plain text, and keys were given. "
                "Encryption begins with a namespace: use another one, or give no keys."
            )
        self._chain_key, renewed = sealing.secret_of(secret)
        if renewed is not None:
            await self._settled(lambda: self._line.call("HSET", key, "secret", renewed), until=0.0)
        self._codec = Codec(compress_from=self.settings.compress_from, sealer=sealing)

    def _of(self, run_id: str) -> RunKeys:
        return self._all_keys().of(run_id)

    def _all_keys(self) -> Keys:
        if self._keys is None:
            raise StoreUsageError("this store was not begun: use open_store.")
        return self._keys

    async def _settled(self, once: Callable[[], Awaitable[T]], *, until: float | None = None) -> T:
        if os.getpid() != self._pid:
            # Two processes on one connection would read each other's answers.
            raise StoreUsageError(
                f"this store was opened by process {self._pid} before a fork. "
                "Open one in the child."
            )
        return await settle(
            once,
            address=self.address,
            until=monotonic() + self.settings.restart_s if until is None else until,
            renew_connection=self._renew_connection,
            jitter=self._chance.random,
        )

    def _new_mark(self) -> str:
        """What tells a repeat of this call from another call."""
        return f"{self._chance.getrandbits(64):016x}"

    def _renew_connection(self, reason: str) -> None:
        for transport in (self._line, self._reads, self._confirming):
            if transport is not None:
                transport.drop(reason)

    async def _script(
        self,
        name: scripts.Name,
        keys: tuple[bytes, ...],
        *args: Arg,
        until: float | None = None,
    ) -> list[bytes]:
        reply = await self._settled(lambda: scripts.run(self._line, name, keys, args), until=until)
        if reply[0] == b"FOREIGN":
            raise answers.foreign(reply[1])
        return reply

    async def _everywhere(
        self, index: str, call: Callable[[PartitionKeys, float | None], Awaitable[T]]
    ) -> list[T]:
        """What a call to each partition came to, but for those whose index holds something else, or
        whose server is away: one of them must not hide the runs of all others.

        Raises what is wrong with them if that goes for all.
        """
        parts = self._all_keys().partitions

        async def called(part: PartitionKeys, until: float | None) -> T | CheckpointError:
            try:
                return await call(part, until)
            except (StoreDiverged, StoreUnavailable) as error:
                return error

        # One try at first: nobody waits for a dead server who has others to ask.
        for until in (0.0, None) if len(parts) > 1 else (None,):
            told = await together([called(part, until) for part in parts])
            found = [each for each in told if not isinstance(each, CheckpointError)]
            if found:
                for part, each in zip(parts, told, strict=True):
                    self._tell_skipped((index, part.due), each)
                return found
        raise next(error for error in told if isinstance(error, CheckpointError))

    def _tell_skipped(self, place: tuple[str, bytes], came: object) -> None:
        if not isinstance(came, CheckpointError):
            self._skipped.discard(place)
        elif place not in self._skipped:
            self._skipped.add(place)
            log.error(
                "checkpoints.partition_skipped",
                index=place[0],
                partition=place[1].decode(),
                why=str(came),
            )

    async def _written(
        self,
        name: scripts.Name,
        keys: tuple[bytes, ...],
        args: tuple[Arg, ...],
        *,
        mark: bytes,
        is_critical: bool,
        until: float | None = None,
    ) -> Written:
        """What a script did, confirmed by copies where the durability asks for it."""
        confirming = self._confirming
        if confirming and not is_critical and confirming.policy.before != "every":
            confirming = None

        async def once() -> Written:
            sent = monotonic()
            if confirming is None:
                return Written(await scripts.run(self._line, name, keys, args), None, sent)
            return Written(*await confirming.run(name, keys, args, mark), sent)

        written = await self._settled(once, until=until)
        if written.reply[0] == b"FOREIGN":
            raise answers.foreign(written.reply[1])
        return written

    def _not_durable(self, what: str, short: Shortfall, committed: Any = None) -> NotDurable:
        return NotDurable(what, str(self.settings.durability), short.words, committed)

    async def _read(self, *args: Arg, until: float | None = None) -> Reply:
        try:
            return await self._settled(lambda: self._reads.call(*args), until=until)
        except StoreDiverged as error:
            if isinstance(error.__cause__, ReplyError) and error.__cause__.code == "WRONGTYPE":
                raise answers.foreign(_bytes(args[1])) from error
            raise

    def _remember(self, run_id: str, seq: int, created: int = 0, *, is_ours: bool = False) -> None:
        known = self._known_of(run_id)
        if known.is_other(created):
            self._forget(run_id)
            known = _UNKNOWN
        written_s = monotonic() if is_ours else known.written_s
        self._known[run_id] = Known(max(seq, known.seq), created or known.created, written_s)
        trim(self._known, run_id)

    def _known_of(self, run_id: str) -> Known:
        return self._known.get(run_id, _UNKNOWN)

    def _remember_over(self, run_id: str) -> None:
        self._over[run_id] = None
        trim(self._over, run_id)

    def _forget(self, run_id: str) -> None:
        self._known.pop(run_id, None)
        self._over.pop(run_id, None)

    def _lost(self, run_id: str, stored: int, created: int, known: Known) -> StoreRegressed | None:
        """What is to be said of a run that ends at `stored`, if the store has forgotten some of it.

        `known` is from before the question was sent: a commit may be acknowledged meanwhile. Of a
        run that was begun anew under its name it is said once.
        """
        if not known.is_other(created):
            return StoreRegressed(run_id, known.seq, stored) if stored < known.seq else None
        is_lost = known.is_fresh and run_id not in self._over
        self._remember(run_id, stored, created)
        return StoreRegressed(run_id, known.seq, stored, is_other=True) if is_lost else None

    def _check_known(self, run_id: str, stored: int, created: int, known: Known) -> None:
        if error := self._lost(run_id, stored, created, known):
            raise error
        self._remember(run_id, stored, created)

    def _alarm(self) -> Arg:
        """ARGV of create.lua."""
        share = int(self.settings.memory_alarm * 1000)
        return share if share > 0 else ""

    def _absent(self, run_id: str) -> CheckpointError:
        known = self._known_of(run_id)
        is_lost = known.is_fresh and run_id not in self._over
        return StoreRegressed(run_id, known.seq, 0) if is_lost else RunNotFound(run_id)

    def _check_sizes(self, bodies: Iterable[bytes], snapshot: bytes) -> None:
        sizes = [len(body) for body in bodies]
        largest, total = max(sizes), sum(sizes) + len(snapshot)
        if largest > self.settings.max_entry_bytes or total > self.settings.max_commit_bytes:
            raise EntryTooLarge(
                f"a commit of {total} bytes with an entry of {largest} is above the cap of "
                f"{self.settings.max_commit_bytes} and {self.settings.max_entry_bytes} bytes. "
                "Keep large data in blobs."
            )

    async def now_ms(self) -> int:
        """See Store."""
        seconds, micros = await self._settled(lambda: self._line.call("TIME"))
        return int(seconds) * 1000 + int(micros) // 1000

    async def aclose(self) -> None:
        """See Store."""
        if os.getpid() != self._pid:
            return
        for transport in (self._line, self._reads, self._confirming):
            if transport is not None:
                await transport.aclose()
        if self._on_close is not None:
            leave, self._on_close = self._on_close, None
            await leave()


def trim(table: OrderedDict[str, Any], key: str) -> None:
    """Make `key` the youngest of a table, and let the oldest go when it is full."""
    table.move_to_end(key)
    if len(table) > _KNOWN:
        table.popitem(last=False)


def _bytes(arg: Arg) -> bytes:
    return arg if isinstance(arg, bytes) else str(arg).encode()
