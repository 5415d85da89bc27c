"""What an agent is: the settings with which the one loop runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fsm_agent.context.tokens import DEFAULT_REPLY_TOKENS, tokens_of
from fsm_agent.errors import BadAgent
from fsm_agent.labels.protocol import DEFAULT, LabelProtocol
from fsm_agent.llm.model import ToolSpec
from fsm_agent.run.limits import Limits
from fsm_agent.tools.registry import Registry, Tool, tool

from .delegate import agent_tool


class Agent:
    """An agent: its instructions, its tools, and the limits of its runs.

    `name` is stored with every run and tells which agent continues it. `tools` are functions
    with `@tool`, or plain functions, which count as `unsafe`. `protocol` None means native tool
    calls without labels. `model` None means the client's (FSM_AGENT_MODEL). `parallel_calls`
    is how many calls of a batch run at once, `batch_output_chars` how much of all their results
    the model is shown; the whole is kept beside it. With `may_rescue` an unlabelled reply is kept
    as the answer, marked as not completed, once repairs are used up.

    Raises BadAgent if two tools share a name, or a number makes no sense.
    """

    def __init__(
        self,
        name: str,
        instructions: str = "You are a helpful assistant.",
        *,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
        protocol: LabelProtocol | None = DEFAULT,
        limits: Limits | None = None,
        model: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        context_tokens: int = 32_000,
        parallel_calls: int = 8,
        batch_output_chars: int = 60_000,
        may_rescue: bool = True,
    ) -> None:
        if not name or len(name) > 64:
            raise BadAgent(f"{name!r} is not a name for an agent. Use 1 to 64 characters.")
        if parallel_calls < 1 or context_tokens < 256:
            raise BadAgent(
                f"agent {name!r}: parallel_calls must be 1 or more, context_tokens 256 or more."
            )
        self.name = name
        self.instructions = instructions
        self.registry = Registry(_as_tool(each) for each in tools)
        self.protocol = protocol
        self.limits = limits or Limits()
        self.model = model
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.context_tokens = context_tokens
        self.parallel_calls = parallel_calls
        self.batch_output_chars = batch_output_chars
        self.may_rescue = may_rescue
        self._specs = tuple(ToolSpec(*spec) for spec in self.registry.specs())
        taught = len(protocol.describe()) if protocol else 0
        self._overhead_chars = (
            len(instructions)
            + taught
            + sum(len(s.description) + len(str(s.parameters)) for s in self._specs)
        )

    def with_tools(self, tools: Iterable[Tool[..., Any] | Callable[..., Any]]) -> Agent:
        """The same agent with other tools."""
        return Agent(
            self.name,
            self.instructions,
            tools=tools,
            protocol=self.protocol,
            limits=self.limits,
            model=self.model,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            context_tokens=self.context_tokens,
            parallel_calls=self.parallel_calls,
            batch_output_chars=self.batch_output_chars,
            may_rescue=self.may_rescue,
        )

    def as_tool(self, **settings: Any) -> Tool[..., Any]:
        """This agent as a tool of another one: a call is a run of its own, with its own journal.

        `name` (default: the agent's) and `description` are what the other model is shown, `share`
        (0.5) is the part of its remaining tokens that all such calls of a batch may spend;
        `approval`, `max_output_chars`, `concurrency` and `version` are those of `tool`. What the
        child asks a person is listed with the parent, and a cancel of the parent ends it.
        """
        return agent_tool(self, **settings)

    @property
    def reply_tokens(self) -> int:
        """What is set aside for a reply."""
        return self.max_tokens or DEFAULT_REPLY_TOKENS

    @property
    def message_tokens(self) -> int:
        """What is left of the context for messages."""
        return max(1, self.context_tokens - tokens_of(self._overhead_chars))

    @property
    def overhead_chars(self) -> int:
        """Characters that every request carries besides the messages."""
        return self._overhead_chars

    def offered_tools(self, *, is_finalising: bool) -> tuple[ToolSpec, ...]:
        """The tools that the model is shown; none while a finish is forced."""
        return () if is_finalising else self._specs

    def offered_protocol(self, *, is_finalising: bool) -> LabelProtocol | None:
        """The vocabulary as it applies now: no tool label where there are no tools."""
        if self.protocol is None:
            return None
        if is_finalising:
            return self.protocol.only(self.protocol.terminal)
        return self.protocol if self._specs else self.protocol.without_tools()

    def allowed_labels(self, *, is_finalising: bool = False) -> tuple[str, ...]:
        """The labels that a correction may name."""
        protocol = self.offered_protocol(is_finalising=is_finalising)
        return tuple(protocol.allowed) if protocol else ()

    def fingerprint(self) -> str:
        """A digest of what a stored run relies on: tools with their schemas, and the protocol."""
        parts = [self.registry.fingerprint(), repr(self.protocol)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        names: Sequence[str] = self.registry.names
        return f"Agent({self.name!r}, tools=[{', '.join(names)}])"


def _as_tool(each: Tool[..., Any] | Callable[..., Any]) -> Tool[..., Any]:
    return each if isinstance(each, Tool) else tool(each)
