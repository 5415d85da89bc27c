"""What a user of the server needs for this package, as ACL rules."""

from __future__ import annotations

from .keys import Keys, checked_namespace

# What we send, and what our scripts call on our behalf: a script may do no more than its user.
_SENT = (
    *("evalsha", "hmget", "hset", "hsetnx", "hget", "hgetall", "get", "set", "lrange"),
    *("xadd", "xrange", "xrevrange", "xread", "xdel", "zadd", "zrange", "zrangebyscore"),
    *(
        "zrevrangebyscore",
        "pexpire",
        "psubscribe",
        "wait",
        "time",
        "info",
        "ping",
        "role",
        "select",
    ),
)
_IN_SCRIPTS = (
    *(
        "type",
        "exists",
        "del",
        "pttl",
        "pexpireat",
        "persist",
        "hincrby",
        "hexists",
        "hkeys",
        "hlen",
        "hdel",
    ),
    *("zscore", "zcount", "zrem", "zremrangebyrank", "zremrangebyscore"),
    *("lpush", "rpush", "ltrim", "publish"),
)


def rules(namespace: str, *, loads_scripts: bool = True, more: tuple[str, ...] = ()) -> list[str]:
    """The rules of a user that may do what is needed in a namespace, and nothing else.

    Without `loads_scripts` it runs no text but what another user has loaded. `more` are commands
    that not every server knows: `waitaof` from Redis 7.2; `cluster|slots`, `asking` of a cluster.
    """
    names = [*_SENT, *_IN_SCRIPTS, *(("eval",) if loads_scripts else ()), *more]
    keys = f"~{{{checked_namespace(namespace)}:*"
    hints = f"&{Keys(namespace, 1).due_pattern.decode()}"  # a subscription must match it literally
    return [
        "on",
        "resetkeys",
        "resetchannels",
        keys,
        hints,
        "-@all",
        *(f"+{name}" for name in names),
    ]


def loader_rules() -> list[str]:
    """The rules of a user that only loads the scripts."""
    return ["on", "resetkeys", "resetchannels", "-@all", "+script|load", "+cluster|slots", "+ping"]
