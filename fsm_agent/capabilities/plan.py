"""Plan: solve, with the plan shown to a person before anything of it is done."""

from __future__ import annotations

from typing import Any

from fsm_agent.tools.rule import Approval

from .agent import Agent
from .solve import INSTRUCTIONS, solve


def plan(
    name: str, instructions: str = INSTRUCTIONS, *, review: Approval = "always", **settings: Any
) -> Agent:
    """An agent that plans, waits for a person to agree to the plan, then carries it out.

    The plan is a request like any other: approve it, edit its steps, or reject it with a reason.
    `review` may be `ask(…)`, with a deadline or for several people. The rest is that of `solve`.
    """
    return solve(name, instructions, review=review, **settings)
