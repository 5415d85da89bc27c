"""What a tool is, how a function becomes one, and the tools that an agent has."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from fsm_agent.errors import BadAgent, UnknownTool, did_you_mean
from fsm_agent.run.content import EffectClass, canonical_json

from . import arguments
from .arguments import Bound, Refused
from .checks import refuse_check
from .context import ToolContext
from .effects import Effect, Idempotent, Keyed, Probed, Read, class_of, effect_named
from .functions import innermost, is_async, name_of
from .isolation import Isolation, Place, Resources, place_of, refuse_function, refuse_resources
from .rule import Approval, Rule
from .schema import Schema, Signature, read_signature

P = ParamSpec("P")
R = TypeVar("R")

Fallback = Literal["halve"] | Callable[[dict[str, Any]], Mapping[str, Any]]

DEFAULT_TIMEOUT_S = 60.0
DEFAULT_OUTPUT_CHARS = 20_000  # about 5,000 tokens; the whole is kept beside it
MAX_OUTPUT_CHARS = 200_000  # an entry holds it whatever its script
MIN_OUTPUT_CHARS = 100  # room for the marker that says how much was cut

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what providers accept


@dataclass(frozen=True, eq=False, kw_only=True)
class Tool(Generic[P, R]):
    """A function that a model may call, with all that the runtime has to know about it.

    Still callable like the function. Made by `tool`, which states the meaning of each setting.
    """

    function: Callable[P, R] = field(repr=False)
    name: str
    effect: Effect
    approval: Approval = "never"
    timeout_s: float = DEFAULT_TIMEOUT_S
    retries: int = 0
    max_output_chars: int = DEFAULT_OUTPUT_CHARS
    concurrency: int | None = None
    version: str = "1"
    fallback: Fallback | None = None
    isolation: Isolation = "none"
    resources: Resources | None = None  # of the tool's own process
    place: Place | None = field(default=None, repr=False)  # where that process finds the function
    signature: Signature = field(repr=False)

    def __post_init__(self) -> None:
        _refuse_settings(self)
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            if (value := getattr(self.function, attribute, None)) is not None:
                object.__setattr__(self, attribute, value)
        object.__setattr__(self, "__wrapped__", self.function)  # for help() and signature()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool[..., R]:
        """The tool of one instance, where the function was declared in a class body."""
        if instance is None or not self.signature.takes_self:
            return self
        bound = types.MethodType(self.function, instance)
        return replace(self, function=bound, signature=replace(self.signature, takes_self=False))

    @property
    def description(self) -> str:
        """The docstring's words for the model, without its section about parameters."""
        return self.signature.description

    @property
    def parameters(self) -> Schema:
        """The JSON schema of the arguments: a closed object."""
        return self.signature.schema

    @property
    def effect_class(self) -> EffectClass:
        return class_of(self.effect)

    @property
    def is_async(self) -> bool:
        return is_async(self.function)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what stored calls rely on: name, version, effect, parameters; not prose."""
        ttl_s = self.effect.ttl_s if isinstance(self.effect, Keyed) else None
        meaning = [
            self.name,
            self.version,
            self.effect_class,
            ttl_s,
            _without_prose(self.parameters),
        ]
        return hashlib.sha256(canonical_json(meaning).encode()).hexdigest()

    def bind(self, arguments_json: str) -> Bound | Refused:
        """Decode a call's arguments: canonical JSON, or whatever the model wrote."""
        return arguments.bind(self.signature, arguments_json)

    def call(self, kwargs: Mapping[str, Any], context: ToolContext) -> Any:
        """Call the function with bound arguments and the context, if it takes one."""
        own = dict.fromkeys(self.signature.context_names, context)
        function: Callable[..., Any] = self.function
        return function(**kwargs, **own)


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    effect: Effect | Literal["read", "idempotent", "unsafe"] = "unsafe",
    approval: Approval = "never",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retries: int = 0,
    max_output_chars: int = DEFAULT_OUTPUT_CHARS,
    concurrency: int | None = None,
    name: str | None = None,
    version: str = "1",
    fallback: Fallback | None = None,
    isolation: Isolation = "none",
    resources: Resources | None = None,
) -> Tool[P, R]: ...
@overload
def tool(
    function: None = None,
    /,
    *,
    effect: Effect | Literal["read", "idempotent", "unsafe"] = "unsafe",
    approval: Approval = "never",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retries: int = 0,
    max_output_chars: int = DEFAULT_OUTPUT_CHARS,
    concurrency: int | None = None,
    name: str | None = None,
    version: str = "1",
    fallback: Fallback | None = None,
    isolation: Isolation = "none",
    resources: Resources | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect | Literal["read", "idempotent", "unsafe"] = "unsafe",
    approval: Approval = "never",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retries: int = 0,
    max_output_chars: int = DEFAULT_OUTPUT_CHARS,
    concurrency: int | None = None,
    name: str | None = None,
    version: str = "1",
    fallback: Fallback | None = None,
    isolation: Isolation = "none",
    resources: Resources | None = None,
) -> Any:
    """Make a function a tool: `@tool`, `@tool(effect="read")`, or `tool(database.find)`.

    `effect` says what may be done about a call that a crash cut off: 'read', 'idempotent',
    keyed(ttl_s=…), probed(check=…), or 'unsafe', which is never started twice.
    `approval` is 'always', 'never', or a function of the arguments: False runs the call, True or a
    reason asks a person first, and so does anything else it returns or raises. ask(…) adds terms:
    a deadline, several people, not the one who started the run.
    `timeout_s` limits each attempt. `retries` is for read, idempotent and keyed tools only.
    `max_output_chars` limits what the model sees of a result. `concurrency` limits how many calls
    of this tool run at once. Change `version` when stored calls should not run in the new code.
    `fallback` makes a retry after a timeout ask for less: 'halve' (`limit`, `max_results` and
    `count`), or a function of the arguments; for read and idempotent tools with retries.
    `isolation` 'process' runs each call in a process of its own, limited by `resources`.

    Raises BadAgent for a declaration that cannot work.
    """
    local_names = sys._getframe(1).f_locals  # types declared beside the tool, inside a function

    def declare(function: Callable[..., Any]) -> Tool[..., Any]:
        chosen = name if name is not None else name_of(function)
        _refuse_function(function, chosen)
        return Tool(
            function=function,
            name=chosen,
            effect=effect_named(effect),
            approval=approval,
            timeout_s=timeout_s,
            retries=retries,
            max_output_chars=max_output_chars,
            concurrency=concurrency,
            version=version,
            fallback=fallback,
            isolation=isolation,
            resources=resources or (Resources() if isolation == "process" else None),
            signature=read_signature(function, chosen, local_names),
        )

    return declare if function is None else declare(function)


