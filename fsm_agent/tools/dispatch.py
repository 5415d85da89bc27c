"""Running a call that was started: its time limit, its retries, its result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from fsm_agent.clock import Clock, SystemClock
from fsm_agent.run.content import Source

from .arguments import Bound
from .attachments import Attachment
from .context import ToolContext, in_call
from .effects import Idempotent, Keyed, Read
from .fallback import smaller
from .outcomes import Opened, Pause, opened
from .process import run_in_process
from .registry import Tool
from .results import MAX_CAUSE_CHARS, CannotShow, Died, Reported, cause_of, show, text_with
from .running import Ended, start

GRACE_S = 1.0  # to end by itself, once cancelled
MAX_ANSWER_CHARS = 200_000  # of a result that is the run's answer: no model reads it again

_NOT_WORTH_A_RETRY = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    FileExistsError,
    FileNotFoundError,
    ImportError,
    IsADirectoryError,
    LookupError,
    MemoryError,
    NameError,
    NotADirectoryError,
    NotImplementedError,
    PermissionError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a call.

    `full` holds the bytes of the whole output where `text` was cut. `attempts` is 0 where the call
    did not even start, so it surely had no effect. `arguments` is canonical JSON where others than
    those of the call ran. In doubt is what a child run did. With a `question` there is no result
    yet: the user's answer is it.
    """

    status: Literal["success", "partial", "error", "timeout", "in_doubt"]
    text: str
    took_ms: int
    full: bytes | None = None
    attempts: int = 1
    is_still_running: bool = False  # a thread, or a task that ignores its cancellation
    is_effect_unknown: bool = False  # given up midway, and repeating is not harmless
    ends: bool = False  # the text is the run's answer
    question: Pause | None = None
    sources: tuple[Source, ...] = ()
    arguments: str = ""
    spent_tokens: int = 0  # by a child run
    raised: tuple[str, ...] = ()  # questions that a child run hands up
    spent_micros: int = 0
    files: tuple[Attachment, ...] = ()


class TimedOut(msgspec.Struct, frozen=True):
    """An attempt that did not end in time."""

    is_still_running: bool


def _forget(running: asyncio.Future[Ended]) -> None:
    pass


def _drop(result: Result) -> None:
    pass


async def run_call(
    tool: Tool[..., Any],
    bound: Bound,
    context: ToolContext,
    *,
    timeout_s: float | None = None,
    grace_s: float = GRACE_S,
    clock: Clock | None = None,
    on_left_behind: Callable[[asyncio.Future[Ended]], None] = _forget,
    on_late: Callable[[Result], None] = _drop,
) -> Result:
    """Run one call to its end, or until it is given up, with the retries its tool allows.

    `timeout_s` (default: the tool's) limits each attempt; all attempts share the idempotency key.
    A failure of the tool is a result. KeyboardInterrupt and our own cancellation come
    through; then, and after a timeout, `on_left_behind` is told of a tool that still runs, and
    `on_late` gets the result of one that returned while it was being cancelled.
    """
    clock = clock or SystemClock()
    limit_s = tool.timeout_s if timeout_s is None else timeout_s
    began = clock.steady_s()
    tries = _Tries(tool, bound, context, limit_s, grace_s, clock, on_left_behind)

    def result_of(ended: Ended | TimedOut) -> Result:
        took_ms = round((clock.steady_s() - began) * 1000)
        result = _result(tool, ended, limit_s, took_ms, tries.count)
        return result if tries.bound is bound else _noted(result, tries.bound.arguments)

    try:
        return result_of(await (tries.repeated() if tool.retries else tries.once()))
    except asyncio.CancelledError:
        if tries.late:
            on_late(result_of(tries.late))
        raise


