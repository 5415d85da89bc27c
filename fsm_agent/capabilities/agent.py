"""What an agent is: the settings with which the one loop runs."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from fsm_agent.context.policies import Context
from fsm_agent.context.tokens import DEFAULT_REPLY_TOKENS, tokens_of
from fsm_agent.errors import BadAgent, did_you_mean
from fsm_agent.labels.protocol import DEFAULT, LabelProtocol
from fsm_agent.llm.model import ToolSpec
from fsm_agent.observations.reading import Limits as FileLimits
from fsm_agent.reflection.critic import Critic
from fsm_agent.reflection.money import Price, price_of
from fsm_agent.reflection.settings import Reflection
from fsm_agent.run.limits import Limits, check_limits
from fsm_agent.run.record import Run
from fsm_agent.tools.registry import Registry, Tool, tool

from .delegate import agent_tool
from .hooks import Hooks
from .output import Misfit, Output, json_of
from .phase import Capability, Phase, Wanted

PHASE_CHARS = 6_000  # of what a phase tells the model anew for each request, such as a plan


class Offer(msgspec.Struct, frozen=True):
    """What the model is told, offered and allowed in its next turn."""

    phase: Phase
    instructions: str
    tools: tuple[ToolSpec, ...]
    protocol: LabelProtocol | None
    is_last: bool  # a terminal label ends the run, not only the phase

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that a correction may name."""
        return self.protocol.allowed if self.protocol else ()

    def is_end(self, label: str | None) -> bool:
        """Whether a reply under this label ends the run."""
        return self.is_last and (self.protocol is None or label in self.protocol.terminal)

    def has_tool(self, name: str) -> bool:
        return any(spec.name == name for spec in self.tools)


OnChange = Literal["warn", "park", "continue"]


