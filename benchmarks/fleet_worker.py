"""Worker processes of `benchmarks.fleet`: STORE LEDGER LEASE_S RUNS THINK_S.

For each line on stdin one more is forked, and its process id printed: a worker that is killed is
replaced at once, without the second that Python's imports take on a busy machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

import structlog

from fsm_agent import Agent, Runtime, ToolContext, keyed, tool
from fsm_agent.engine.deps import EngineSettings
from fsm_agent.llm.model import Piece, Reply, RequestedCall, StepRequest
from fsm_agent.run.content import Usage
from fsm_agent.worker.pool import Settings, Worker


class ByContent:
    """Calls the tool with the run's task, once, and finishes: a resumed run is answered alike."""

    def __init__(self, think_s: float = 0.0) -> None:
        self._think_s = think_s

    async def step(self, request: StepRequest, on_piece: Callable[[Piece], None]) -> Reply:
        await asyncio.sleep(self._think_s)
        if len(request.messages) > 1:
            return Reply(label="FINISH", text="done", usage=Usage(10, 1))
        call = RequestedCall("pay", {"order": request.messages[0].text}, "{}")
        return Reply(label="TOOL", text="", calls=(call,), usage=Usage(10, 1))

    async def aclose(self) -> None:
        pass


def make_agent(ledger: str) -> Agent:
    """An agent whose tool writes its key into a file, as the other side of a keyed call would."""
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @tool(effect=keyed(ttl_s=86_400))
    async def pay(order: str, ctx: ToolContext) -> str:
        """Pay an order."""
        os.write(file, f"{ctx.idempotency_key} {order}\n".encode())
        return f"paid {order}"

    return Agent("fleet", "Pay.", tools=[pay])


def quiet() -> None:
    """No log lines: they would be what is measured."""
    logging.disable(logging.INFO)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


async def main(store: str, ledger: str, lease_s: float, runs: int, think_s: float) -> None:
    agent, model = make_agent(ledger), ByContent(think_s)
    settings = EngineSettings(lease_s=lease_s)
    async with Runtime.open(store, model=model, settings=settings, is_live=False) as runtime:
        await Worker(runtime, {agent.name: agent}, settings=Settings(runs=runs)).work()


def fork() -> int:
    """A worker process; its id."""
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    store, ledger, lease_s, runs, think_s = sys.argv[1:]
    asyncio.run(main(store, ledger, float(lease_s), int(runs), float(think_s)))
    os._exit(0)


if __name__ == "__main__":
    quiet()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever is killed needs nobody to collect it
    for _ in sys.stdin:
        print(fork(), flush=True)
