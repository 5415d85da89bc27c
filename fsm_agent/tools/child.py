"""The other end of `isolation="process"`: a Python that runs one call and says how it ended.

Started by `fsm_agent.tools.process`. A request comes on stdin, lines of JSON go to a pipe of its
own, so that nothing the tool prints can pass for its result.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from .attachments import to_plain
from .context import ToolContext
from .dispatch import is_worth_a_retry
from .outcomes import opened
from .registry import Tool, tool
from .results import CannotShow, cause_of, text_with
from .running import Ended

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the call that stdin describes, and end this process."""
    # A worker that was started in the background hands down that SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    request = json.loads(sys.stdin.buffer.readline())
    channel = _Channel(request["fd"])
    _limit(request)
    try:
        said = _run(request, channel)
    except MemoryError:
        gc.collect()  # what filled the memory has to go before there is room to say so
        said = {"error": "MemoryError", "may_pass": False}
    except BaseException as error:  # also SystemExit: the caller decides what it means
        said = {"error": cause_of(error), "may_pass": is_worth_a_retry(Ended(error=error))}
    channel.send(said)
    os._exit(0)  # not joined by threads that the tool left behind


class _Channel:
    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()
        os.set_inheritable(descriptor, False)

    def send(self, said: dict[str, Any]) -> None:
        data = json.dumps(said).encode() + b"\n"
        with self._lock:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]

    def progress(self, text: str) -> None:
        self.send({"progress": str(text)[:2000]})


def _limit(request: dict[str, Any]) -> None:
    limits = request["limits"]
    megabyte = 2**20
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_FSIZE, limits["file_mb"] * megabyte)
    _set(resource.RLIMIT_AS, limits["memory_mb"] * megabyte)
    _set(resource.RLIMIT_CPU, limits["cpu_s"], grace=1)  # SIGXCPU says why, SIGKILL comes after
    _set(resource.RLIMIT_NPROC, _processes_of_user() + limits["processes"])
    # The worker may be gone by the time that this runs away: both end it without anybody's help.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request["time_s"])
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != request["parent"]:
            os._exit(1)


def _set(kind: int, value: int, *, grace: int = 0) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value, grace = min(value, hard), 0
    with contextlib.suppress(ValueError, OSError):  # macOS knows some of them by name only
        resource.setrlimit(kind, (value, value + grace))


def _processes_of_user() -> int:
    """Processes and threads of this user now: the kernel counts them all against the limit."""
    me, count = os.getuid(), 0
    for entry in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = dict(line.split(":", 1) for line in entry.read_text().splitlines())
            if int(fields["Uid"].split()[0]) == me:
                count += int(fields["Threads"])
    return count


def _run(request: dict[str, Any], channel: _Channel) -> dict[str, Any]:
    function = _function(request["place"])
    made = function if isinstance(function, Tool) else tool(function, name=request["name"])
    bound = made.bind(request["arguments"])
    context = ToolContext(
        run_id=request["run_id"],
        call_id=request["call_id"],
        idempotency_key=request["key"],
        attempt=request["attempt"],
        on_progress=channel.progress,
    )
    context = replace(context, deadline_s=context.clock.steady_s() + request["time_s"])
    call: Callable[[], Any] = lambda: made.call(bound.kwargs, context)  # type: ignore[union-attr]  # noqa: E731
    value = asyncio.run(_awaited(call)) if made.is_async else call()
    return _told(value)


async def _awaited(call: Callable[[], Any]) -> Any:
    return await call()


def _told(value: Any) -> dict[str, Any]:
    found = opened(value)
    told: dict[str, Any] = {
        "ends": found.ends,
        "why_partial": found.why_partial,
        "sources": [[s.title, s.url, s.span] for s in found.sources],
        "files": to_plain(found.files),
    }
    if found.pause:
        return told | {"question": found.pause.question, "options": list(found.pause.options)}
    try:
        return told | {"text": text_with(found.value, found.files)}
    except CannotShow as error:
        return {"cannot_show": str(error)}


def _function(place: dict[str, str]) -> Any:
    if place["file"]:
        module = _from_file(place["module"], Path(place["file"]))
    else:
        module = importlib.import_module(place["module"])
    return getattr(module, place["qualname"])


def _from_file(name: str, file: Path) -> ModuleType:
    # Not under the name __main__: what stands below `if __name__ == "__main__"` must not run here.
    name = "__fsm_main__" if name == "__main__" else name
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module
