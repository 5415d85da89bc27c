"""What a tool does to the world, and so what a call without a recorded outcome allows."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Literal, assert_never

import msgspec

from fsm_agent.errors import BadAgent, did_you_mean
from fsm_agent.run.content import EffectClass, canonical_json


class Done(msgspec.Struct, frozen=True):
    """The call had its effect; `result` is what the tool would have returned."""

    result: Any = None


class NotDone(msgspec.Struct, frozen=True):
    """The call had no effect so far."""


class CannotTell(msgspec.Struct, frozen=True):
    """Nobody but a person can find out, for `reason`."""

    reason: str


ProbeResult = Done | NotDone | CannotTell
Check = Callable[..., "ProbeResult | Awaitable[ProbeResult]"]


class Read(msgspec.Struct, frozen=True):
    """Looks and changes nothing."""


class Idempotent(msgspec.Struct, frozen=True):
    """Doing it twice is the same as doing it once."""


class Keyed(msgspec.Struct, frozen=True):
    """The other side honours `ToolContext.idempotency_key` for `ttl_s` seconds."""

    ttl_s: float


class Probed(msgspec.Struct, frozen=True):
    """`check` can find out whether the call had its effect."""

    check: Check


class Unsafe(msgspec.Struct, frozen=True):
    """Nobody said anything: it is started at most once, and a person settles a gap."""


Effect = Read | Idempotent | Keyed | Probed | Unsafe
Gap = Literal["run_again", "probe", "ask"]
AfterProbe = Literal["settle", "run_again", "wait", "ask"]

_BY_NAME: dict[str, Effect] = {"read": Read(), "idempotent": Idempotent(), "unsafe": Unsafe()}


def keyed(*, ttl_s: float = 86_400) -> Keyed:
    """The effect of a tool that passes its idempotency key on.

    The other side honours the key for `ttl_s` seconds: a day, as payment providers usually do.
    Raises BadAgent.
    """
    if not ttl_s > 0:
        raise BadAgent(f"keyed(ttl_s={ttl_s}): the key must be honoured for more than 0 seconds.")
    return Keyed(ttl_s=float(ttl_s))


def probed(*, check: Check) -> Probed:
    """The effect of a tool whose `check` can tell whether a call had its effect.

    `check` declares what it needs: parameters of the tool by name, `key` for the idempotency key,
    a ToolContext. It returns `done(result)`, `not_done()` or `cannot_tell(why)`. Raises BadAgent.
    """
    if not callable(check):
        raise BadAgent(f"probed(check={check!r}): give a function.")
    return Probed(check=check)


def done(result: Any = None) -> Done:
    """A check's word that the call had its effect, with the result it would have returned."""
    return Done(result)


def not_done() -> NotDone:
    """A check's word that the call had no effect."""
    return NotDone()


def cannot_tell(why: str) -> CannotTell:
    """A check's word that it could not find out."""
    return CannotTell(why)


def effect_named(effect: Effect | str) -> Effect:
    """The effect that a declaration means. Raises BadAgent."""
    if isinstance(effect, Effect):
        return effect
    if isinstance(effect, str) and effect in _BY_NAME:
        return _BY_NAME[effect]
    if effect in ("keyed", "probed"):
        needs = "keyed(ttl_s=86400)" if effect == "keyed" else "probed(check=function)"
        raise BadAgent(f"effect={effect!r} needs a detail: write effect={needs}.")
    raise BadAgent(
        f"effect={effect!r} is no effect.{did_you_mean(str(effect), _BY_NAME)}"
        " Use 'read', 'idempotent', 'unsafe', keyed(ttl_s=…) or probed(check=…)."
    )


def class_of(effect: Effect) -> EffectClass:
    """The class of an effect, as the journal names it."""
    match effect:
        case Read():
            return "read"
        case Idempotent():
            return "idempotent"
        case Keyed():
            return "keyed"
        case Probed():
            return "probed"
        case Unsafe():
            return "unsafe"
        case _:
            assert_never(effect)


def on_gap(effect: Effect, *, intent_at_ms: int, now_ms: int) -> Gap:
    """What to do about a call with an intent and no result.

    A keyed call may overlap with a worker that is still alive, as its key makes the two one.
    A probe may run at any time; what its answer allows is `after_probe`'s to say.
    """
    match effect:
        case Read() | Idempotent():
            return "run_again"
        case Keyed(ttl_s=ttl_s):
            return "run_again" if now_ms < intent_at_ms + ttl_s * 1000 else "ask"
        case Probed():
            return "probe"
        case Unsafe():
            return "ask"
        case _:
            assert_never(effect)


def after_probe(result: ProbeResult, *, now_ms: int, unlock_ms: int) -> AfterProbe:
    """What a probe's answer allows. 'wait' means: probe again at `unlock_ms`.

    Until the intent's deadline plus grace (`unlock_ms`) a worker that lost the run may still be
    about to send the call: 'not done' then says nothing about what comes.
    """
    match result:
        case Done():
            return "settle"
        case NotDone():
            return "run_again" if now_ms >= unlock_ms else "wait"
        case CannotTell():
            return "ask"
        case _:
            assert_never(result)


def idempotency_key(
    *,
    scope: str,
    run_id: str,
    think_seq: int,
    index: int,
    name: str,
    version: str,
    arguments: str,
) -> str:
    """The key of a call: 64 hex digits, from its place in the journal.

    Never from the attempt, the worker or the clock: each redo sends the same key.
    `scope` keeps the runs of two tenants apart; `arguments` is canonical JSON.
    """
    return _sha256([scope, run_id, think_seq, index, name, version, arguments])


def arguments_digest(name: str, version: str, arguments: str) -> str:
    """What a decision names: 64 hex digits for this tool with these arguments (canonical JSON)."""
    return _sha256([name, version, arguments])


def _sha256(parts: list[str | int]) -> str:
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()
