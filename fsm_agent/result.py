"""How a run stands, as a value for whoever started it."""

from __future__ import annotations

from contextlib import suppress
from html import escape
from typing import Any

import msgspec

from checkpoints.model import Status
from fsm_agent.capabilities.agent import Agent
from fsm_agent.capabilities.output import Misfit
from fsm_agent.run.content import Source
from fsm_agent.run.record import Run


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands: over (done, error), or given back (waiting, sleeping, ready, running)."""

    run_id: str
    status: Status
    answer: str | None = None
    is_completed: bool = False  # False with an answer: rescued or cut short by a limit
    reason: str = ""  # why it failed or finished early: a word of run.delta.FailureReason
    message: str = ""
    turns: int = 0
    spent_tokens: int = 0
    spent_money: float = 0.0  # in the currency of the agent's prices
    asks: tuple[str, ...] = ()
    closing: str | None = None  # what a tool has said the run ends with, once nothing waits
    sources: tuple[Source, ...] = ()  # that tools gave with their results
    children: tuple[str, ...] = ()  # runs that work for it, and are not over
    value: Any = None  # the answer, of the agent's output type: where it has one, and was completed

    def _repr_html_(self) -> str:
        """What a notebook shows: how the run stands, as a table. All of it escaped."""
        rows = {
            "run": self.run_id,
            "status": self.status,
            "answer": self.answer,
            "why": self.message or self.reason,
            "waits for": ", ".join(self.asks),
            "turns": self.turns,
            "tokens": f"{self.spent_tokens:,}",
        }
        cells = "".join(
            f"<tr><th style='text-align:left'>{name}</th>"
            f"<td style='text-align:left;white-space:pre-wrap'>{escape(str(value))}</td></tr>"
            for name, value in rows.items()
            if value not in (None, "")
        )
        return f"<table style='max-width:46rem'>{cells}</table>"

    def __repr__(self) -> str:
        words = self.answer if self.answer is not None else self.message or ", ".join(self.asks)
        brief = words if len(words) <= 200 else words[:199] + "…"
        return f"<Result {self.run_id} {self.status}: {brief!r}, {self.turns} turns>"


def result_of(run: Run, status: Status, agent: Agent | None = None) -> Result:
    """The result of a run; with its `agent`, its `value` too, where the agent has an output."""
    answer, failure = run.answer, run.failure
    return Result(
        run_id=run.run_id,
        status=status,
        answer=answer.text if answer else None,
        is_completed=bool(answer and answer.is_completed),
        reason=failure.reason if failure else answer.why if answer else "",
        message=failure.message if failure else "",
        turns=run.turns,
        spent_tokens=run.spent_tokens,
        spent_money=run.spent_micros / 1_000_000,
        asks=() if run.is_over else tuple(ask.ask_id for ask in run.open_asks),
        closing=_closing(run),
        sources=run.sources,
        value=_value(run, agent),
    )


def _value(run: Run, agent: Agent | None) -> Any:
    if agent is None or agent.output is None or not (run.answer and run.answer.is_completed):
        return None
    with suppress(Misfit):  # a tool that ended the run may have said anything
        return agent.output.read(run.answer.text)
    return None


def _closing(run: Run) -> str | None:
    closing = None if run.is_over else run.closing
    return closing.result.text if closing and closing.result else None
