"""Letting one call land although its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Answer(asyncio.Future[Any]):
    """An answer on its way. Where it must land, cancelling who waits for it does not cancel it.

    asyncio then delivers the cancellation once the answer is there.
    """

    must_land = False

    def cancel(self, msg: Any | None = None) -> bool:
        return False if self.must_land else super().cancel(msg)


async def through(call: Coroutine[Any, Any, T]) -> T:
    """Await `call` to its end; a cancellation that came meanwhile is raised after it, and has what
    the call gave (`landed_with`).

    Driven in the caller's task: `call` must set no time limit of its own before it waits.
    """
    landed: T = await _Through(call)
    return landed


class _Through:
    """Drives a call in the caller's own task for as long as it waits for answers only.

    A task of its own would cost a commit three turns of the event loop. A call that has to wait
    for something else, a connection or a pause before a repeat, gets one from there on.
    """

    def __init__(self, call: Coroutine[Any, Any, T]) -> None:
        self._steps = call.__await__()

    def __await__(self) -> Generator[Any, Any, Any]:
        cancelled: asyncio.CancelledError | None = None
        try:
            while True:
                waits_for = self._steps.send(None)
                if not isinstance(waits_for, Answer):
                    rest = _awaited(_Rest(self._steps, waits_for))
                    value = yield from landed(rest, cancelled).__await__()
                    break
                waits_for.must_land = True
                try:
                    yield waits_for
                except asyncio.CancelledError as error:
                    cancelled = error
                except Exception:
                    pass  # the answer is an error, which the call meets in its next step
        except StopIteration as end:
            value = end.value
        except Exception:
            if cancelled is None:
                raise  # else the cancellation is what the caller hears
            value = None
        if cancelled is not None:
            raise _having(cancelled, value)
        return value


class _Rest:
    """The rest of a call that was driven by hand up to `waits_for`."""

    def __init__(self, steps: Generator[Any, Any, T], waits_for: Any) -> None:
        self._steps, self._waits_for = steps, waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        while True:
            # What ends the wait goes on into the call: it knows what a failure means.
            step: Callable[[], Any]
            try:
                yield waits_for
            except BaseException as error:
                step = partial(self._steps.throw, error)
            else:
                step = partial(self._steps.send, None)
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value


async def _awaited(rest: _Rest) -> Any:
    return await rest


async def landed(
    call: Coroutine[Any, Any, T], cancelled: asyncio.CancelledError | None = None
) -> T:
    """The same in a task of its own, for any call."""
    task = asyncio.ensure_future(call)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:  # the task's own error: raised again below
            break
    if cancelled is not None:
        # The cancellation is what the caller hears; an error was seen by asking for it.
        is_landed = not task.cancelled() and task.exception() is None
        raise _having(cancelled, task.result() if is_landed else None)
    return task.result()


def landed_with(cancelled: asyncio.CancelledError) -> Any:
    """What the call gave during which the cancellation came; None for another cancellation."""
    return getattr(cancelled, "landed_with", None)


def _having(cancelled: asyncio.CancelledError, value: Any) -> asyncio.CancelledError:
    # On the exception that came and not one of our own: asyncio.timeout knows its own by its type.
    cancelled.landed_with = value  # type: ignore[attr-defined]
    return cancelled
