"""Server-sent events: a run entry by entry, and the lists as they change."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from checkpoints.errors import CorruptEntry
from fsm_agent.inbox import wire
from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.desk import Desk, read_snapshot
from fsm_agent.inbox.feeds import End, Lagging, digest_of
from fsm_agent.inbox.problems import Problem
from fsm_agent.run.event import EntryEvent
from fsm_agent.telling.plain import plain_event

_EPOCH = secrets.token_hex(4)  # of this server: the ids of its list stream mean nothing elsewhere
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
RETRY_MS = 2000
STILL_HERE = b": still here\n\n"


@contextmanager
def _counted(desk: Desk, actor: Actor) -> Iterator[None]:
    """One more stream of this person. Raises Problem over the limits."""
    settings, streams = desk.settings, desk.open_streams
    is_over = streams.total() >= settings.max_streams
    if is_over or streams[actor.name] >= settings.max_streams_of_one:
        later = {"Retry-After": "5"}
        raise Problem(429, "too-many-streams", "Too many streams are open.", headers=later)
    streams[actor.name] += 1
    try:
        yield
    finally:
        streams[actor.name] -= 1
        if not streams[actor.name]:
            del streams[actor.name]


def event(kind: str, data: Any, id_: object = None) -> bytes:
    """One event of a stream. The data is JSON on one line."""
    head = f"id: {id_}\n" if id_ is not None else ""
    return f"{head}event: {kind}\ndata: ".encode() + wire.encode(data) + b"\n\n"


async def run_events(request: Request, desk: Desk, actor: Actor) -> Response:
    """The run's entries after `Last-Event-ID` (or `?after=`), then those that follow, live text,
    and where it waits. The id of an event is the seq of its entry."""
    run_id = request.path_params["run_id"]
    head, _ = await desk.seen_run(actor, run_id)
    after = _after(request)
    if after > head.seq:
        after = -1  # it has seen what this store does not know: it has to begin anew
    return await streaming(desk, actor, _run_stream(desk, run_id, after))


def _after(request: Request) -> int:
    given = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise Problem(400, "bad-position", "Last-Event-ID is the seq of the last entry seen.")
    return int(given)


async def streaming(desk: Desk, actor: Actor, body: AsyncIterator[bytes]) -> Response:
    """Begin a stream: what refuses it is told with a status, and not inside of it."""
    counted = _counted(desk, actor)
    counted.__enter__()
    try:
        first = await anext(body)
    except BaseException:
        counted.__exit__(None, None, None)
        raise

    async def whole() -> AsyncIterator[bytes]:
        try:
            yield first
            async for piece in body:
                yield piece
        finally:
            counted.__exit__(None, None, None)
            await body.aclose()  # type: ignore[attr-defined]

    return StreamingResponse(whole(), headers=_HEADERS, media_type="text/event-stream")


async def kept_alive(body: AsyncIterator[bytes], heartbeat_s: float) -> AsyncIterator[bytes]:
    """`body`, with a comment wherever it says nothing for so long: proxies cut silent streams."""
    coming: asyncio.Task[bytes] | None = None
    try:
        while True:
            coming = coming or asyncio.create_task(_next_of(body), name="next event")
            if not (await asyncio.wait({coming}, timeout=heartbeat_s))[0]:
                yield STILL_HERE
                continue
            piece, coming = coming, None
            try:
                yield piece.result()
            except StopAsyncIteration:
                return
    finally:
        if coming:
            coming.cancel()
            await asyncio.wait({coming})
        await body.aclose()  # type: ignore[attr-defined]


async def _next_of(body: AsyncIterator[bytes]) -> bytes:
    return await anext(body)


async def _run_stream(desk: Desk, run_id: str, after: int) -> AsyncIterator[bytes]:
    async with desk.feeds.reading_run(run_id) as reader:
        yield f"retry: {RETRY_MS}\n\n".encode()
        if after < 0:
            yield event("resync", {"why": "the history is another one"}, 0)
            after = 0
        is_behind = True
        try:
            while True:
                if is_behind:
                    for each in await desk.runtime.history(run_id, after=after):
                        after = each.seq
                        yield event("entry", plain_event(each), after)
                    is_behind = False
                item = await reader.get(desk.settings.heartbeat_s)
                match item:
                    case None:
                        yield STILL_HERE
                    case End(problem=problem):
                        yield event("end", {"problem": problem}, after)
                        return
                    case EntryEvent(seq=seq) if seq <= after:
                        continue
                    case EntryEvent(seq=seq) if seq > after + 1:
                        is_behind = True  # what is between is in the journal, and so is this
                        continue
                    case EntryEvent(seq=seq):
                        after = seq
                        yield event("entry", plain_event(item), after)
                    case _:
                        told = plain_event(item)
                        yield event(told["event"], told, after)
        except Lagging:
            return  # the client comes back with the last id it has
        except CorruptEntry as error:
            yield event("resync", {"why": str(error), "seq": error.seq}, after)


async def inbox_events(request: Request, desk: Desk, actor: Actor) -> Response:
    """`changed` whenever the lists that this person sees are others than before, with how much is
    open. A client of another server, or of an earlier time, is told to look again."""
    known = request.headers.get("last-event-id", "")
    return await streaming(desk, actor, _list_stream(desk, actor, known))


async def _list_stream(desk: Desk, actor: Actor, known: str) -> AsyncIterator[bytes]:
    tenants: dict[str, str] = {}
    async with desk.feeds.reading_lists() as reader:
        yield f"retry: {RETRY_MS}\n\n".encode()
        before = known
        while True:
            try:
                marks = await reader.get(desk.settings.heartbeat_s)
            except Lagging:
                return
            if isinstance(marks, End):
                return
            if marks is None:
                yield STILL_HERE
                continue
            mine = await _mine(desk, actor, marks, tenants)
            mark = f"{_EPOCH}-{digest_of(sorted(mine.items()))}"
            if before and not before.startswith(_EPOCH):
                yield event("resync", {"why": "another server"}, mark)
            elif mark != before:
                opened = sum(name.startswith("ask ") for name in mine)
                yield event("changed", {"open": opened}, mark)
            before = mark


async def _mine(
    desk: Desk, actor: Actor, marks: Mapping[str, str], tenants: dict[str, str]
) -> dict[str, str]:
    """The marks of runs that this person sees; `tenants` remembers whose a run is."""
    if actor.tenant is None:
        return dict(marks)
    unknown = {name.split(" ")[1] for name in marks} - tenants.keys()
    heads = await asyncio.gather(
        *(desk.runtime.store.head(run_id) for run_id in unknown),  # type: ignore[arg-type]
        return_exceptions=True,
    )
    for head in heads:
        if not isinstance(head, BaseException):
            tenants[head.run_id] = read_snapshot(head).tenant
    return {
        name: mark for name, mark in marks.items()
        if tenants.get(name.split(" ")[1]) == actor.tenant
    }  # fmt: skip
