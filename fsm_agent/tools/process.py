"""Running a call in a process of its own: limited, with a clean environment, killed as a group."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from fsm_agent.run.content import Source

from .attachments import from_plain
from .context import ToolContext
from .isolation import Place, Resources, place_of
from .outcomes import Opened, Pause
from .registry import Tool
from .results import MAX_FULL_BYTES, CannotShow, Died, Reported

VISIBLE = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
LINE_BYTES = 2 * MAX_FULL_BYTES  # of JSON; a longer result is no result
LOOK_S = 0.2  # between two counts of a tool's processes
LAST_WORDS_S = 0.5  # to read what a process said before it ended

# The path comes along, and not by PYTHONPATH: the tool's own children must not inherit it.
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]);"
    " from fsm_agent.tools.child import main; main()"
)


async def run_in_process(
    tool: Tool[..., Any], arguments: str, context: ToolContext, *, timeout_s: float
) -> Opened:
    """Run the call in a new process. Its whole process group is dead when this returns or raises.

    Raises Reported for what the tool raised, CannotShow, and Died.
    """
    resources = tool.resources or Resources()
    place = tool.place or place_of(tool.function, tool.name)
    async with _child(resources) as (process, reader, descriptor):
        request = _request(place, resources, tool, arguments, context, timeout_s, descriptor)
        assert process.stdin
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
        said = await _listen(process, reader, resources, context.on_progress)
    return _opened(said)


def _request(
    place: Place,
    resources: Resources,
    tool: Tool[..., Any],
    arguments: str,
    context: ToolContext,
    timeout_s: float,
    descriptor: int,
) -> dict[str, Any]:
    return {
        "fd": descriptor,
        "parent": os.getpid(),
        "place": msgspec.to_builtins(place),
        "limits": msgspec.to_builtins(resources),
        "name": tool.name,
        "arguments": arguments,
        "run_id": context.run_id,
        "call_id": context.call_id,
        "key": context.idempotency_key,
        "attempt": context.attempt,
        "time_s": timeout_s + 1.0,  # by then the worker has killed it, if it is still there
    }


@asynccontextmanager
async def _child(
    resources: Resources,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader, int]]:
    loop = asyncio.get_running_loop()
    ours, theirs = os.pipe()
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    try:
        pipe, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", 0)
        )
    except BaseException:
        os.close(theirs)
        raise
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-c", _BOOT, json.dumps(sys.path)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=_environment(resources),
                pass_fds=(theirs,),
                start_new_session=True,  # a group of its own, to be killed as one
            )
        finally:
            os.close(theirs)
        try:
            yield process, reader, theirs
        finally:
            kill_group(process.pid)
            # Not to be left to somebody else: an unreaped child is one of the user's processes.
            await asyncio.shield(process.wait())
    finally:
        pipe.close()


def _environment(resources: Resources) -> dict[str, str]:
    names = (*VISIBLE, *resources.env)
    return {name: os.environ[name] for name in names if name in os.environ}


def kill_group(group: int) -> None:
    """SIGKILL for every process of the group, at once."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


async def _listen(
    process: asyncio.subprocess.Process,
    reader: asyncio.StreamReader,
    resources: Resources,
    on_progress: Callable[[str], None],
) -> dict[str, Any]:
    """What the process says at its end. Raises Died."""
    saying = asyncio.create_task(_last_line(reader, on_progress))
    ending = asyncio.create_task(process.wait())
    counting = asyncio.create_task(_until_too_many(process.pid, resources.processes))
    tasks = {saying, ending, counting}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if counting.done() and not saying.done():
            raise Died(f"it had more than {resources.processes} processes and was killed")
        if not saying.done():
            await asyncio.wait({saying}, timeout=LAST_WORDS_S)
        if saying.done() and (said := saying.result()) is not None:
            return said
        await asyncio.wait({ending}, timeout=LAST_WORDS_S)  # its pipe is closed: it is about to end
        raise Died(_how_it_ended(process.returncode, resources))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _last_line(
    reader: asyncio.StreamReader, on_progress: Callable[[str], None]
) -> dict[str, Any] | None:
    """The line that is not about progress; None if there is none."""
    while True:
        try:
            line = await reader.readline()
            said = json.loads(line) if line else None
        except ValueError:  # too long, or half a line
            return {"cannot_show": "its result is too long to be handed over"}
        if not (isinstance(said, dict) and "progress" in said):
            return said
        on_progress(said["progress"])


async def _until_too_many(group: int, limit: int) -> None:
    """Return once the session of `group` has more than `limit` processes.

    The kernel's own limit counts all processes of the user, and does not hold for root.
    """
    while True:
        await asyncio.sleep(LOOK_S)
        if _processes_in(group) > limit:
            return


def _processes_in(session: int) -> int:
    count = 0
    for entry in os.scandir("/proc") if os.path.isdir("/proc") else ():
        if not entry.name.isdigit():
            continue
        with (
            contextlib.suppress(OSError, IndexError, ValueError),
            open(f"/proc/{entry.name}/stat") as f,
        ):
            # After the name in brackets, which may hold anything: state, parent, group, session.
            count += int(f.read().rpartition(")")[2].split()[3]) == session
    return count


def _how_it_ended(code: int | None, resources: Resources) -> str:
    if code is None:
        return "its process closed the line before it had a result"
    if code >= 0:
        return f"its process ended with exit code {code} before it had a result"
    if -code == signal.SIGXCPU:
        return f"it used more than {resources.cpu_s} s of CPU time and was killed"
    with contextlib.suppress(ValueError):
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process was ended by signal {-code}"


def _opened(said: dict[str, Any]) -> Opened:
    if "cannot_show" in said:
        raise CannotShow(str(said["cannot_show"]))
    if "error" in said:
        raise Reported(str(said["error"]), may_pass=bool(said.get("may_pass")))
    sources = tuple(Source(*each) for each in said["sources"])
    if "question" in said:
        return Opened(pause=Pause(said["question"], tuple(said["options"])), sources=sources)
    return Opened(
        value=said["text"],
        why_partial=said["why_partial"],
        ends=said["ends"],
        sources=sources,
        files=from_plain(said["files"]),
    )
