"""What `doctor` looks at, and what it means for the promises."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Literal, NamedTuple

from checkpoints.address import Address
from checkpoints.settings import StoreSettings

Level = Literal["green", "yellow", "red"]
Facts = Mapping[str, Any]

PACKAGES = ("transitions", "openai", "redis", "msgspec", "click", "rich")
OLDEST = (6, 2)
ALARM = StoreSettings().memory_alarm
# From here on the known holes in the Lua engine are closed (CVE-2025-49844 and its siblings).
MENDED = {
    "redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}


class Check(NamedTuple):
    """One thing that was looked at. `words` say how it is and, where not green, what to do."""

    name: str
    level: Level
    words: str


def machine() -> list[Check]:
    """Python and packages."""
    version = ".".join(map(str, sys.version_info[:3]))
    checks = [Check("python", "green", version)]
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        names = " ".join(missing)
        return [*checks, Check("packages", "red", f"not installed: {names}. Use pip install.")]
    return [*checks, Check("packages", "green", ", ".join(found))]


def model() -> Check:
    """Whether a model can be asked. Looking and deciding need none."""
    from fsm_agent.errors import MissingSetting
    from fsm_agent.llm.client import OpenAIModel
    from fsm_agent.llm.model import StepRequest

    try:
        endpoint = OpenAIModel().endpoint(StepRequest(instructions="", messages=()))
    except MissingSetting as error:
        return Check("model", "yellow", f"{error} Until then only the demo can run.")
    has_key = "with a key" if os.environ.get("OPENAI_API_KEY") else "without a key"
    words = f"{endpoint.model} at {endpoint.base_url}, {has_key}: set, and not tried"
    return Check("model", "green", f"{words}. A run tries it; asking costs tokens.")


def webhooks() -> Check:
    """Who is told of requests and endings."""
    from fsm_agent.errors import UsageError
    from fsm_agent.notify.webhook import URLS, webhooks_of

    try:
        found = webhooks_of()
    except UsageError as error:
        return Check("webhooks", "red", str(error))
    if not found:
        words = f"none: who must decide has to look by themselves. {URLS} names one."
        return Check("webhooks", "green", words)
    return Check("webhooks", "green", f"{', '.join(w.where for w in found)}, signed, not tried")


def store(facts: Facts, address: Address, took_ms: int) -> list[Check]:
    """Everything about a store that was reached."""
    partitions = facts.get("partitions", 1)
    words = f"{address} answers in {took_ms} ms, {partitions} partition(s)"
    return [
        Check("store", "green", words),
        _version(facts, is_embedded=address.folder is not None),
        _persistence(facts, is_embedded=address.folder is not None),
        _eviction(facts),
        _replication(facts, is_embedded=address.folder is not None),
        _memory(facts),
        _durability(facts, is_embedded=address.folder is not None),
        _at_rest(facts),
        _exposure(facts, address),
        _promise(facts),
    ]


def _version(facts: Facts, *, is_embedded: bool) -> Check:
    name, version = str(facts.get("server", "server")), str(facts.get("version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if not numbers:
        return Check("version", "yellow", "the server does not say its version.")
    if numbers[:2] < OLDEST:
        return Check("version", "red", f"{name} {version} is too old. Use Redis 6.2 or Valkey.")
    mended = MENDED.get(name, {})
    newest = max(mended, default=(0, 0))
    line, patch = (numbers[0], numbers[1] if len(numbers) > 1 else 0), numbers[2:]
    is_mended = line > newest or patch >= (mended.get(line, 10_000),)
    if is_mended or is_embedded:
        return Check("version", "green", f"{name} {version}")
    words = f"{name} {version} may have known holes in its Lua engine. Update it, unless your"
    return Check("version", "yellow", f"{words} distribution has mended it.")


def _is_appending(facts: Facts) -> bool | None:
    if "appendonly" in facts:
        return bool(facts["appendonly"] == "yes")
    return str(facts["aof_enabled"]) == "1" if "aof_enabled" in facts else None


def _persistence(facts: Facts, *, is_embedded: bool) -> Check:
    if str(facts.get("aof_last_write_status", "ok")) != "ok":
        return Check("persistence", "red", "the last write to disk failed. Is the disk full?")
    match _is_appending(facts), facts.get("appendfsync"):
        case True, "always":
            return Check("persistence", "green", "append-only file, on disk before each answer")
        case True, "no" if is_embedded:
            words = "append-only file, written before each answer and synced each second: kill -9"
            return Check("persistence", "green", f"{words} loses nothing, a loss of power 1 to 2 s")
        case True, "no":
            words = "append-only file, written before each answer: kill -9 loses nothing; a loss of"
            return Check("persistence", "yellow", f"{words} power may take half a minute")
        case True, _:
            words = "append-only file, synced each second: a loss of power, or a kill -9 while the"
            return Check("persistence", "yellow", f"{words} disk is busy, may take the last 2 s")
        case False, _:
            words = "no append-only file: if the server dies, acknowledged steps are lost."
            return Check("persistence", "red", f"{words} Set appendonly yes.")
        case _:
            return Check("persistence", "yellow", "the server does not say. Ask who runs it.")


def _eviction(facts: Facts) -> Check:
    policy = str(facts.get("maxmemory-policy") or facts.get("maxmemory_policy") or "")
    if policy == "noeviction":
        return Check("eviction", "green", "noeviction: nothing is thrown away")
    if not policy:
        return Check("eviction", "yellow", "the server does not say. It must be noeviction.")
    mend = "Set maxmemory-policy noeviction."
    if policy.startswith("volatile") and str(facts.get("maxmemory", "")) != "0":
        words = f"{policy}: a full server throws finished runs away that have an expiry"
        return Check("eviction", "yellow", f"{words}. {mend}")
    if policy.startswith("volatile") or str(facts.get("maxmemory", "")) == "0":
        return Check("eviction", "yellow", f"{policy}: no run is evicted as things are. {mend}")
    return Check("eviction", "red", f"{policy}: a full server throws runs away. {mend}")


def _replication(facts: Facts, *, is_embedded: bool) -> Check:
    if is_embedded:
        return Check("copies", "green", "one, in this folder: its disk is what a run survives on")
    if str(facts.get("role", "master")) != "master":
        return Check("copies", "red", "this is a replica. Name the primary in --store.")
    count = int(facts.get("connected_slaves", 0) or 0)
    if not count:
        return Check("copies", "yellow", "no replica: a lost machine loses its runs. Add one.")
    waits = int(facts.get("min-replicas-to-write", 0) or 0)
    words = f"{count} replica(s), asynchronous: a failover may lose the last acknowledged steps"
    if not waits:
        return Check("copies", "yellow", f"{words}. Set min-replicas-to-write 1 to bound that.")
    if waits > count:
        words = f"{count} replica(s), and min-replicas-to-write {waits}: every write is refused"
        return Check("copies", "red", f"{words}. Add replicas.")
    return Check("copies", "green", f"{words}, bounded by min-replicas-to-write {waits}")


def _memory(facts: Facts) -> Check:
    """How near the limit is at which a server refuses writes."""
    used, limit = (int(facts.get(name, 0) or 0) for name in ("used_memory", "maxmemory"))
    shown = f"{used >> 20} MiB used"
    if not limit:
        words = f"{shown}, no limit: set maxmemory, so that new runs are refused before others fail"
        return Check("memory", "yellow" if used > 1 << 30 else "green", words)
    words = f"{shown} of {limit >> 20} MiB"
    share = used / limit
    if share < ALARM - 0.15:
        return Check("memory", "green", words)
    remedy = "Raise maxmemory, or remove finished runs: fsm-agent prune."
    if share < ALARM:
        return Check("memory", "yellow", f"{words}; from {ALARM:.0%} no new runs. {remedy}")
    return Check("memory", "red", f"{words}: new runs are refused. {remedy}")


def _durability(facts: Facts, *, is_embedded: bool) -> Check:
    """What is waited for beyond the primary's answer, and whether it can be had."""
    policy = str(facts.get("durability", "none"))
    replicas = int(facts.get("connected_slaves", 0) or 0)
    if policy == "none":
        if is_embedded or not replicas:
            return Check(
                "waits for", "green", "the server's answer: there are no copies to wait for"
            )
        words = "the primary's answer only: a failover may lose the start of an unsafe call, and it"
        return Check(
            "waits for", "yellow", f"{words} is made again then. Add ?durability=memory:1."
        )
    if policy.startswith("disk") and facts.get("appendfsync") == "no":
        words = f"{policy}, and the server never says what is on its disk: nothing unsafe can start"
        return Check("waits for", "red", f"{words}. Set appendfsync everysec or always.")
    wanted = int(policy.partition(":")[2].partition(" ")[0])
    if wanted > replicas:
        words = f"{policy}, and there are {replicas} replica(s): nothing unsafe can start"
        return Check("waits for", "red", f"{words}. Add replicas, or ask for fewer.")
    return Check("waits for", "green", policy)


