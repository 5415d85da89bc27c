"""A server in this process: the real scripts in Lua over plain Python values, without I/O.

For simulations, where a thousand servers a minute are needed and nothing may leave the process.
It knows the commands that the scripts and the store use, and refuses others. The contract that
every store passes holds it to what real servers do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import cache
from math import inf, nextafter
from typing import Any

from .. import scripts
from ..transport import Arg, Reply, ReplyError
from .memory_values import Hash, Stream, Zset, bounds, score_text

_LOOK_S = 0.002  # between two looks of a blocked read


def machine_us() -> int:
    """Microseconds since 1970 by the machine's clock."""
    return time.time_ns() // 1000


class MemoryServer:
    """The data of one server. `now_us` is its clock."""

    def __init__(self, now_us: Callable[[], int] = machine_us) -> None:
        self._now_us = now_us
        self._values: dict[bytes, Any] = {}
        self._ends_ms: dict[bytes, int] = {}  # when a key expires
        # By hash and by text: it has all of them from the start.
        self._scripts = {part: name for name in scripts.NAMES for part in scripts.load(name)}
        self._redis = _lua().table_from({b"call": self._from_lua, b"pcall": self._from_lua})

    def call(self, *args: Arg) -> Reply:
        """Apply one command, whole. Raises ReplyError."""
        name, *rest = [one if isinstance(one, bytes) else str(one).encode() for one in args]
        now_ms = self._now_us() // 1000
        for key in [key for key, at_ms in self._ends_ms.items() if at_ms <= now_ms]:
            self._do_del(key)
        if name in (b"EVALSHA", b"EVAL"):
            return self._run(self._scripts[rest[0]], rest[1:])
        return self._apply(name, rest)

    def _run(self, script: scripts.Name, given: list[bytes]) -> Reply:
        count = int(given[0])
        keys, args = given[1 : 1 + count], given[1 + count :]
        lua = _lua()
        answer = _compiled(script)(lua.table_from(keys), lua.table_from(args), self._redis)
        return _from_table(answer)

    def _from_lua(self, name: bytes, *args: Any) -> Any:
        given = [one if isinstance(one, bytes) else b"%d" % one for one in args]
        return _to_lua(self._apply(name, given))

    def _apply(self, name: bytes, args: list[bytes]) -> Reply:
        command = getattr(self, "_do_" + name.decode().lower(), None)
        if command is None:
            raise ReplyError("ERR", f"unknown command '{name.decode()}'")
        return command(*args)

    # -- values -----------------------------------------------------------------------------------

    def _get(self, key: bytes, kind: type[Any]) -> Any:
        """The value of a key, or None. Raises ReplyError for one of another type."""
        value = self._values.get(key)
        if value is not None and type(value) is not kind:
            raise ReplyError("WRONGTYPE", "Operation against a key holding the wrong kind of value")
        return value

    def _make(self, key: bytes, kind: type[Any]) -> Any:
        value = self._get(key, kind)
        if value is None:
            value = self._values[key] = kind()
        return value

    def _tidy(self, key: bytes) -> None:
        """An empty hash, set or list is no key; an empty stream is one."""
        if not self._values.get(key, True):
            self._do_del(key)

    # -- keys -------------------------------------------------------------------------------------

    def _do_time(self) -> list[bytes]:
        seconds, micros = divmod(self._now_us(), 1_000_000)
        return [b"%d" % seconds, b"%d" % micros]

    def _do_type(self, key: bytes) -> bytes:
        names = {Hash: b"hash", Zset: b"zset", Stream: b"stream", list: b"list", bytes: b"string"}
        return names[type(self._values[key])] if key in self._values else b"none"

    def _do_exists(self, key: bytes) -> int:
        return int(key in self._values)

    def _do_del(self, *keys: bytes) -> int:
        for key in keys:
            self._ends_ms.pop(key, None)
        return sum(self._values.pop(key, None) is not None for key in keys)

    def _do_keys(self, pattern: bytes) -> list[bytes]:
        assert pattern == b"*"
        return list(self._values)

    def _do_pexpire(self, key: bytes, ms: bytes) -> int:
        return self._do_pexpireat(key, b"%d" % (self._now_us() // 1000 + int(ms)))

    def _do_pexpireat(self, key: bytes, at_ms: bytes) -> int:
        if key in self._values:
            self._ends_ms[key] = int(at_ms)
        return int(key in self._values)

    def _do_persist(self, key: bytes) -> int:
        return int(self._ends_ms.pop(key, None) is not None)

    def _do_pttl(self, key: bytes) -> int:
        if key not in self._values:
            return -2
        return self._ends_ms[key] - self._now_us() // 1000 if key in self._ends_ms else -1

    def _do_publish(self, channel: bytes, message: bytes) -> int:
        return 0  # nobody listens: a hint is never needed

    def _do_info(self, section: bytes = b"") -> bytes:
        return b"used_memory:0\r\nmaxmemory:0\r\n"

    def _do_get(self, key: bytes) -> Any:
        return self._get(key, bytes)

    def _do_set(self, key: bytes, value: bytes) -> bytes:
        self._values[key] = value
        self._ends_ms.pop(key, None)
        return b"OK"

    # -- hashes -----------------------------------------------------------------------------------

    def _do_hget(self, key: bytes, field: bytes) -> Any:
        return (self._get(key, Hash) or {}).get(field)

    def _do_hmget(self, key: bytes, *fields: bytes) -> list[Any]:
        value = self._get(key, Hash) or {}
        return [value.get(field) for field in fields]

    def _do_hgetall(self, key: bytes) -> list[bytes]:
        return [part for pair in (self._get(key, Hash) or {}).items() for part in pair]

    def _do_hlen(self, key: bytes) -> int:
        return len(self._get(key, Hash) or ())

    def _do_hkeys(self, key: bytes) -> list[bytes]:
        return list(self._get(key, Hash) or ())

    def _do_hexists(self, key: bytes, field: bytes) -> int:
        return int(field in (self._get(key, Hash) or ()))

    def _do_hset(self, key: bytes, *pairs: bytes) -> int:
        value = self._make(key, Hash)
        before = len(value)
        value.update(zip(pairs[0::2], pairs[1::2], strict=True))
        return len(value) - before

    def _do_hsetnx(self, key: bytes, field: bytes, value: bytes) -> int:
        table = self._make(key, Hash)
        is_new = field not in table
        table.setdefault(field, value)
        return int(is_new)

    def _do_hdel(self, key: bytes, *fields: bytes) -> int:
        value = self._get(key, Hash) or Hash()
        gone = [field for field in fields if value.pop(field, None) is not None]
        self._tidy(key)
        return len(gone)

    def _do_hincrby(self, key: bytes, field: bytes, by: bytes) -> int:
        value = self._make(key, Hash)
        after = int(value.get(field, b"0")) + int(by)
        value[field] = b"%d" % after
        return after

    # -- sorted sets ------------------------------------------------------------------------------

    def _do_zadd(self, key: bytes, score: bytes, member: bytes) -> int:
        value = self._make(key, Zset)
        is_new = member not in value
        value[member] = float(score)
        return int(is_new)

    def _do_zrem(self, key: bytes, *members: bytes) -> int:
        value = self._get(key, Zset) or Zset()
        gone = sum(value.pop(member, None) is not None for member in members)
        self._tidy(key)
        return gone

    def _do_zcount(self, key: bytes, low: bytes, high: bytes) -> int:
        return len((self._get(key, Zset) or Zset()).between(_low(low), float(high)))

    def _do_zremrangebyscore(self, key: bytes, low: bytes, high: bytes) -> int:
        value = self._get(key, Zset) or Zset()
        return self._do_zrem(key, *(member for _, member in value.between(_low(low), float(high))))

    def _do_zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = (self._get(key, Zset) or {}).get(member)
        return None if score is None else score_text(score)

    def _do_zrange(self, key: bytes, first: bytes, last: bytes, *options: bytes) -> list[bytes]:
        found = (self._get(key, Zset) or Zset()).ordered()
        start, end = bounds(first, last, len(found))
        return _scored(found[start:end], options)

    def _do_zrangebyscore(
        self, key: bytes, low: bytes, high: bytes, *options: bytes
    ) -> list[bytes]:
        found = (self._get(key, Zset) or Zset()).between(_low(low), float(high))
        return _scored(_limited(found, options), options)

    def _do_zrevrangebyscore(
        self, key: bytes, high: bytes, low: bytes, *options: bytes
    ) -> list[bytes]:
        found = (self._get(key, Zset) or Zset()).between(_low(low), float(high))
        return _scored(_limited(found[::-1], options), options)

    def _do_zremrangebyrank(self, key: bytes, first: bytes, last: bytes) -> int:
        value = self._get(key, Zset) or Zset()
        start, end = bounds(first, last, len(value))
        gone = value.ordered()[start:end]
        for _, member in gone:
            del value[member]
        self._tidy(key)
        return len(gone)

    # -- lists ------------------------------------------------------------------------------------

    def _do_lrange(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        value = self._get(key, list) or []
        start, end = bounds(first, last, len(value))
        return list(value[start:end])

    def _do_lpush(self, key: bytes, item: bytes) -> int:
        value = self._make(key, list)
        value.insert(0, item)
        return len(value)

    def _do_rpush(self, key: bytes, item: bytes) -> int:
        value = self._make(key, list)
        value.append(item)
        return len(value)

    def _do_ltrim(self, key: bytes, first: bytes, last: bytes) -> bytes:
        value = self._get(key, list) or []
        start, end = bounds(first, last, len(value))
        value[:] = value[start:end]
        self._tidy(key)
        return b"OK"

    # -- streams ----------------------------------------------------------------------------------

    def _do_xadd(self, key: bytes, *args: bytes) -> bytes:
        most = None
        if args[0] == b"MAXLEN":
            most, args = int(args[2]), args[3:]
        stream: Stream = self._make(key, Stream)
        return stream.add(args[0], list(args[1:]), self._now_us() // 1000, most)

    def _do_xrange(self, key: bytes, first: bytes, last: bytes, *options: bytes) -> list[Any]:
        found = (self._get(key, Stream) or Stream()).between(first, last)
        return found[: int(options[1])] if options else found

    def _do_xrevrange(self, key: bytes, last: bytes, first: bytes, *options: bytes) -> list[Any]:
        found = (self._get(key, Stream) or Stream()).between(first, last)[::-1]
        return found[: int(options[1])] if options else found

    def _do_xdel(self, key: bytes, entry_id: bytes) -> int:
        return int((self._get(key, Stream) or Stream()).remove(entry_id))

    def _do_xread(self, *args: bytes) -> list[Any] | None:
        """XREAD BLOCK ms STREAMS key after: what is there now."""
        key, after = args[3], args[4]
        found = (self._get(key, Stream) or Stream()).after(after)
        return [[key, found]] if found else None


class MemoryTransport:
    """A way to a MemoryServer that never fails."""

    address = "memory"
    is_ours = False

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def call(self, *args: Arg, patience_s: float | None = None) -> Reply:
        """See Transport."""
        await asyncio.sleep(0)
        reply = self._server.call(*args)
        if args[0] == "XREAD":
            for _ in range(int(int(args[2]) / 1000 / _LOOK_S)):
                if reply:
                    break
                await asyncio.sleep(_LOOK_S)
                reply = self._server.call(*args)
        return reply

    async def aclose(self) -> None:
        """See Transport."""


def _low(text: bytes) -> float:
    """The lower end of a range of scores; '(' in front leaves the end itself out."""
    return nextafter(float(text[1:]), inf) if text[:1] == b"(" else float(text)


def _scored(found: Iterable[tuple[float, bytes]], options: tuple[bytes, ...]) -> list[bytes]:
    if b"WITHSCORES" not in options:
        return [member for _, member in found]
    return [part for score, member in found for part in (member, score_text(score))]


def _limited(
    found: list[tuple[float, bytes]], options: tuple[bytes, ...]
) -> list[tuple[float, bytes]]:
    if b"LIMIT" not in options:
        return found
    at = options.index(b"LIMIT")
    start = int(options[at + 1])
    return found[start : start + int(options[at + 2])]


# -- Lua ------------------------------------------------------------------------------------------


@cache
def _lua() -> Any:
    """One Lua for all servers: a script keeps nothing between two calls."""
    try:
        # The servers' Lua. Another one beside fakeredis's would share its C symbols and crash.
        from lupa.lua51 import LuaRuntime
    except ImportError as error:
        raise RuntimeError(
            "the store in memory runs the scripts in Lua, which is not here. "
            "Run: pip install 'fsm-agent[simulation]'"
        ) from error
    return LuaRuntime(encoding=None)


@cache
def _compiled(script: scripts.Name) -> Any:
    text = scripts.load(script).text
    return _lua().execute(b"return function(KEYS, ARGV, redis)\n" + text + b"\nend")


def _to_lua(reply: Reply) -> Any:
    if reply is None:
        return False
    if isinstance(reply, list):
        return _lua().table_from([_to_lua(item) for item in reply])
    return reply


def _from_table(answer: Any) -> Reply:
    if answer is False or answer is None:
        return None
    if isinstance(answer, bytes):
        return answer
    if isinstance(answer, (int, float)):
        return int(answer)
    return [_from_table(answer[at]) for at in range(1, len(answer) + 1)]