class Registry:
    """The tools of an agent, by name, in the order in which they were given."""

    def __init__(self, tools: Iterable[Tool[..., Any]] = ()) -> None:
        """Raises BadAgent for two tools of one name, or something that is no tool."""
        self._tools: dict[str, Tool[..., Any]] = {}
        for each in tools:
            self._add(each)

    def _add(self, tool: Tool[..., Any]) -> None:
        if not isinstance(tool, Tool):
            raise BadAgent(f"{name_of(tool)!r} is not a tool. Put @tool above its declaration.")
        if tool.signature.takes_self:
            raise BadAgent(
                f"tool {tool.name!r} is a method without its instance."
                f" Give that of an instance: `thing.{name_of(tool.function)}`."
            )
        if tool.name in self._tools:
            raise BadAgent(
                f"two tools are named {tool.name!r}. Give one another name: @tool(name=…)."
            )
        if tool.isolation == "process":
            tool = replace(tool, place=place_of(tool.function, tool.name))
        self._tools[tool.name] = tool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def get(self, name: str) -> Tool[..., Any]:
        """Raises UnknownTool, which says what may have been meant."""
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownTool(name, self._tools) from None

    def specs(self) -> tuple[tuple[str, str, Schema], ...]:
        """Name, description and parameters of each tool, as a model is told."""
        return tuple((t.name, t.description, t.parameters) for t in self)

    def fingerprint(self) -> str:
        """A digest of all tools' fingerprints, whatever their order."""
        prints = sorted(t.fingerprint for t in self)
        return hashlib.sha256(canonical_json(prints).encode()).hexdigest()

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools


def _refuse_function(function: Any, name: str) -> None:
    target = innermost(function)
    if isinstance(target, Tool):
        raise BadAgent(
            f"{name!r} is a tool already. Declare a second one from its function,"
            f" so that its settings are stated anew: tool({target.name}.function, name=…)."
        )
    if isinstance(target, classmethod) or not callable(target):
        raise BadAgent(f"tool {name!r}: {target!r} is not a function. Put @tool nearest to `def`.")
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise BadAgent(
            f"tool {name!r} is a generator. Return the whole result,"
            " and use `ToolContext.progress` for what comes on the way."
        )


