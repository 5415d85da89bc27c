"""What a sweep runs: an agent, its model, a task, and a person."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from fsm_agent.capabilities.agent import Agent
from fsm_agent.errors import UsageError
from fsm_agent.llm.model import Model

from .ledger import Ledger
from .people import Person, truthful_person

MakeAgent = Callable[[Ledger], Agent] | Callable[[], Agent]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """An agent, or a function that makes one, perhaps for a ledger; its model, a task, a person.

    `decide` says what the person answers to a request: the verb, and the text of `answer` and
    `happened`. The default approves, and settles what is in doubt by looking at the ledger.
    `time_limit_s` is for each process, on the clock. `seed` is that of `random` in each of them.
    """

    make_agent: Agent | MakeAgent
    make_model: Callable[[], Model]
    task: str
    decide: Person = truthful_person
    lease_s: float = 30.0  # long: what dies is known to be dead, and its lease is ended
    doubt_grace_s: float = 0.1
    time_limit_s: float = 30.0
    seed: int = 0

    def agent(self, ledger: Ledger) -> Agent:
        """The agent of one process. Raises UsageError for what makes none."""
        made = self.make_agent
        if not isinstance(made, Agent):
            takes_ledger = bool(inspect.signature(made).parameters)
            made = made(ledger) if takes_ledger else made()  # type: ignore[call-arg]
        if not isinstance(made, Agent):
            raise UsageError(f"{self.make_agent!r} made {made!r:.80}, which is not an Agent.")
        return made