class Agent:
    """An agent: its instructions, its tools, and the limits of its runs.

    `name` is stored with every run and tells which agent continues it. `tools` are functions
    with `@tool`, or plain functions, which count as `unsafe`. `protocol` None means native tool
    calls without labels. `model` None means the client's (FSM_AGENT_MODEL). `parallel_calls`
    is how many calls of a batch run at once, `batch_output_chars` how much of all their results
    the model is shown; the whole is kept beside it. With `may_rescue` an unlabelled reply is kept
    as the answer, marked as not completed, once repairs are used up. `keep_s` is how many seconds
    a finished run is kept; None leaves that to the runtime. `on_change` is what happens
    to a run that began with other tools, protocol or instructions: 'warn' goes on, with a log line
    and a fact in the journal; 'continue' goes on with the fact alone; 'park' gives the run back
    until the old code takes it or a person accepts the change.
    `context` says what happens when the messages no longer fit into `context_tokens`, `reflection`
    by which policies a run is judged, `critic` asks a model to look over it, and `prices` (by
    model) let limits on money hold. `file_limits` bounds what is read of files.

    `output` is the type of the final answer, such as a msgspec Struct: the model is told its
    schema, what does not fit is corrected like any violation, and `Result.value` is the value.
    `hooks` are functions of the host. `capability` says which phases a run goes through, and takes
    the place of `protocol`; without one there is a single phase, the plain loop.

    Raises BadAgent if two tools share a name, a phase offers a tool that is not there, the output
    cannot be a type, or a number makes no sense, and UsageError for such a limit.
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
        capability: Capability | None = None,
        output: Any = None,
        hooks: Hooks | None = None,
        keep_s: float | None = None,
        on_change: OnChange = "warn",
        context: Context | None = None,
        reflection: Reflection | None = None,
        critic: Critic | None = None,
        file_limits: FileLimits | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        if not name or len(name) > 64:
            raise BadAgent(f"{name!r} is not a name for an agent. Use 1 to 64 characters.")
        if parallel_calls < 1 or context_tokens < 256:
            raise BadAgent(
                f"agent {name!r}: parallel_calls must be 1 or more, context_tokens 256 or more."
            )
        if keep_s is not None and not 0 < keep_s < 1e10:
            raise BadAgent(f"agent {name!r}: keep_s={keep_s} is not a number of seconds above 0.")
        if on_change not in get_args(OnChange):
            hint = did_you_mean(str(on_change), get_args(OnChange))
            raise BadAgent(
                f"agent {name!r}: on_change={on_change!r}.{hint} Use 'warn', 'park' or 'continue'."
            )
        self.name = name
        self.instructions = instructions
        self.capability = capability or Capability(Phase(name="", protocol=protocol))
        self.limits = limits or Limits()
        check_limits(self.limits)
        self.model = model
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.context_tokens = context_tokens
        self.parallel_calls = parallel_calls
        self.batch_output_chars = batch_output_chars
        self.may_rescue = may_rescue
        self.context = context or Context()
        self.reflection = reflection or Reflection()
        self.critic = critic
        self.file_limits = file_limits or FileLimits()
        self.prices = dict(prices or {})
        self.on_change = on_change
        self.keep_s = keep_s
        self.output = Output(output) if output is not None else None
        self.hooks = hooks or Hooks()
        self._equip(tools)

    def _equip(self, tools: Iterable[Tool[..., Any] | Callable[..., Any]]) -> None:
        self.registry = Registry(as_tools(tools))
        specs = tuple(ToolSpec(*spec) for spec in self.registry.specs())
        self._specs = {phase.name: self._offered(phase, specs) for phase in self.capability.phases}
        told = self.output.taught if self.output else ""
        self._overhead_chars = (
            len(self.instructions) + len(told) + max(map(self._weight, self.capability.phases))
        )

    def _offered(self, phase: Phase, specs: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        if phase.tools is None:
            return specs
        missing = set(phase.tools).difference(spec.name for spec in specs)
        if missing:
            raise BadAgent(
                f"agent {self.name!r}: phase {phase.name!r} offers {', '.join(sorted(missing))}, "
                "which is none of its tools."
            )
        return tuple(spec for spec in specs if spec.name in phase.tools)

    def _weight(self, phase: Phase) -> int:
        """Characters that a request of the phase carries besides the messages, roughly."""
        taught = len(phase.protocol.describe()) if phase.protocol else 0
        told = 0 if len(self.capability.phases) == 1 else PHASE_CHARS
        specs = self._specs[phase.name]
        return taught + told + sum(len(s.description) + len(str(s.parameters)) for s in specs)

    def with_tools(self, tools: Iterable[Tool[..., Any] | Callable[..., Any]]) -> Agent:
        """The same agent with other tools."""
        other = copy.copy(self)
        other._equip(tools)
        return other

    def as_tool(self, **settings: Any) -> Tool[..., Any]:
        """This agent as a tool of another one: a call is a run of its own, with its own journal.

        `name` (default: the agent's) and `description` are what the other model is shown, `share`
        (0.5) is the part of its remaining tokens that all such calls of a batch may spend;
        `approval`, `max_output_chars`, `concurrency` and `version` are those of `tool`. What the
        child asks a person is listed with the parent, and a cancel of the parent ends it.
        """
        return agent_tool(self, **settings)

    @property
    def protocol(self) -> LabelProtocol | None:
        """The vocabulary of the phase that ends a run."""
        return self.capability.last.protocol

    @property
    def reply_tokens(self) -> int:
        """What is set aside for a reply."""
        return self.max_tokens or DEFAULT_REPLY_TOKENS

    @property
    def overhead_tokens(self) -> int:
        """What every request carries besides the messages, by plain estimate."""
        return tokens_of(self._overhead_chars)

    def price(self, model: str | None = None) -> Price | None:
        """What a model costs, the agent's own by default; None where the table has none."""
        return price_of(self.prices, model or self.model)

    def offer(self, run: Run) -> Offer:
        """What the model gets in the run's next turn. Raises UsageError for an unknown phase.

        While a finish is forced: no tools, and only the labels that end the run. Where there are
        no tools there is no tool label.
        """
        phase = self.capability.phase(run)
        is_last, protocol = phase is self.capability.last, phase.protocol
        is_finalising = run.final_turns_left is not None
        tools = () if is_finalising else self._specs[phase.name]
        if protocol and is_finalising:
            protocol = protocol.only(protocol.terminal)
        elif protocol and phase.allows:
            protocol = protocol.only(phase.allows(run))
        if protocol and not tools:
            protocol = protocol.without_tools()
        instructions = self.instructions
        if told := phase.tells(run):
            instructions = f"{instructions}\n\n{told}"
        if is_last and self.output:
            instructions = f"{instructions}\n\n{self.output.taught}"
        return Offer(phase, instructions, tools, protocol, is_last)

    def due_calls(self, run: Run) -> tuple[Wanted, ...]:
        """Calls that are to be made now without asking the model; none while it must finish."""
        if run.final_turns_left is not None:
            return ()
        return tuple(self.capability.phase(run).calls(run))

    def objection_to(self, run: Run, answer: str) -> tuple[str, str]:
        """The violation that an answer is, and what is wrong with it in words for the model.

        Both are '' for an answer that may stand.
        """
        if self.output:
            try:
                self.output.read(answer)
            except Misfit as misfit:
                return "invalid_output", f"The answer cannot be used. {misfit}"
            return "", ""
        objection = self.capability.last.objects(run, answer)
        return ("refused_answer", objection) if objection else ("", "")

    def finished(self, run: Run, answer: str) -> str:
        """An accepted answer as it goes on record: bare JSON where it is data."""
        return json_of(answer) if self.output else self.capability.last.finishes(run, answer)

    def value_of(self, answer: str) -> Any:
        """The answer as a value of the output type; the text itself where there is none.

        Raises Misfit.
        """
        return self.output.read(answer) if self.output else answer

    def parts(self) -> dict[str, str]:
        """A digest of each part that a stored run relies on, by what people call the part.

        Of a tool: its name, version, effect and parameters; neither its prose nor its function.
        """
        protocols = [phase.protocol for phase in self.capability.phases]
        protocol = msgspec.json.encode(protocols, order="deterministic")  # sets have no order
        parts = {"instructions": _digest(self.instructions.encode()), "protocol": _digest(protocol)}
        return parts | {f"tool {tool.name}": tool.fingerprint[:12] for tool in self.registry}

    def fingerprint(self) -> str:
        """One digest of all the parts."""
        return _digest(msgspec.json.encode(self.parts(), order="deterministic"))

    def __repr__(self) -> str:
        names: Sequence[str] = self.registry.names
        return f"Agent({self.name!r}, tools=[{', '.join(names)}])"


def as_tools(
    given: Iterable[Tool[..., Any] | Callable[..., Any]],
) -> tuple[Tool[..., Any], ...]:
    """Each as a tool; plain functions count as `unsafe`."""
    return tuple(each if isinstance(each, Tool) else tool(each) for each in given)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
