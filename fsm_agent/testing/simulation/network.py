"""A simulated network between workers and one server: requests and replies that may come late,
twice, or never."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any

from checkpoints import scripts
from checkpoints.testing.memory import MemoryServer
from checkpoints.transport import Ambiguous, Arg, Reply, ReplyError, Unreachable

from .loop import PROCESS, VirtualLoop
from .weather import ON_THE_WAY, REFUSALS, Fault, Weather

SILENCE_S = 1.0  # after which a caller takes a command for lost
_FASTEST_S, _USUAL_S = 0.0001, 0.002


class Network:
    """Carries commands to the server, as the weather lets it."""

    def __init__(
        self, server: MemoryServer, weather: Weather, chance: Random, loop: VirtualLoop
    ) -> None:
        self._server, self._weather, self._chance, self._loop = server, weather, chance, loop
        self._began = loop.time()
        self._cut_until: dict[str, float] = {}
        self._outside = Context()  # what is on its way outlives who sent it
        self.faults: Counter[Fault] = Counter()
        self.note: Callable[[str], None] = lambda text: None
        self.is_down = False

    @property
    def is_stormy(self) -> bool:
        return self._loop.time() < self._began + self._weather.storm_s

    def cut(self, process: str, seconds: float) -> None:
        """Let nothing of this process through for a while."""
        self._cut_until[process] = self._loop.time() + seconds

    def send(self, process: str, args: tuple[Arg, ...]) -> asyncio.Future[Reply]:
        """Put a command on its way. The future ends as `Transport.call` does."""
        answer = self._loop.create_future()
        if self.is_down:
            answer.set_exception(Unreachable("the simulation is over"))
            return answer
        fault = self._fate(process)
        if fault:
            self.faults[fault] += 1
            self.note(f"{process} {fault}: {_named(args)}")
        self._go(fault, args, answer)
        return answer

    def _fate(self, process: str) -> Fault | None:
        if self._loop.time() < self._cut_until.get(process, 0.0):
            return Fault.LOST_REQUEST
        if self.is_stormy and self._chance.random() < self._weather.rate:
            return self._chance.choice(ON_THE_WAY)
        return None

    def _go(self, fault: Fault | None, args: tuple[Arg, ...], answer: asyncio.Future[Any]) -> None:
        there = self._delay()
        if fault in (Fault.LOST_REQUEST, Fault.LOST_REPLY, Fault.LATE):
            self._fail(answer, SILENCE_S, Ambiguous("no answer came"))
        match fault:
            case Fault.LOST_REQUEST:
                return
            case Fault.CONN_RESET:
                self._fail(answer, there, Ambiguous("the connection was reset"))
                if self._chance.random() < 0.5:
                    self._later(there, lambda: self._apply(args))
            case Fault.LOST_REPLY:
                self._later(there, lambda: self._apply(args))
            case Fault.LATE:
                self._later(self._chance.uniform(1.0, 8.0), lambda: self._apply(args))
            case Fault.DUPLICATE:
                self._later(there, lambda: self._answer(args, answer, self._delay()))
                self._later(self._chance.uniform(there, 6.0), lambda: self._apply(args))
            case Fault.SLOW_REPLY:
                back = self._chance.uniform(0.1, 0.95)
                self._later(there, lambda: self._answer(args, answer, back))
            case Fault() if fault in REFUSALS:
                self._fail(answer, there, ReplyError(str(fault), "says the weather"))
            case _:
                self._later(there, lambda: self._answer(args, answer, self._delay()))

    def _delay(self) -> float:
        return self._chance.uniform(_FASTEST_S, _USUAL_S)

    def _apply(self, args: tuple[Arg, ...]) -> Reply | ReplyError:
        try:
            return self._server.call(*args)
        except ReplyError as error:
            return error

    def _answer(self, args: tuple[Arg, ...], answer: asyncio.Future[Any], back_s: float) -> None:
        reply = self._apply(args)
        if isinstance(reply, ReplyError):
            self._fail(answer, back_s, reply)
            return
        self._later(back_s, lambda: None if answer.done() else answer.set_result(reply))

    def _fail(self, answer: asyncio.Future[Any], after_s: float, error: Exception) -> None:
        self._later(after_s, lambda: None if answer.done() else answer.set_exception(error))

    def _later(self, seconds: float, then: Callable[[], Any]) -> None:
        self._loop.call_later(seconds, then, context=self._outside)


class Wire:
    """A process's way to the server: a Transport."""

    address = "the simulated server"
    is_ours = False

    def __init__(self, network: Network) -> None:
        self._network = network

    def call(self, *args: Arg, patience_s: float | None = None) -> asyncio.Future[Reply]:
        """See Transport."""
        return self._network.send(PROCESS.get(), args)

    async def chain(self, *commands: tuple[Arg, ...]) -> list[Reply | ReplyError]:
        """The simulated server has no copies to wait for."""
        raise ReplyError("ERR", "commands cannot be chained in a simulation")

    def drop(self, reason: str) -> None:
        """See Transport."""

    async def aclose(self) -> None:
        """See Transport."""


_NAMES = {scripts.load(name).sha: name for name in scripts.NAMES}


def _named(args: tuple[Arg, ...]) -> str:
    """A command in words: the script's name, or the command's."""
    if args[0] in ("EVALSHA", "EVAL"):
        return _NAMES.get(args[1], "script") if isinstance(args[1], bytes) else "script"
    return str(args[0])