def _at_rest(facts: Facts) -> Check:
    """In what form bytes are kept. Never more of a key than its id."""
    ids, size = facts.get("encryption") or (), facts.get("compress_from")
    packed = f"; from {size} bytes on compressed" if size is not None else ""
    if not ids:
        return Check("at rest", "green", f"not encrypted{packed or ', not compressed'}")
    others = f", {', '.join(ids[1:])} only to read" if ids[1:] else ""
    return Check("at rest", "green", f"encrypted with the key {ids[0]}{others}{packed}")


def _exposure(facts: Facts, address: Address) -> Check:
    if address.folder is not None or address.path:
        return Check("access", "green", "a Unix socket: only this machine's permitted users")
    is_local = address.host in ("localhost", "127.0.0.1", "::1")
    is_open = not address.password
    bound = str(facts.get("bind", ""))
    is_world = str(facts.get("protected-mode", "yes")) == "no" and (
        not bound or any(each.strip("-") in ("*", "0.0.0.0", "::*", "::") for each in bound.split())
    )
    if is_open and (is_world or not is_local):
        words = "no password, and reachable from elsewhere. Set one, and put it into --store."
        return Check("access", "red", words)
    if not is_local and not address.is_tls:
        return Check("access", "yellow", "no TLS: the network can read the runs. Use rediss://.")
    words = "TLS and a password" if address.is_tls else "this machine only"
    return Check("access", "green", words)


def _promise(facts: Facts) -> Check:
    """What can be relied on here: all of it depends on the store."""
    held = (
        "unsafe tools start at most once, keyed ones take effect once if the other side honours"
        " the key, the first decision counts"
    )
    match _is_appending(facts):
        case True:
            kept = "an acknowledged step survives the death of all workers and of the server"
            return Check("promise", "green", f"{kept}; {held}.")
        case None:
            words = (
                "it is not known whether this server keeps what it acknowledged. If it does:"
                f" {held}. If it does not, a death of the server breaks all of that."
            )
            return Check("promise", "yellow", words)
        case False:
            words = (
                "broken if the server dies: steps that it acknowledged are lost then, and calls"
                " that had taken effect may be made again. The death of workers alone loses"
                " nothing."
            )
            return Check("promise", "red", words)
