"""The library's front door: start runs, work on them, decide, and look at what they did."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace as replace_fields

from checkpoints.leases import Heartbeat
from checkpoints.model import RunId
from checkpoints.store import Store
from fsm_agent.blocking import run_to_end
from fsm_agent.capabilities.agent import Agent
from fsm_agent.capabilities.thread import carried
from fsm_agent.clock import Clock, SystemClock
from fsm_agent.engine import threads
from fsm_agent.engine.children import rouse
from fsm_agent.engine.costs import check_prices
from fsm_agent.engine.deps import Deps, EngineSettings
from fsm_agent.engine.live import LivePublisher
from fsm_agent.engine.resume import load, work_on
from fsm_agent.engine.session import snapshot_of
from fsm_agent.errors import UsageError, did_you_mean
from fsm_agent.llm.model import Model
from fsm_agent.notify.relay import Relay
from fsm_agent.notify.webhook import INBOX, Webhook, webhooks_of
from fsm_agent.observability.observer import Observer, from_environment
from fsm_agent.observations.given import Givable
from fsm_agent.observations.given import load as load_files
from fsm_agent.observations.reading import Limits as FileLimits
from fsm_agent.people import People, Request, check_length
from fsm_agent.result import Result, result_of
from fsm_agent.run import codec, signal
from fsm_agent.run.content import File, clean_text
from fsm_agent.run.delta import AnyDelta, Carried, Created, Filed, Given, OnBusy, Versioned
from fsm_agent.run.event import EntryEvent, Event, LiveEvent
from fsm_agent.run.filing import checked_filing
from fsm_agent.run.limits import Limits, check_limits
from fsm_agent.run.person import identity
from fsm_agent.run.record import Record, Run, apply
from fsm_agent.run.redaction import Redactor, secret_values
from fsm_agent.run.signal import AnySignal, CancelRequested, Happened, Said
from fsm_agent.tools.rule import rule_of
from fsm_agent.versions import Versions
from fsm_agent.watching import Watching
from fsm_agent.worker.tidying import tidying

__all__ = ["Request", "Result", "Runtime", "default_store_url", "new_run_id", "run_sync"]

DEFAULT_STORE = "embedded:.fsm-agent"
MAX_TASK_CHARS = 200_000

log = structlog.get_logger(__name__)


def default_store_url() -> str:
    """FSM_AGENT_STORE, or a folder below the current one."""
    return os.environ.get("FSM_AGENT_STORE") or DEFAULT_STORE


class Runtime(People, Versions, Watching):
    """Runs agents on a store. Open it with `Runtime.open`; one per process is enough."""

    def __init__(self, deps: Deps, *, owner: str) -> None:
        self._deps, self._owner = deps, owner

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        store: str | Store | None = None,
        *,
        model: Model | None = None,
        on_event: Callable[[Event], None] | None = None,
        settings: EngineSettings | None = None,
        clock: Clock | None = None,
        owner: str | None = None,
        is_live: bool = True,
        webhooks: Sequence[Webhook] | None = None,
        observers: Sequence[Observer] | None = None,
    ) -> AsyncIterator[Runtime]:
        """A runtime for the length of the block.

        `store` is an address (default: FSM_AGENT_STORE, or `embedded:.fsm-agent`) or an open
        store, which is then not closed. `model` defaults to the OpenAI-compatible client of the
        environment, made when it is first needed. `on_event` hears of each entry once it is
        durable, and of live text; an error it raises is logged and changes nothing. `is_live`
        also publishes live text for other processes, and tidies up finished runs now and then.
        `webhooks` (default: FSM_AGENT_WEBHOOK) are told of requests, deadlines and endings, for as
        long as the block lasts. `observers` watch from outside, for logs, metrics and traces
        (default: those that the environment switches on, if `is_live`).

        Raises BadStoreUrl or StoreUnavailable, naming the address, or UsageError for a webhook
        that cannot work.
        """
        webhooks = webhooks_of() if webhooks is None else webhooks
        clock = clock or SystemClock()
        async with AsyncExitStack() as stack:
            if store is None or isinstance(store, str):
                from checkpoints.connect import open_store

                store = await open_store(store or default_store_url())
                stack.push_async_callback(store.aclose)
            if model is None:
                from fsm_agent.llm.client import OpenAIModel

                model = OpenAIModel()
                stack.push_async_callback(model.aclose)
            settings = settings or EngineSettings()
            if is_live and settings.tidy_s:
                await stack.enter_async_context(tidying(store, every_s=settings.tidy_s))
            redactor = _redactor()
            publisher = LivePublisher(store, redactor) if is_live else None
            if publisher:
                await stack.enter_async_context(publisher.publishing())
            owner = owner or f"{socket.gethostname()}-{os.getpid()}"
            listeners = [on_event] if on_event else []
            if observers is None:
                observers = from_environment() if is_live else ()
            watched: Store = store
            for observer in observers:
                watched, hear = await stack.enter_async_context(observer.observing(watched, owner))
                listeners.append(hear)
            heartbeat = await stack.enter_async_context(_beating(watched))
            relay = None
            if webhooks:
                inbox_url = os.environ.get(INBOX, "")
                relay = Relay(
                    store, webhooks, clock=clock, jitter=random.random, inbox_url=inbox_url
                )
                await stack.enter_async_context(relay.relaying())
            deps = Deps(
                store=watched,
                model=model,
                heartbeat=heartbeat,
                new_id=lambda: secrets.token_hex(16),
                jitter=random.random,
                clock=clock,
                emit=_fan_out(publisher, listeners),
                settings=settings,
                on_notices=relay.poke if relay else None,
                work_on=work_on,
                redactor=redactor,
            )
            yield cls(deps, owner=owner)

    @property
    def store(self) -> Store:
        """The store underneath."""
        return self._deps.store

    @property
    def owner(self) -> str:
        """Who this process is in leases and journals."""
        return self._owner

    @property
    def lease_s(self) -> float:
        """How long a run of this process is left alone after it died."""
        return self._deps.settings.lease_s

    def with_model(self, model: Model) -> Runtime:
        """The same runtime with another model, for agents that do not share one."""
        return Runtime(replace(self._deps, model=model), owner=self._owner)

    # -- working ------------------------------------------------------------------------------

    async def start(
        self,
        agent: Agent,
        task: str,
        *,
        run_id: str | None = None,
        limits: Limits | None = None,
        requester: str = "",
        continues: str | None = None,
        tenant: str = "",
        priority: int = 0,
        thread: str = "",
        on_busy: OnBusy = "reject",
        files: Sequence[Givable] = (),
    ) -> str:
        """Put a new run on record, due now, and return its id. Nobody works on it yet.

        `files` are paths, or pairs of a name and bytes; the worker reads them. A repeat with the
        same id, agent, task and files is the same run. With `continues` the run goes on with the
        conversation of another one, which has to be over: of what was said in it and before it, as
        much as half of the window holds is recorded with the new run.

        Workers take runs of a higher `priority` (-100 to 100) first, and hold to the limits of the
        `tenant`. Of the runs of a `thread` one at a time is active; while another one is, this one
        is refused ('reject'), waits for its turn ('queue'), or has the other one cancelled and is
        next ('interrupt').

        Raises RunExists if the id began with another input, ThreadBusy, BadRunId, or UsageError
        for an empty or endless task, for no `requester` where a tool may not be approved by them,
        for a limit that makes no sense, or on money where the agent's model has no price, and for
        a run to continue that is not over; RunNotFound if there is none.
        """
        task = clean_text(task)
        if not task.strip():
            raise UsageError("the task is empty. Say what the agent should do.")
        if len(task) > MAX_TASK_CHARS:
            raise UsageError(
                f"the task has {len(task)} characters, the limit is {MAX_TASK_CHARS}. "
                "Put long material into a file that a tool reads."
            )
        _check_requester(agent, requester)
        check_limits(limits or agent.limits)
        run_id = new_run_id() if run_id is None else run_id
        created = Created(
            agent.name, task, limits or agent.limits, clean_text(requester), agent.fingerprint()
        )
        filed = checked_filing(tenant, priority, thread, on_busy)
        if filed.thread:
            await threads.refuse_if_busy(self._deps.store, RunId(run_id), filed)
        given = await self._put(RunId(run_id), files, agent.file_limits)
        facts: list[AnyDelta] = [self._deps.clean(created), Versioned(agent.parts())]
        if filed != Filed():
            facts.append(filed)
        if continues is not None:
            facts.append(await self._carried(continues, agent))
        if given:
            facts.append(Given(given))
        record = Record(None, self._deps.clock.wall_ms(), tuple(facts))
        run = apply(Run(run_id=run_id), record)
        check_prices(run, agent, self._deps.model)
        await self._deps.store.create(
            RunId(run_id),
            op=_digest(created, given, filed, continues),
            body=codec.encode(record),
            snapshot=codec.encode_snapshot(snapshot_of(run)),
        )
        if filed.thread:
            await threads.enter(run, agent, self._deps, owner=self._owner)
        return run_id

    async def _carried(self, before: str, agent: Agent) -> Carried:
        run, _ = await load(RunId(before), self._deps)
        if not run.is_over:
            raise UsageError(
                f"run {before!r} is not over, so nothing can continue it. Say more to it with `say`"
                ", or wait for its end."
            )
        return carried(run, agent)

    async def work(self, run_id: str, agent: Agent, *, accept_changes_by: str = "") -> Result:
        """Claim the run and drive it until it is over or waits.

        `accept_changes_by` names who lets it go on with code that has changed since it began, or
        that cannot serve a call of it: the name goes on record.

        Raises RunBusy if another worker has it, RunClosed if it is over, LeaseLost if it was
        taken over meanwhile, CodeChanged if it needs other code or somebody to accept this one,
        and UsageError or ProviderError where a person must act first: the run was given back as
        it was.
        """
        deps = replace(self._deps, accepted_by=clean_text(accept_changes_by))
        run, park = await work_on(RunId(run_id), agent, deps, owner=self._owner)
        if run.parent:
            await rouse(self._deps.store, run.parent, run.run_id, str(run.seq))
        result = result_of(run, park.status if park else "done" if run.answer else "error", agent)
        return await self._with_asks_of_children(result, run)

    async def run(self, agent: Agent, task: str, **options: Any) -> Result:
        """Start a run and work on it: `start` and `work` in one."""
        _check_options("run", options, _START_OPTIONS)
        return await self.work(await self.start(agent, task, **options), agent)

    async def result(self, run_id: str, agent: Agent | None = None) -> Result:
        """How the run stands now; with its `agent`, its `value` too, where the agent has an output.

        Raises RunNotFound or CorruptEntry.
        """
        head = await self._deps.store.head(RunId(run_id))
        run, _ = await load(RunId(run_id), self._deps)
        return await self._with_asks_of_children(result_of(run, head.status, agent), run)

    async def _with_asks_of_children(self, result: Result, run: Run) -> Result:
        if run.is_over or not run.children:
            return result
        asks = tuple(request.ask_id for request in await self.requests(run.run_id))
        return replace_fields(result, asks=asks, children=run.children)

    # -- telling ------------------------------------------------------------------------------

    async def cancel(
        self, run_id: str, *, by: str, reason: str = "", is_graceful: bool = False
    ) -> bool:
        """Ask the run to end at its next commit point. False: that was asked already.

        Running tools, the model's reply and child runs are cut off for it; with `is_graceful` they
        come to their end first, and nothing new begins. Asking again without it cuts them off.
        Raises UsageError for an endless reason.
        """
        check_length(name=by, reason=reason)
        said = self._deps.clean(CancelRequested(clean_text(by), clean_text(reason), is_graceful))
        return await self._deps.store.signal(
            RunId(run_id), signal_id=signal.signal_id_of(said), body=signal.encode(said)
        )

    async def say(
        self, run_id: str, text: str, *, by: str = "", files: Sequence[Givable] = ()
    ) -> bool:
        """Give the run a further message of the user, for its next turn. Raises UsageError for an
        empty or endless one, and for files that are not there or too large."""
        text = clean_text(text)
        if not text.strip() or len(text) > MAX_TASK_CHARS:
            raise UsageError(
                f"a message has 1 to {MAX_TASK_CHARS} characters that are not blank, "
                f"this one has {len(text)}."
            )
        given = await self._put(RunId(run_id), files, FileLimits())
        said: AnySignal = self._deps.clean(Said(text, clean_text(by), given))
        signal_id = f"said:{self._deps.new_id()}"
        body = signal.encode(said)
        return await self._deps.store.signal(RunId(run_id), signal_id=signal_id, body=body)

    async def notify(self, run_id: str, text: str, *, source: str, event_id: str = "") -> bool:
        """Tell the run of something that happened outside, for its next turn.

        With an `event_id` a repeat counts once. Raises UsageError for an empty or endless text.
        """
        text, source = clean_text(text), clean_text(source)
        if not text.strip() or len(text) > MAX_TASK_CHARS or not source.strip():
            raise UsageError("an event has a source, and a text of 1 to 200,000 characters.")
        signal_id = f"event:{event_id or self._deps.new_id()}"
        body = signal.encode(Happened(source[:64], text))
        return await self._deps.store.signal(RunId(run_id), signal_id=signal_id, body=body)

    async def _put(
        self, run_id: RunId, files: Sequence[Givable], limits: FileLimits
    ) -> tuple[File, ...]:
        """Keep the bytes of the files beside the run, each content once."""
        if not files:
            return ()
        loaded = await asyncio.to_thread(load_files, files, limits)
        given = []
        for name, data in loaded:
            digest = await self._deps.store.put_blob(run_id, data)
            given.append(File(name, digest, len(data)))
        return tuple(given)


_START_OPTIONS = frozenset(inspect.signature(Runtime.start).parameters) - {"self", "agent", "task"}
_OPEN_OPTIONS = frozenset(inspect.signature(Runtime.open).parameters) - {"store"}


def run_sync(agent: Agent, task: str, *, store: str | None = None, **options: Any) -> Result:
    """`Runtime.run` for code that cannot await: `options` are those of `start` and `open`.

    Where an event loop runs already, as in a notebook, the run is worked on in a thread of its
    own, and so are the agent's tools and hooks. An interrupt meanwhile gives it back.
    """
    _check_options("run_sync", options, _START_OPTIONS | _OPEN_OPTIONS | {"store"})
    of_start = {name: options.pop(name) for name in _START_OPTIONS & options.keys()}

    async def main() -> Result:
        async with Runtime.open(store, **options) as runtime:
            return await runtime.run(agent, task, **of_start)

    return run_to_end(main)


def _check_options(function: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError, as Python does for a function of its own, with the nearest name."""
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}.{hint}")