class _Tries:
    """The attempts of one call, counted."""

    def __init__(
        self,
        tool: Tool[..., Any],
        bound: Bound,
        context: ToolContext,
        timeout_s: float,
        grace_s: float,
        clock: Clock,
        on_left_behind: Callable[[asyncio.Future[Ended]], None],
    ) -> None:
        self._tool, self.bound, self._context = tool, bound, context
        self._timeout_s, self._grace_s, self._clock = timeout_s, grace_s, clock
        self._on_left_behind = on_left_behind
        self.count = 0
        self.late: Ended | None = None  # returned while it was being cancelled

    async def repeated(self) -> Ended | TimedOut:
        """Try until it works, the retries are used up, or the failure will not pass by itself."""
        import stamina  # 25 to 120 ms: only for tools with retries

        attempts = stamina.retry_context(
            on=_Again, attempts=self._tool.retries + 1, timeout=None, wait_max=10.0
        )
        ended: Ended | TimedOut = Ended()
        try:
            async for attempt in attempts:
                with attempt:
                    if isinstance(ended, TimedOut):
                        self.bound = smaller(self._tool, self.bound)
                    ended = await self.once()
                    if is_worth_a_retry(ended):
                        raise _Again(f"tool {self._tool.name!r} failed, and is tried again")
        except _Again:
            pass  # the last attempt failed too: its own failure is the result
        return ended

    async def once(self) -> Ended | TimedOut:
        context = replace(
            self._context,
            attempt=self._context.attempt + self.count,
            deadline_s=self._clock.steady_s() + self._timeout_s,
            clock=self._clock,
            cancelled=threading.Event() if self.count else self._context.cancelled,
        )
        kwargs = self._kwargs()
        self.count += 1
        is_async = self._tool.is_async or self._tool.isolation == "process"
        if not is_async:
            context = replace(context, on_progress=_from_thread(context.on_progress))
        call = partial(self._tool.call, kwargs, context)
        if self._tool.isolation == "process":
            given, limit_s = self.bound.arguments, self._timeout_s
            call = partial(run_in_process, self._tool, given, context, timeout_s=limit_s)
        with in_call():
            running = start(call, is_async=is_async, name=f"tool {self._tool.name}")
        try:
            await asyncio.wait({running}, timeout=self._timeout_s)
            if running.done():
                return _ended(running)
            return await self._given_up(running, context)
        except asyncio.CancelledError:
            late = await self._given_up(running, context)
            self.late = late if isinstance(late, Ended) else None
            raise

    def _kwargs(self) -> Mapping[str, Any]:
        """The arguments, decoded anew for a retry: the tool may have changed those it had."""
        again = self._tool.bind(self.bound.arguments) if self.count else self.bound
        return again.kwargs if isinstance(again, Bound) else self.bound.kwargs

    async def _given_up(
        self, running: asyncio.Future[Ended], context: ToolContext
    ) -> Ended | TimedOut:
        """Tell the tool to stop. If it returns within the grace after all, that is its result."""
        context.cancelled.set()
        if isinstance(running, asyncio.Task):
            running.cancel()
        try:
            await asyncio.wait({running}, timeout=self._grace_s)
        finally:
            if not running.done():
                self._on_left_behind(running)
        if not running.done():
            return TimedOut(is_still_running=True)
        if running.cancelled():
            return TimedOut(is_still_running=False)
        late = running.result()
        return late if late.error is None else TimedOut(is_still_running=False)


def _from_thread(on_progress: Callable[[str], None]) -> Callable[[str], None]:
    """`on_progress`, to be called in a thread and to run in the event loop."""
    loop = asyncio.get_running_loop()

    def hop(text: str) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody watches any more
            loop.call_soon_threadsafe(on_progress, text)

    return hop


def is_worth_a_retry(ended: Ended | TimedOut) -> bool:
    """Whether the same call may work a moment later: not for mistakes in it, or in the tool."""
    match ended:
        case TimedOut(is_still_running=is_still_running):
            return not is_still_running
        case Ended(error=None):
            return False
        case Ended(error=error):
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            if isinstance(error, Reported):
                return error.may_pass
            return isinstance(error, Exception) and not isinstance(error, _NOT_WORTH_A_RETRY)


