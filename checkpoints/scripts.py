"""The Lua scripts: constant text from this package, called by hash.

Values reach a script as KEYS and ARGV only; its text is never put together from them.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Literal, NamedTuple, get_args

from .transport import Arg, Reply, ReplyError, Transport

Name = Literal[
    "create",
    "claim",
    "renew",
    "release",
    "commit",
    "signal",
    "decide",
    "note",
    "head",
    "due",
    "report",
    "keep",
    "take",
    "settle",
    "fold",
    "purge",
    "agenda",
    "wake",
    "slot",
    "join",
    "leave",
]
NAMES: tuple[Name, ...] = get_args(Name)


class Script(NamedTuple):
    """A script and its hash."""

    text: bytes
    sha: bytes


@cache
def load(name: Name) -> Script:
    """A script of this package, with the prelude that all share in front."""
    folder = files(__package__) / "lua"
    text = (folder / "_prelude.lua").read_bytes() + (folder / (name + ".lua")).read_bytes()
    return Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())


async def run(
    transport: Transport, name: Name, keys: tuple[bytes, ...], args: tuple[Arg, ...]
) -> list[bytes]:
    """Call a script once and return its answer, whose first item is a word.

    A server that has forgotten its scripts (restart, failover) is given the text once.
    Raises ReplyError, Ambiguous or Unreachable.
    """
    script = load(name)
    try:
        reply = await transport.call("EVALSHA", script.sha, len(keys), *keys, *args)
    except ReplyError as error:
        if error.code != "NOSCRIPT":
            raise
        # EVAL runs and keeps the text in one step: SCRIPT LOAD first would be a second round trip
        # that another restart could fall into.
        reply = await transport.call("EVAL", script.text, len(keys), *keys, *args)
    return _words(reply)


async def load_all(transport: Transport) -> None:
    """Give a server every script, for users that may not."""
    for name in NAMES:
        await transport.call("SCRIPT", "LOAD", load(name).text)


async def run_then(
    transport: Transport,
    name: Name,
    keys: tuple[bytes, ...],
    args: tuple[Arg, ...],
    *rest: tuple[Arg, ...],
) -> tuple[list[bytes], list[Reply]]:
    """`run` with commands behind it on the same connection: also their answers, or errors."""
    script = load(name)
    call = (len(keys), *keys, *args)
    done, *told = await transport.chain(("EVALSHA", script.sha, *call), *rest)
    if isinstance(done, ReplyError) and done.code == "NOSCRIPT":
        done, *told = await transport.chain(("EVAL", script.text, *call), *rest)
    if isinstance(done, ReplyError):
        raise done
    return _words(done), told


def _words(reply: Reply) -> list[bytes]:
    """A script's answer: a list of bytes, never empty. Raises ReplyError for anything else."""
    if isinstance(reply, list) and reply and all(isinstance(item, bytes) for item in reply):
        return reply
    raise ReplyError("ERR", "a script gave an answer that is none of its own")