def new_run_id() -> str:
    """A run id: 'r-' and 16 letters and digits that are hard to confuse (80 random bits)."""
    alphabet = "23456789abcdefghjkmnpqrstuvwxyz"
    return "r-" + "".join(secrets.choice(alphabet) for _ in range(16))


def _redactor() -> Redactor | None:
    """Knows this process's own secrets. FSM_AGENT_REDACT=off keeps texts as they came."""
    if os.environ.get("FSM_AGENT_REDACT", "").lower() == "off":
        return None
    return Redactor(secret_values(os.environ))


def _fan_out(
    publisher: LivePublisher | None, listeners: Sequence[Callable[[Event], None]]
) -> Callable[[Event], None]:
    def emit(event: Event) -> None:
        if publisher and isinstance(event, LiveEvent):
            publisher.add(event)
        elif publisher and isinstance(event, EntryEvent):
            publisher.settle(event.run_id)
        for listener in listeners:
            try:
                listener(event)
            except Exception as error:
                # What it was told has happened. A watcher that fails must not make a tool's call
                # or a committed entry look as if they had.
                log.error("runtime.listener_failed", run_id=event.run_id, why=repr(error))

    return emit


@asynccontextmanager
async def _beating(store: Store) -> AsyncIterator[Heartbeat]:
    """A heartbeat for the length of the block. An error of the block comes out as itself, while
    the heartbeat's task group would wrap it."""
    raised: Exception | None = None
    async with Heartbeat(store, spare=store.twin) as heartbeat:
        try:
            yield heartbeat
        except Exception as error:
            raised = error
    if raised:
        raise raised


def _check_requester(agent: Agent, requester: str) -> None:
    rules = {tool.name: rule_of(tool.approval) for tool in agent.registry}
    guarded = [name for name, rule in rules.items() if rule and rule.not_requester]
    if guarded and not identity(requester):
        raise UsageError(
            f"{guarded[0]} may not be approved by whoever starts the run. Say who that is:"
            " start(…, requester=…)."
        )


def _digest(created: Created, files: tuple[File, ...], filed: Filed, continues: str | None) -> str:
    """Equal for the same input, whatever version of the agent's code starts it."""
    first = replace_fields(created, fingerprint="")
    facts = (first, Given(files)) if files else (first,)
    given = codec.encode(Record(None, 0, facts))
    if filed != Filed():
        given += msgspec.msgpack.encode(filed)
    if continues is not None:
        given += continues.encode()
    return hashlib.sha256(given).hexdigest()[:32]
