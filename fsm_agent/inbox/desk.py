"""Everything that a request may use: the runtime, the people, the keys; and its way through."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from checkpoints.address import Address, parse
from checkpoints.model import Head, RunId
from fsm_agent.capabilities.agent import Agent
from fsm_agent.clock import Clock, SystemClock
from fsm_agent.errors import CorruptRecord
from fsm_agent.inbox import wire
from fsm_agent.inbox.actors import Action, Actor, least_role
from fsm_agent.inbox.auth import Auth, actor_by_request
from fsm_agent.inbox.feeds import Feeds
from fsm_agent.inbox.keys import Keys
from fsm_agent.inbox.problems import Problem, not_found
from fsm_agent.inbox.settings import Settings
from fsm_agent.run import codec
from fsm_agent.run.content import clean_text
from fsm_agent.runtime import Runtime

T = TypeVar("T", bound=msgspec.Struct)
Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, "Desk", Actor], Awaitable[Response]]
MAX_PAGE = 200
MARK = "x-inbox"  # a header that a page of another site cannot send without being asked


@dataclass(frozen=True, kw_only=True)
class Desk:
    """What the inbox is made of."""

    runtime: Runtime
    auth: Auth
    keys: Keys
    feeds: Feeds
    settings: Settings = field(default_factory=Settings)
    agents: Mapping[str, Agent] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)  # FILE.py:NAME by agent
    clock: Clock = field(default_factory=SystemClock)
    open_streams: Counter[str] = field(default_factory=Counter)  # by person
    slack_secret: str = field(default="", repr=False)
    reports: Path | None = None  # where crash reports lie
    address: Address = field(default_factory=lambda: parse("embedded:.fsm-agent"))

    async def seen_run(self, actor: Actor, run_id: str) -> tuple[Head, codec.Snapshot]:
        """The head of a run that exists for this person. Raises BadRunId, or the same Problem for
        a run that does not exist and for one of another tenant."""
        head = await self.runtime.store.head(RunId(run_id))
        snapshot = read_snapshot(head)
        if not actor.sees(snapshot.tenant):
            raise not_found(f"no run is named {run_id!r} in this store.")
        return head, snapshot


def read_snapshot(head: Head) -> codec.Snapshot:
    """What the head says of its run; one that cannot be read says so itself."""
    try:
        return codec.decode_snapshot(head.snapshot)
    except CorruptRecord as error:
        raise Problem(
            500, "corrupt-entry", f"run {head.run_id!r} cannot be read: {error}"
        ) from error


def desk_of(request: Request) -> Desk:
    """The desk that serves a request."""
    return cast(Desk, request.app.state.desk)


def guarded(handler: Handler, action: Action = "look") -> Endpoint:
    """The endpoint of a handler for people who are known, and whose role allows `action`.

    The check stands here, at the route, and not in front of all: no path can get around it.
    """

    async def endpoint(request: Request) -> Response:
        desk = desk_of(request)
        actor = actor_by_request(request, desk.auth, desk.keys, desk.clock.wall_ms() / 1000)
        if actor is None:
            headers = {"WWW-Authenticate": 'Bearer realm="fsm-agent"'}
            raise Problem(401, "no-login", "Log in first, or send a token.", headers=headers)
        request.state.actor = actor
        is_change = request.method not in ("GET", "HEAD", "OPTIONS")
        if is_change and actor.is_ambient and MARK not in request.headers:
            raise Problem(403, "no-mark", "A browser must send the header X-Inbox with this.")
        if not actor.may(action):
            words = (
                f"You log in with the role {actor.role!r}, and this takes {least_role(action)!r}."
            )
            raise Problem(403, "not-allowed", words)
        return await handler(request, desk, actor)

    endpoint.needs = action  # type: ignore[attr-defined]
    return endpoint


async def body_of(request: Request, kind: type[T]) -> T:
    """The JSON body of a request as a struct; none at all is one that says nothing. Raises
    Problem: 415, 400 or 422."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    raw = await request.body()
    if media != "application/json" and (media or raw):
        raise Problem(415, "not-json", "Send JSON, with the content type application/json.")
    try:
        plain = msgspec.json.decode(raw or b"{}")
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Problem(400, "bad-json", f"The body is not JSON: {error}") from error
    try:
        json.loads(raw or b"{}", object_pairs_hook=_without_repeats)
        return msgspec.convert(_cleaned(plain), kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise Problem(422, "bad-body", str(error)) from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values under one key the reader would take the last, and the writer may mean the
    first. Raises ValueError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object.")
    return found


def _cleaned(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: clean_text(v) if isinstance(v, str) else v for key, v in plain.items()}
    return plain


def limit_of(request: Request) -> int:
    """How many a list is to hold. Raises Problem 422."""
    given = request.query_params.get("limit", "50")
    # The length first: a number of thousands of digits is refused by int() itself.
    if not (given.isascii() and given.isdigit() and len(given) < 7 and 0 < int(given) <= MAX_PAGE):
        raise Problem(422, "bad-query", f"limit is a number from 1 to {MAX_PAGE}.")
    return int(given)


def json_answer(value: Any, status: int = 200, **headers: str) -> Response:
    """An answer in JSON."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(wire.encode(value), status, headers=named, media_type="application/json")
