"""Running a coroutine to its end from code that cannot await it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def run_to_end(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What `main` comes to, on an event loop of its own.

    Where a loop runs in this thread already, as in a notebook, the other one runs in a thread of
    its own, in a copy of the caller's context, while this thread waits. An interrupt then cancels
    `main`, and comes out once that has ended; a second one comes out at once.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    return _Apart(main).result()


class _Apart(Generic[T]):
    """A coroutine in a thread of its own."""

    def __init__(self, main: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._main = main
        self._ended: Future[T] = Future()
        self._task: asyncio.Task[Any] | None = None
        self._is_stopped = False

    def result(self) -> T:
        try:
            # No daemon: at an exit meanwhile there is still a run to be given back.
            Thread(target=copy_context().run, args=(self._work,), name="run_to_end").start()
            return self._ended.result()
        except KeyboardInterrupt:
            self._stop()
            wait([self._ended])
            raise

    def _work(self) -> None:
        try:
            ended = asyncio.run(self._begin())
        except BaseException as error:  # whoever waits is told, whatever it is
            self._ended.set_exception(error)
        else:
            self._ended.set_result(ended)

    async def _begin(self) -> T:
        self._task = asyncio.current_task()
        if self._is_stopped:  # between the thread's start and this; from here on the task is known
            raise asyncio.CancelledError
        return await self._main()

    def _stop(self) -> None:
        self._is_stopped = True
        if self._task:
            with suppress(RuntimeError):  # its loop is closed: it has ended
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