class _Again(Exception):
    """Asks stamina for another attempt."""


def _result(
    tool: Tool[..., Any], ended: Ended | TimedOut, timeout_s: float, took_ms: int, attempts: int
) -> Result:
    match ended:
        case TimedOut(is_still_running=still):
            harmless = isinstance(tool.effect, Read | Idempotent)
            return Result(
                status="timeout",
                text=_timeout_text(tool, timeout_s, still),
                took_ms=took_ms,
                attempts=attempts,
                is_still_running=still,
                is_effect_unknown=not harmless,
            )
        case Ended(error=None, value=value):
            return shown_result(tool, value, took_ms, attempts)
        case Ended(error=KeyboardInterrupt() as error):
            raise error
        case Ended(error=CannotShow() as error):
            return _not_shown(tool, error, took_ms, attempts)
        case Ended(error=Died() as error):
            harmless = isinstance(tool.effect, Read | Idempotent)
            text = f"{tool.name} did not come to its end: {error}."
            if not harmless:
                text += " Its effect may have happened."
            return Result(
                status="error",
                text=text,
                took_ms=took_ms,
                attempts=attempts,
                is_effect_unknown=not harmless,
            )
        case Ended(error=error):
            assert error is not None
            return Result(status="error", text=cause_of(error), took_ms=took_ms, attempts=attempts)


def shown_result(tool: Tool[..., Any], value: Any, took_ms: int, attempts: int) -> Result:
    """What came of a call that returned `value`, or whose probe says that it would have."""
    found = value if isinstance(value, Opened) else opened(value)
    if found.pause:
        return Result(
            status="success",
            text="",
            took_ms=took_ms,
            attempts=attempts,
            question=found.pause,
            sources=found.sources,
        )
    try:
        limit = MAX_ANSWER_CHARS if found.ends else tool.max_output_chars
        shown = show(text_with(found.value, found.files), limit)
    except CannotShow as error:
        return _not_shown(tool, error, took_ms, attempts)
    text = shown.text
    if found.why_partial is not None and not found.ends:
        text += f"\n[Not all of it: {found.why_partial[:MAX_CAUSE_CHARS]}]"
    return Result(
        status="success" if found.why_partial is None else "partial",
        text=text,
        took_ms=took_ms,
        full=shown.full,
        attempts=attempts,
        ends=found.ends,
        sources=found.sources,
        files=found.files,
    )


def _not_shown(tool: Tool[..., Any], error: CannotShow, took_ms: int, attempts: int) -> Result:
    text = f"{tool.name} ran to its end, but {error}. Calling it again will not help."
    return Result(status="error", text=text, took_ms=took_ms, attempts=attempts)


def _noted(result: Result, arguments: str) -> Result:
    """The result of a call that was tried again with smaller arguments, and says so."""
    if result.status == "success" and not result.ends and not result.question:
        note = f"\n[After a timeout it ran with other arguments: {arguments[:MAX_CAUSE_CHARS]}]"
        result = msgspec.structs.replace(result, text=result.text + note)
    return msgspec.structs.replace(result, arguments=arguments)


def _timeout_text(tool: Tool[..., Any], timeout_s: float, still: bool) -> str:
    text = f"{tool.name} took over {timeout_s:g} s and was given up."
    if still:
        text += " It could not be stopped and may still be running."
    if isinstance(tool.effect, Read | Idempotent):
        return text
    if isinstance(tool.effect, Keyed):
        return text + " Its effect may have happened; the same call would carry the same key."
    return text + " Its effect may have happened."


def _ended(running: asyncio.Future[Ended]) -> Ended:
    if running.cancelled():  # by itself: ours would have come through
        return Ended(error=asyncio.CancelledError("the tool cancelled itself"))
    return running.result()
