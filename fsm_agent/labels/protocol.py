"""Which labels a reply may begin with, and what each of them means for the loop."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from fsm_agent.errors import BadProtocol

MAX_LABEL_CHARS = 40  # a label with its decoration fits in the parser's window of 64
_LABEL = re.compile(r"[^\W_][^\s`｀]*")


class LabelProtocol(msgspec.Struct, frozen=True, kw_only=True):
    """The vocabulary of a capability, as data.

    `terminal` ends the loop and `intermediate` goes on; `final` says that the body is for the
    user, whichever of the two it is. `tool_label` stands for a turn with tool calls and is a class
    of its own. The sets may be given as any iterable of labels.

    Raises BadProtocol where this contradicts itself.
    """

    allowed: tuple[str, ...]
    terminal: frozenset[str] = frozenset()
    intermediate: frozenset[str] = frozenset()
    final: frozenset[str] = frozenset()
    tool_label: str | None = None
    accept_bare_calls: bool = False  # tool calls without a label count as the tool label
    meanings: dict[str, str] = {}  # what the model is told of a label, where its class says less

    def __post_init__(self) -> None:
        for name in ("terminal", "intermediate", "final"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise BadProtocol(f"{name} is the string {value!r}. Give a set of labels.")
            msgspec.structs.force_setattr(self, name, frozenset(value))
        if isinstance(self.allowed, str):
            raise BadProtocol(f"allowed is the string {self.allowed!r}. Give a tuple of labels.")
        msgspec.structs.force_setattr(self, "allowed", tuple(self.allowed))
        _check_words(self.allowed)
        _check_classes(self)

    def only(self, labels: Iterable[str]) -> LabelProtocol:
        """The same protocol with none but `labels`, in the order of `allowed`."""
        kept = frozenset(labels)
        unknown = kept.difference(self.allowed)
        if unknown:
            raise BadProtocol(
                f"{_names(unknown)} not among the allowed labels {_names(self.allowed)}."
            )
        return msgspec.structs.replace(
            self,
            allowed=tuple(label for label in self.allowed if label in kept),
            terminal=self.terminal & kept,
            intermediate=self.intermediate & kept,
            final=self.final & kept,
            tool_label=self.tool_label if self.tool_label in kept else None,
            meanings={label: text for label, text in self.meanings.items() if label in kept},
        )

    def without_tools(self) -> LabelProtocol:
        """The protocol for a step that offers no tools: the tool label is gone from it."""
        if self.tool_label is None:
            return self
        return self.only(label for label in self.allowed if label != self.tool_label)

    def describe(self) -> str:
        """The part of the system prompt that teaches this protocol to the model."""
        rules = "\n".join(f"- ``{label}``: {self._meaning(label)}" for label in self.allowed)
        return (
            "Begin every reply with exactly one label, alone on the first line, in double "
            "backticks. The text follows on the next line.\n"
            f"Allowed labels:\n{rules}\n"
            "Use one label a reply, never two. For example:\n"
            f"``{self.allowed[0]}``\n<your text>"
        )

    def _meaning(self, label: str) -> str:
        if label in self.meanings:
            return self.meanings[label]
        if label == self.tool_label:
            return "you call one or more tools in this reply; a call needs this label."
        reader = (
            "the text is shown to the user"
            if label in self.final
            else "the user does not see the text"
        )
        after = "this ends the task" if label in self.terminal else "you go on in the next turn"
        return f"{reader}, and {after}."


def _check_words(labels: tuple[str, ...]) -> None:
    if not labels:
        raise BadProtocol("a protocol needs at least one allowed label.")
    for label in labels:
        if len(label) > MAX_LABEL_CHARS:
            raise BadProtocol(f"the label {label!r} has more than {MAX_LABEL_CHARS} characters.")
        if not _LABEL.fullmatch(label):
            raise BadProtocol(
                f"{label!r} cannot be a label. Begin with a letter or digit, and use no white "
                "space and no backticks."
            )
    if len({label.casefold() for label in labels}) < len(labels):
        raise BadProtocol(
            f"two of the labels {_names(labels)} are the same or differ only in case."
        )


def _check_classes(protocol: LabelProtocol) -> None:
    classes = {
        "terminal": protocol.terminal,
        "intermediate": protocol.intermediate,
        "final": protocol.final,
        "tool_label": frozenset({protocol.tool_label} if protocol.tool_label is not None else ()),
        "meanings": frozenset(protocol.meanings),
    }
    for name, members in classes.items():
        strange = members.difference(protocol.allowed)
        if strange:
            raise BadProtocol(f"{name} names {_names(strange)}, which `allowed` does not.")
    both = protocol.terminal & (protocol.intermediate | classes["tool_label"])
    if both:
        raise BadProtocol(f"{_names(both)} would end the loop and go on at once.")
    known = protocol.terminal | protocol.intermediate | classes["tool_label"]
    classless = [label for label in protocol.allowed if label not in known]
    if classless:
        raise BadProtocol(
            f"{_names(classless)} in no class. Make it terminal, intermediate or the tool label."
        )


def _names(labels: Iterable[str]) -> str:
    return ", ".join(sorted(labels))


DEFAULT = LabelProtocol(
    allowed=("THINK", "TOOL", "FINISH"),
    terminal=frozenset({"FINISH"}),
    intermediate=frozenset({"THINK"}),
    final=frozenset({"FINISH"}),
    tool_label="TOOL",
)
