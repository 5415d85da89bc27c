"""Tools that misbehave, for processes of their own. Imported by name, and loaded as a file."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from fsm_agent.tools import (
    ToolContext,
    keyed,
    partial,
    pause,
    terminate,
    tool,
    with_files,
    with_sources,
)
from fsm_agent.tools.isolation import Resources

SMALL = Resources(cpu_s=2, memory_mb=256, file_mb=1, processes=8, env=("FSM_SEEN",))


def isolated(**settings: Any) -> Any:
    given: dict[str, Any] = {"timeout_s": 8.0, "resources": SMALL} | settings
    return tool(isolation="process", **given)


@isolated()
def add(a: int, b: int = 1) -> dict[str, int]:
    print("this is not the result")
    return {"sum": a + b}


@isolated()
async def add_async(a: int, ctx: ToolContext) -> list[Any]:
    await asyncio.sleep(0)
    ctx.progress(f"adding {a}")
    return [a, ctx.idempotency_key, ctx.call_id, ctx.attempt, 0 < ctx.remaining_s() < 10]


@isolated()
def draw() -> Any:
    return with_files("drawn", ("a.bin", bytes(range(256))), "/nowhere/b.bin")


@isolated()
def show(what: str) -> Any:
    return {
        "environment": lambda: dict(os.environ),
        "files": lambda: sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc") else [],
        "nothing": lambda: None,
        "nan": lambda: float("nan"),
        "partial": lambda: partial([1], "half"),
        "terminate": lambda: terminate(with_sources("over", "http://a")),
        "pause": lambda: pause("Who?", options=("a",)),
        "big": lambda: "x" * 3_000_000,
    }[what]()


@isolated(effect="read")
def misbehave(how: str) -> Any:
    def eat() -> None:
        bytearray(2**30)

    def write() -> None:
        with open(os.path.join(os.environ.get("TMPDIR", "/tmp"), "fsm-too-big"), "wb") as file:
            try:
                file.write(b"x" * 2 * 2**20)
            finally:
                os.unlink(file.name)

    def spin() -> None:
        while True:
            pass

    def bomb() -> None:
        while True:
            if os.fork() == 0:
                time.sleep(60)

    {
        "raise": lambda: 1 / 0,
        "exit": lambda: sys.exit(4),
        "_exit": lambda: os._exit(3),
        "segfault": lambda: ctypes.string_at(0),
        "abort": os.abort,
        "memory": eat,
        "write": write,
        "spin": spin,
        "bomb": bomb,
        "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(1),
        "close": lambda: os.closerange(3, 100) or time.sleep(0.1),
    }[how]()


@isolated(effect="read", timeout_s=1.0)
async def spin_async() -> None:
    while True:
        pass


@isolated(effect="read", timeout_s=1.5)
def leave_children(folder: str) -> None:
    """Start a grandchild that would write a file later, and hang."""
    subprocess.Popen([sys.executable, "-c", _late(folder, "hang")])
    time.sleep(60)


@isolated(effect="read")
def leave_a_child_and_return(folder: str) -> str:
    subprocess.Popen([sys.executable, "-c", _late(folder, "return")])
    return "returned"


def _late(folder: str, name: str) -> str:
    began, late = os.path.join(folder, f"began-{name}"), os.path.join(folder, f"late-{name}")
    return f"import time; open({began!r}, 'w'); time.sleep(3); open({late!r}, 'w')"


@isolated(effect=keyed(), timeout_s=8.0)
def die_keyed(ctx: ToolContext) -> None:
    os._exit(9)


@isolated()
def die_unsafe() -> None:
    os._exit(9)


@isolated()
def progress_forever(ctx: ToolContext) -> str:
    for n in range(500):
        ctx.progress("x" * 100 + str(n))
    return "told"
