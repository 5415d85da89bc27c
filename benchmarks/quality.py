"""Plays scripted models through each capability: `python -m benchmarks.quality [--tasks N]`.

Over real HTTP, on an embedded store. A good model should solve every task; a sloppy one, which
spoils three of ten replies, at least 95 % of them; a hostile one should come to a typed end, and
have nothing done that a person did not approve.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import combinations, cycle, islice
from pathlib import Path

from benchmarks.minds import HOSTILE, PRICES, script, task_of
from fsm_agent import Agent, Limits, Result, Runtime, Source, tool, with_sources
from fsm_agent.capabilities.chat import chat
from fsm_agent.capabilities.plan import plan
from fsm_agent.capabilities.react import react
from fsm_agent.capabilities.research import research
from fsm_agent.capabilities.solve import solve
from fsm_agent.llm.client import OpenAIModel
from fsm_agent.run.delta import Delegated, Replied
from fsm_agent.testing import ModelServer

AT_ONCE = 8
TIME_LIMIT_S = 60.0  # of one run: none may hang
LIMITS = Limits(turns=30)
KINDS = ("good", "sloppy", "hostile")


@dataclass
class Shop:
    """The tools of every agent here; `paid` are the effects that nobody may cause unasked."""

    paid: list[int] = field(default_factory=list)

    def tools(self) -> list[object]:
        @tool(effect="read")
        def price(item: str) -> object:
            """Look a price up."""
            if item not in PRICES:
                raise ValueError(f"there is no {item}. There are: {', '.join(PRICES)}.")
            return with_sources(f"the {item} costs {PRICES[item]}", Source(f"Price of {item}"))

        @tool(effect="read")
        def add(a: int, b: int) -> str:
            """Add two numbers."""
            return f"the sum is {a + b}"

        @tool(effect="unsafe", approval="always")
        def pay(amount: int) -> str:
            """Pay. Nobody has asked for it."""
            self.paid.append(amount)
            return "paid"

        return [price, add, pay]


def agents(shop: Shop) -> dict[str, Callable[[str], Agent]]:
    """An agent of each capability, made for a model's name."""

    def made(factory: Callable[..., Agent]) -> Callable[[str], Agent]:
        return lambda model: factory(
            factory.__name__.lower(), tools=shop.tools(), limits=LIMITS, model=model
        )

    named = {"labels": made(Agent)}
    return named | {each.__name__: made(each) for each in (react, chat, solve, plan, research)}


@dataclass
class Row:
    """What came of the runs of one capability with one kind of model."""

    capability: str
    kind: str
    runs: int = 0
    solved: int = 0
    ended: int = 0
    turns: int = 0
    tokens: int = 0
    repairs: int = 0
    unasked: int = 0  # effects without an approval
    reasons: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        runs = max(1, self.runs)
        reasons = ", ".join(f"{why} {count}" for why, count in sorted(self.reasons.items()))
        return (
            f"{self.capability:<10} {self.kind:<8} {self.runs:>5} {self.solved / runs:>7.0%}"
            f" {self.ended / runs:>7.0%} {self.turns / runs:>6.1f} {self.tokens / runs:>8.0f}"
            f" {self.repairs / runs:>8.2f} {self.unasked:>8}  {reasons}"
        )


HEAD = (
    f"{'capability':<10} {'model':<8} {'runs':>5} {'solved':>7} {'ended':>7} {'turns':>6}"
    f" {'tokens':>8} {'repairs':>8} {'unasked':>8}  ends that were none of the model's"
)


def models(kind: str, tasks: int) -> Iterator[str]:
    """Names of models, one a task."""
    for number in range(tasks):
        if kind == "hostile":
            yield f"hostile-{[*HOSTILE][number % len(HOSTILE)]}"
        else:
            yield f"{kind}-{number}"


async def play(runtime: Runtime, capability: str, kind: str, tasks: int) -> Row:
    """Run `tasks` tasks with as many models of a kind."""
    row, shop, gate = Row(capability, kind), Shop(), asyncio.Semaphore(AT_ONCE)
    make = agents(shop)[capability]
    pairs = islice(cycle(combinations(PRICES, 2)), tasks)

    async def one(model: str, pair: tuple[str, str]) -> None:
        async with gate, asyncio.timeout(TIME_LIMIT_S):
            result = await to_the_end(runtime, make(model), task_of(*pair))
        await _count(row, runtime, result, str(PRICES[pair[0]] + PRICES[pair[1]]))

    async with asyncio.TaskGroup() as group:
        for model, pair in zip(models(kind, tasks), pairs, strict=True):
            group.create_task(one(model, pair))
    row.unasked = len(shop.paid)
    return row


async def to_the_end(runtime: Runtime, agent: Agent, task: str) -> Result:
    """Work on a run; the person approves plans, and nothing else."""
    result = await runtime.run(agent, task)
    while result.status == "waiting":
        for request in await runtime.requests(result.run_id):
            verb = "approve" if request.question.tool == "plan" else "reject"
            await runtime.decide(
                request.run_id,
                request.ask_id,
                verb,  # type: ignore[arg-type]
                by="mia",
                digest=request.digest,
            )
        result = await runtime.work(result.run_id, agent)
    return result


async def _count(row: Row, runtime: Runtime, result: Result, wanted: str) -> None:
    row.runs += 1
    row.ended += result.status in ("done", "error")
    row.solved += result.is_completed and wanted in (result.answer or "")
    row.turns += result.turns
    row.tokens += result.spent_tokens
    row.repairs += await _repairs(runtime, result.run_id)
    if result.reason:
        row.reasons[result.reason] = row.reasons.get(result.reason, 0) + 1


async def _repairs(runtime: Runtime, run_id: str) -> int:
    """Replies that did not count, in the run and in those that worked for it."""
    history = await runtime.history(run_id)
    facts = [delta for event in history for delta in event.record.deltas]
    own = sum(isinstance(fact, Replied) and fact.violation is not None for fact in facts)
    children = {fact.child for fact in facts if isinstance(fact, Delegated)}
    return own + sum([await _repairs(runtime, child) for child in children])


@asynccontextmanager
async def open_runtime(store: str) -> AsyncIterator[Runtime]:
    """A runtime whose models are those of `benchmarks.minds`, over HTTP."""
    with ModelServer(script).in_thread() as server:
        model = OpenAIModel(base_url=server.base_url, api_key="none")
        async with Runtime.open(store, model=model, is_live=False) as runtime:
            yield runtime
        await model.aclose()


async def table(tasks: int) -> int:
    """Print the table; how many of its rows are worse than they may be."""
    bad = 0
    print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        async with open_runtime(f"embedded:{Path(folder) / 'store'}") as runtime:
            for capability in agents(Shop()):
                for kind in KINDS:
                    row = await play(runtime, capability, kind, tasks)
                    print(row, flush=True)
                    bad += not is_good_enough(row)
    return bad


def is_good_enough(row: Row) -> bool:
    """Good models solve all, sloppy ones 95 %, and whatever they do ends, with nothing unasked."""
    floor = {"good": 1.0, "sloppy": 0.95, "hostile": 0.0}[row.kind]
    return row.solved >= floor * row.runs and row.ended == row.runs and not row.unasked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.quality")
    parser.add_argument("--tasks", type=int, default=40, help="of each row (40)")
    given = parser.parse_args()
    bad = asyncio.run(table(max(1, given.tasks)))
    print(f"\n{bad} rows are worse than they may be" if bad else "\nevery row is as it should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
