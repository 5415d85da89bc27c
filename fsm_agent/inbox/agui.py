"""AG-UI: chat interfaces start runs, see them as events, and decide by resuming.

A turn of a thread is a run that goes on with the conversation of the one before. What waits for a
person is an interrupt of the protocol, and `resume` is a decision like any other: nothing that a
client says of its history grants anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from checkpoints.errors import RunNotFound
from fsm_agent.capabilities.agent import Agent
from fsm_agent.inbox import approvals, wire
from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.approvals import Item
from fsm_agent.inbox.deciding import decide
from fsm_agent.inbox.desk import Desk, body_of
from fsm_agent.inbox.problems import Problem
from fsm_agent.inbox.streams import kept_alive, streaming
from fsm_agent.run.content import canonical_json, clean_text
from fsm_agent.run.delta import Answered, AnyDelta, Asked, Began, Failed, Replied, Settled, Verb
from fsm_agent.run.event import EntryEvent, LiveEvent, ParkedEvent
from fsm_agent.run.state import FINAL

Event = dict[str, Any]
MAX_HISTORY_CHARS = 20_000
LOOKED_BACK = 20  # turns
_REASONS = {"approval": "tool_call", "question": "input_required", "in_doubt": "confirmation"}


class _Message(msgspec.Struct, rename="camel"):
    role: str
    id: str = ""
    content: Any = ""

    @property
    def text(self) -> str:
        """Its words; parts that are no text are left out."""
        if isinstance(self.content, str):
            return clean_text(self.content)
        parts = self.content if isinstance(self.content, list) else []
        texts = (part.get("text") for part in parts if isinstance(part, dict))
        return clean_text("\n".join(text for text in texts if isinstance(text, str)))


class _Resume(msgspec.Struct, rename="camel"):
    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class AguiBody(msgspec.Struct, rename="camel"):
    """RunAgentInput, as far as it counts here. Tools and state of the client are not used."""

    thread_id: str
    run_id: str
    messages: list[_Message] = []
    resume: list[_Resume] | None = None


async def agui(request: Request, desk: Desk, actor: Actor) -> Response:
    """A turn of a thread, as a stream of events until it is over or a person is asked."""
    body = await body_of(request, AguiBody)
    agent = desk.agents.get(request.path_params["agent"])
    if agent is None:
        known = ", ".join(sorted(desk.agents)) or "none"
        raise Problem(404, "not-found", f"This inbox has no such agent. It has: {known}.")
    # The run begins with the stream, which may be one too many: then nothing has been done.
    turn = kept_alive(_turn(desk, actor, agent, body), desk.settings.heartbeat_s)
    return await streaming(desk, actor, turn)


async def _turn(desk: Desk, actor: Actor, agent: Agent, body: AguiBody) -> AsyncIterator[bytes]:
    if body.resume:
        run_id, after = await _resumed(desk, actor, body)
    else:
        run_id, after = await _started(desk, actor, agent, body), 0
    async with aclosing(_events(desk, actor, body, run_id, after)) as events:  # type: ignore[type-var]
        async for each in events:
            yield b"data: " + wire.encode(each) + b"\n\n"


async def _started(desk: Desk, actor: Actor, agent: Agent, body: AguiBody) -> str:
    """The run of this turn. It goes on with that of an earlier turn, where there is one: what was
    said is then taken from there, and not from the client. Raises ThreadBusy."""
    thread = thread_of(actor, body)
    turn = sum(message.role == "user" for message in body.messages)
    before = await _turn_before(desk, actor, thread, turn)
    run_id = f"{thread}-{turn}"
    await desk.runtime.start(
        agent,
        _task(body.messages, before),
        run_id=run_id,
        requester=actor.name,
        tenant=actor.tenant or "",
        continues=f"{thread}-{before}" if before else None,
        thread=thread,
    )
    await desk.seen_run(actor, run_id)
    return run_id


def thread_of(actor: Actor, body: AguiBody) -> str:
    """The thread: the same whenever the client comes back with its id, another for each person."""
    parts = (actor.tenant or "", actor.name, body.thread_id)
    return f"agui-{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}"


async def _turn_before(desk: Desk, actor: Actor, thread: str, turn: int) -> int:
    """The last turn before this one that has a run; 0: none. One that was refused has none."""
    for earlier in range(turn - 1, max(0, turn - 1 - LOOKED_BACK), -1):
        with suppress(RunNotFound):
            await desk.seen_run(actor, f"{thread}-{earlier}")
            return earlier
    return 0


def _task(messages: Sequence[_Message], before: int) -> str:
    """What is asked now, after what was said since the turn `before`, as the client tells it."""
    asked_at = [at for at, message in enumerate(messages) if message.role == "user"]
    since = messages[asked_at[before] :] if before else messages
    said = [m for m in since if m.role in ("user", "assistant") and m.text.strip()]
    if not said or said[-1].role != "user":
        raise Problem(422, "bad-body", "The last message has to be the user's.")
    if len(said) == 1:
        return said[0].text
    earlier = "\n".join(f"{m.role}: {m.text}" for m in said[:-1])[-MAX_HISTORY_CHARS:]
    return f"What was said before:\n{earlier}\n\nWhat is asked now:\n{said[-1].text}"


async def _resumed(desk: Desk, actor: Actor, body: AguiBody) -> tuple[str, int]:
    """Take the decisions; the run, and the entry after which it goes on."""
    assert body.resume
    if not actor.may("decide"):
        raise Problem(403, "not-allowed", f"A {actor.role} may not decide.")
    found: list[tuple[Item, _Resume]] = []
    for each in body.resume:
        approval_id, _, seen = each.interrupt_id.rpartition(".")
        item = await approvals.item_of(desk, actor, approval_id)
        if len(seen) < 16 or not item.request.digest.startswith(seen):
            raise Problem(412, "stale", "Something else is asked now than what this answers.")
        found.append((item, each))
    run_ids = {item.request.run_id for item, _ in found}
    if len(run_ids) != 1:
        raise Problem(422, "bad-body", "The interrupts of one resume belong to one run.")
    for item, each in found:
        verb, reason, arguments, answer = _decision(item, each)
        await decide(
            desk, actor, item, verb, reason=reason, arguments=arguments, answer=answer,
            decision_id=f"agui {body.run_id} {each.interrupt_id}", channel="ag-ui",
        )  # fmt: skip
    return run_ids.pop(), await _asked_at(desk, found[0][0])


async def _asked_at(desk: Desk, item: Item) -> int:
    """The entry that opened a request: a resume that is sent again is told the same as before."""
    for event in await desk.runtime.history(item.request.run_id):
        for fact in event.record.deltas:
            if isinstance(fact, Asked) and fact.ask_id == item.request.ask_id:
                return event.seq
    return item.head.seq


def _decision(item: Item, resume: _Resume) -> tuple[Verb, str, str | None, str | None]:
    """Verb, reason, arguments and answer of an entry of `resume`."""
    payload = resume.payload
    told: dict[str, Any] = payload if isinstance(payload, dict) else {}
    reason = clean_text(str(told.get("reason", "")))
    if resume.status == "cancelled":
        is_doubt = item.request.question.kind == "in_doubt"
        return ("fail" if is_doubt else "reject"), reason or "cancelled", None, None
    words = payload if isinstance(payload, str) else told.get("answer")
    answer = clean_text(str(words)) if words is not None else None
    if isinstance(told.get("verb"), str):
        verb = told["verb"]
    elif isinstance(told.get("approved"), bool):
        verb = "approve" if told["approved"] else "reject"
    else:
        verb = "answer" if item.request.question.kind == "question" else ""
    if verb not in item.verbs and item.is_open:
        offered = ", ".join(item.verbs)
        raise Problem(422, "bad-body", f"The payload says 'verb' or 'approved'. Verbs: {offered}.")
    arguments = canonical_json(told["args"]) if verb == "edit" and "args" in told else None
    return cast(Verb, verb), reason, arguments, answer


# -- events ----------------------------------------------------------------------------------------


async def _events(
    desk: Desk, actor: Actor, body: AguiBody, run_id: str, after: int
) -> AsyncIterator[Event]:
    ends = {"threadId": body.thread_id, "runId": body.run_id}
    told = _Told(run_id)
    yield {"type": "RUN_STARTED", **ends}
    async with aclosing(desk.runtime.watch(run_id, after=after)) as events:  # type: ignore[type-var]
        async for event in events:
            match event:
                case LiveEvent(channel="body"):
                    for each in told.live(event):
                        yield each
                case EntryEvent():
                    for fact in event.record.deltas:
                        for each in told.fact(fact, ends):
                            yield each
                    snapshot = {"run": run_id, "state": event.state.value, "seq": event.seq}
                    if event.state not in FINAL:  # its last event has been told
                        yield {"type": "STATE_SNAPSHOT", "snapshot": snapshot}
                case ParkedEvent(status="waiting"):
                    items = await approvals.items(desk, actor, run_id=run_id)
                    if items:  # all decided: a worker takes it up
                        yield {"type": "RUN_FINISHED", **ends, "outcome": _interrupted(items)}
                        return
                case _:
                    pass


class _Told:
    """What a client has been told of messages, so that each begins and ends once."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._open: str | None = None  # the message that is under way
        self._said = ""  # of that message
        self._count = 0

    def live(self, event: LiveEvent) -> list[Event]:
        """Text as it comes."""
        if not event.text:
            return []
        message = f"{self._run_id}-a{event.attempt}"
        found = [] if self._open == message else self._start(message)
        return [*found, self._more(event.text)]

    def fact(self, fact: AnyDelta, ends: dict[str, str]) -> list[Event]:
        """What an entry says."""
        match fact:
            case Began():
                return self._retracted()  # the attempt before brought no whole reply
            case Replied():
                return self._reply(fact)
            case Settled():
                result = {"messageId": f"{self._run_id}-{fact.call_id}", "role": "tool",
                          "toolCallId": fact.call_id, "content": fact.text}  # fmt: skip
                return [{"type": "TOOL_CALL_RESULT", **result}]
            case Answered():
                told = {"answer": fact.text, "isCompleted": fact.is_completed}
                outcome = {"type": "success"}
                return [{"type": "RUN_FINISHED", **ends, "result": told, "outcome": outcome}]
            case Failed(reason="cancelled"):
                return [{"type": "RUN_FINISHED", **ends, "outcome": {"type": "cancelled"}}]
            case Failed():
                return [{"type": "RUN_ERROR", "message": fact.message, "code": fact.reason}]
            case _:
                return []

    def _reply(self, reply: Replied) -> list[Event]:
        if reply.violation:
            return self._retracted()
        events: list[Event] = []
        # What came live may lack its end, and is not the truth: the entry is.
        said = self._said.lstrip() if self._open else ""
        if self._open and not reply.text.startswith(said):
            events += self._retracted()
            said = ""
        if self._open is None and reply.text:
            self._count += 1
            events += self._start(f"{self._run_id}-m{self._count}")
        if rest := reply.text[len(said) :]:
            events.append(self._more(rest))
        events += self._end()
        for call in reply.calls:
            named = {"toolCallId": call.call_id}
            events += [
                {"type": "TOOL_CALL_START", **named, "toolCallName": call.name},
                {"type": "TOOL_CALL_ARGS", **named, "delta": call.arguments},
                {"type": "TOOL_CALL_END", **named},
            ]
        return events

    def _start(self, message: str) -> list[Event]:
        before = self._retracted()
        self._open, self._said = message, ""
        return [*before, {"type": "TEXT_MESSAGE_START", "messageId": message, "role": "assistant"}]

    def _more(self, text: str) -> Event:
        self._said += text
        return {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._open, "delta": text}

    def _end(self) -> list[Event]:
        if self._open is None:
            return []
        ended = {"type": "TEXT_MESSAGE_END", "messageId": self._open}
        self._open = None
        return [ended]

    def _retracted(self) -> list[Event]:
        """End a message that does not count, and say so."""
        if self._open is None:
            return []
        value = {"messageId": self._open}
        return [*self._end(), {"type": "CUSTOM", "name": "fsm_agent.retracted", "value": value}]


def _interrupted(items: Sequence[Item]) -> Event:
    return {"type": "interrupt", "interrupts": [_interrupt(item) for item in items]}


def _interrupt(item: Item) -> Event:
    request, question = item.request, item.request.question
    found: Event = {
        # With the hash in it, an answer to something else than what was shown is told apart.
        "id": f"{item.id}.{request.digest[:16]}",
        "reason": _REASONS[question.kind],
        "message": question.reason,
        "toolCallId": question.call_id,
        "responseSchema": _schema(item),
        "metadata": {"tool": question.tool, "args": question.arguments, "risk": item.risk,
                     "args_sha256": request.digest, "verbs": list(item.verbs),
                     "taints": [msgspec.structs.asdict(each) for each in question.taints]},
    }  # fmt: skip
    if request.expires_ms:
        at = datetime.fromtimestamp(request.expires_ms / 1000, UTC)
        found["expiresAt"] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return found


def _schema(item: Item) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "verb": {"enum": list(item.verbs)},
            "approved": {"type": "boolean"},
            "args": {"type": "object"},
            "answer": {"type": "string"},
            "reason": {"type": "string"},
        },
    }
