"""The machine as a picture: Mermaid text without extras, SVG or PNG where Graphviz is present."""

from __future__ import annotations

from collections.abc import Iterable

from transitions.extensions import GraphMachine

from .state import FINAL, State, machine_transitions


def mermaid(path: Iterable[tuple[State, State]] = (), current: State | None = None) -> str:
    """The machine as a Mermaid state diagram, with the states of a run's `path` lit."""
    machine = _graph_machine()
    # The library's text opens with a title between '---' lines that is not a YAML mapping,
    # and closes no state; both would make renderers refuse or mislead.
    body = machine.get_graph().source.split("---\n")[-1].strip().splitlines()
    lines = [line for line in body if not _is_style(line)]
    lines += [f"  {state} --> [*]" for state in State if state in FINAL]
    lines += ["", "  classDef visited fill:#dbeafe,stroke:#1d4ed8,color:#111"]
    lines += ["  classDef current fill:#1d4ed8,stroke:#1d4ed8,color:#fff"]
    visited = {state for arrow in path for state in arrow} - {current}
    lines += [f"  class {state} visited" for state in State if state in visited]
    lines += [f"  class {current} current"] if current else []
    return "\n".join(lines) + "\n"


def _is_style(line: str) -> bool:
    return line.strip().startswith(("classDef", "class ", "Class "))


def dot(path: Iterable[tuple[State, State]] = (), current: State | None = None) -> str:
    """The machine in Graphviz' language, with a run's path lit."""
    machine = _graph_machine()
    taken = set(path)
    lines = [
        "digraph run {",
        '  rankdir=LR; node [shape=box, style="rounded,filled", fillcolor=white];',
    ]
    for state in State:
        fill = "#1d4ed8" if state is current else "#dbeafe" if _touches(taken, state) else "white"
        font = "white" if state is current else "black"
        ring = ", peripheries=2" if state in FINAL else ""
        lines.append(f'  {state} [fillcolor="{fill}", fontcolor={font}{ring}];')
    for name, event in machine.events.items():
        for source, arrows in event.transitions.items():
            for arrow in arrows:
                lit = (State(source), State(str(arrow.dest))) in taken
                style = ', color="#1d4ed8", penwidth=2' if lit else ""
                lines.append(f'  {source} -> {arrow.dest} [label="{name}"{style}];')
    return "\n".join([*lines, "}"]) + "\n"


def _touches(path: set[tuple[State, State]], state: State) -> bool:
    return any(state in arrow for arrow in path)


class _Sheet:
    """What the diagram machine draws for: the library keeps a drawing per model."""


def _graph_machine() -> GraphMachine:
    return GraphMachine(
        model=_Sheet(),
        states=State,
        transitions=machine_transitions(),
        initial=State.OBSERVE,
        auto_transitions=False,
        send_event=True,
        graph_engine="mermaid",
        show_conditions=True,
        title="run",
    )
