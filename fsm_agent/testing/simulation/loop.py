"""An event loop without a world: a clock that jumps, and an order that a seed decides."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, ContextVar
from itertools import count
from random import Random
from typing import Any, NoReturn

from fsm_agent.errors import AgentError

MAX_STEPS = 200_000  # callbacks in one simulation; more is a loop that time does not end

PROCESS: ContextVar[str] = ContextVar("fsm_agent_simulated_process", default="")


class NotSimulated(AgentError):
    """Code under simulation reached for a thread, a socket, a process, or for ever."""


class _Task(asyncio.Task[Any]):
    """A task whose hash is the same in every run: asyncio keeps tasks in sets."""

    def __init__(self, coro: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self._number = number  # first: the loop hashes a task while it is made
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """The same for futures."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what is ready in an order drawn from `chance`, and jumps to the next timer otherwise.

    Everything that was started with the name of a process in its context can be halted, as by
    SIGSTOP, and go on later with its timers overdue; or never, as after SIGKILL.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance
        self._now = 1_000.0
        self._numbers = count(1)
        self._halted: dict[str, list[asyncio.Handle]] = {}
        self.steps = 0

    def time(self) -> float:
        return self._now

    # -- processes --------------------------------------------------------------------------------

    def halt(self, name: str) -> None:
        """Run nothing of this process from now on."""
        self._halted.setdefault(name, [])

    def go_on(self, name: str) -> None:
        """Run a halted process again, beginning with what became due meanwhile."""
        self._ready.extend(self._halted.pop(name, ()))

    @property
    def halted(self) -> frozenset[str]:
        return frozenset(self._halted)

    # -- one step ---------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Called by `run_forever` until somebody stops it."""
        if not self._ready and self._scheduled and not self._stopping:
            self._now = max(self._now, self._scheduled[0].when())
        self._wake_timers()
        if not self._ready:
            if not self._scheduled and not self._stopping:
                raise NotSimulated("the simulation stands still: nothing could wake it any more")
            return
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise NotSimulated(f"the simulation took over {MAX_STEPS:,} steps; time stood still")
        handle = self._pick()
        if handle.cancelled():
            return
        name = _process_of(handle)
        if name in self._halted:
            self._halted[name].append(handle)
            return
        handle._run()

    def _wake_timers(self) -> None:
        while self._scheduled:
            timer = self._scheduled[0]
            if not timer.cancelled() and timer.when() > self._now:
                return
            heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer.cancelled():
                self._ready.append(timer)

    def _pick(self) -> asyncio.Handle:
        if len(self._ready) > 1:
            self._ready.rotate(-int(self._chance.random() * len(self._ready)))
        return self._ready.popleft()

    # -- what asyncio asks of a loop --------------------------------------------------------------

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: Any = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        number = next(self._numbers)
        name = name or f"task {number}"
        return _Task(coro, number, loop=self, name=name, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._numbers), self)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no events from outside."""

    def _write_to_self(self) -> None:
        """Nobody outside could wake this loop."""

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise NotSimulated("a simulated process started a thread. Make the function async.")

    def call_soon_threadsafe(self, *_: Any, **__: Any) -> NoReturn:  # type: ignore[override]
        raise NotSimulated("a thread called into a simulation. Make the tool async.")

    async def create_connection(self, *_: Any, **__: Any) -> NoReturn:
        raise NotSimulated("a simulated process opened a socket. Hand in a scripted one.")

    create_server = create_unix_connection = create_unix_server = create_connection
    create_datagram_endpoint = create_connection

    async def subprocess_exec(self, *_: Any, **__: Any) -> NoReturn:
        raise NotSimulated("a simulated process started a process. Leave isolation out.")

    subprocess_shell = subprocess_exec


def _process_of(handle: asyncio.Handle) -> str:
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(PROCESS, "")