def _refuse_settings(tool: Tool[..., Any]) -> None:
    def refuse(problem: str) -> BadAgent:
        return BadAgent(f"tool {tool.name!r}: {problem}")

    if not _NAME.fullmatch(tool.name):
        raise refuse("a name has 1 to 64 letters, digits, `_` or `-`. Give one: @tool(name=…).")
    is_known = isinstance(tool.approval, Rule) or tool.approval in ("always", "never")
    if not (is_known or callable(tool.approval)):
        hint = did_you_mean(str(tool.approval), ("always", "never"))
        raise refuse(
            f"approval={tool.approval!r}.{hint} Use 'always', 'never', a function or ask(…)."
        )
    if is_async(tool.approval):
        raise refuse("approval is an async function. It has to decide at once, from the arguments.")
    if not 0 < tool.timeout_s < float("inf"):
        raise refuse(f"timeout_s={tool.timeout_s} must be a positive number of seconds.")
    if not MIN_OUTPUT_CHARS <= tool.max_output_chars <= MAX_OUTPUT_CHARS:
        wanted = f"{MIN_OUTPUT_CHARS} to {MAX_OUTPUT_CHARS}; the whole is kept beside it anyway"
        raise refuse(f"max_output_chars={tool.max_output_chars} is not possible. Use {wanted}.")
    if tool.concurrency is not None and tool.concurrency < 1:
        raise refuse(f"concurrency={tool.concurrency} lets no call run. Use 1 or more, or None.")
    _refuse_retries(tool, refuse)
    _refuse_fallback(tool, refuse)
    _refuse_isolation(tool, refuse)
    if isinstance(tool.effect, Keyed) and not tool.signature.context_names:
        raise refuse(
            "a keyed tool must pass its key on. Take `ctx: ToolContext` and send"
            " `ctx.idempotency_key` with the request."
        )
    if isinstance(tool.effect, Probed):
        names = frozenset(p.name for p in tool.signature.parameters)
        refuse_check(tool.effect.check, names, tool.name)


def _refuse_retries(tool: Tool[..., Any], refuse: Callable[[str], BadAgent]) -> None:
    if tool.retries < 0:
        raise refuse(f"retries={tool.retries} must be 0 or more.")
    if tool.retries and not isinstance(tool.effect, Read | Idempotent | Keyed):
        raise refuse(
            f"retries={tool.retries}, but a failed call of effect {tool.effect_class!r} may have"
            " happened. Retries need effect 'read', 'idempotent' or keyed(ttl_s=…)."
        )


def _refuse_fallback(tool: Tool[..., Any], refuse: Callable[[str], BadAgent]) -> None:
    if tool.fallback is None:
        return
    if not (tool.fallback == "halve" or callable(tool.fallback)):
        hint = did_you_mean(str(tool.fallback), ("halve",))
        raise refuse(f"fallback={tool.fallback!r}.{hint} Use 'halve', a function, or None.")
    if not isinstance(tool.effect, Read | Idempotent):
        # The key of a keyed call stands for its arguments: others under it would be a lie.
        raise refuse(
            f"fallback with effect {tool.effect_class!r}: other arguments may only be tried where"
            " the first try did no harm. It needs effect 'read' or 'idempotent'."
        )
    if not tool.retries:
        raise refuse("fallback without retries is never used. Set retries=1 or more.")


def _refuse_isolation(tool: Tool[..., Any], refuse: Callable[[str], BadAgent]) -> None:
    if tool.isolation not in ("none", "process"):
        hint = did_you_mean(str(tool.isolation), ("none", "process"))
        raise refuse(f"isolation={tool.isolation!r}.{hint} Use 'none' or 'process'.")
    if tool.isolation == "process":
        refuse_function(tool.function, tool.name)
        refuse_resources(tool.resources or Resources(), tool.name)
    elif tool.resources:
        raise refuse("resources without isolation='process' limit nothing.")


def _without_prose(schema: Any) -> Any:
    """The schema without titles and descriptions: a corrected docstring changes no call."""
    if not isinstance(schema, dict):
        return schema  # True and False are schemas too, in those of others
    kept: Schema = {}
    for key, value in schema.items():
        if key in ("title", "description") and isinstance(value, str):
            continue
        if key in ("properties", "$defs") and isinstance(value, dict):
            kept[key] = {name: _without_prose(inner) for name, inner in value.items()}
        elif key in ("anyOf", "prefixItems") and isinstance(value, list):
            kept[key] = [_without_prose(inner) for inner in value]
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            kept[key] = _without_prose(value)
        else:
            kept[key] = value
    return kept
