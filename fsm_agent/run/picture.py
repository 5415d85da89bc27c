"""The machine as an SVG, drawn from the table: no Graphviz, no browser, a run's way lit."""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot
from typing import NamedTuple

from .state import FINAL, TABLE, State

WIDTH, HEIGHT = 760, 330
_W, _H = 108, 40  # of a state's box
_PLACES = {
    State.OBSERVE: (70, 150),
    State.THINK: (262, 150),
    State.ACT: (476, 150),
    State.REFLECT: (690, 150),
    State.DONE: (262, 300),
    State.ERROR: (476, 300),
}
# How far an arrow's middle is pushed off the straight line, to its left: those that would lie on
# another, or run through a box.
_BENDS = {
    (State.THINK, State.REFLECT): 78,
    (State.REFLECT, State.OBSERVE): -118,
    (State.OBSERVE, State.ERROR): -30,
}
# Where along an arrow its words stand, if not in the middle.
_WORDS_AT = {
    (State.THINK, State.ERROR): 0.3,
    (State.ACT, State.DONE): 0.27,
    (State.REFLECT, State.DONE): 0.22,
    (State.REFLECT, State.ERROR): 0.62,
}
_INK, _FAINT, _LIT, _TINT = "#3d4350", "#9aa1ad", "#1d4ed8", "#dbe7ff"

_STYLE = """<style>
.machine text{font:600 13px system-ui,sans-serif}.machine .why{font:11px system-ui,sans-serif}
@media(prefers-color-scheme:dark){.machine .sheet{fill:#15171c}.machine .state rect{fill:#22252d}
.machine .name,.machine .why{fill:#e8eaef}.machine .why{stroke:#15171c}
.machine .visited rect{fill:#24345c}
.machine .current rect{fill:#6d9bff}.machine .current .name{fill:#0c1220}
.machine .lit path{stroke:#7ea6ff}}
</style>"""


class Picture(NamedTuple):
    """A drawing that notebooks show."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg


class _Edge(NamedTuple):
    source: State
    dest: State
    triggers: tuple[str, ...]


def svg(
    path: Iterable[tuple[State, State]] = (),
    current: State | None = None,
    *,
    title: str = "The state machine",
    is_standalone: bool = True,
) -> str:
    """The machine, with the arrows of `path` lit and the `current` state filled.

    Standalone it brings its own style, light and dark; otherwise the page around it does, by the
    classes `state`, `visited`, `current`, `arrow` and `lit`.
    """
    taken = set(path)
    visited = {state for arrow in taken for state in arrow}
    where = f" It stands in {current}." if current else ""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="machine" role="img"'
            f' viewBox="0 0 {WIDTH} {HEIGHT}" aria-label="{_text(title)}.{where}">',
            f"<title>{_text(title)}</title>",
            *([_STYLE, f'<rect class="sheet" width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
              if is_standalone else []),
            *_markers(),
            *(_arrow(edge, is_lit=(edge.source, edge.dest) in taken) for edge in _edges()),
            *(_box(state, state in visited, state is current) for state in State),
            "</svg>",
        ]
    )  # fmt: skip


def _edges() -> list[_Edge]:
    """The arrows of the table, those between the same two states as one."""
    found: dict[tuple[State, State], list[str]] = {}
    for arrow in TABLE:
        for source in arrow.sources:
            found.setdefault((source, arrow.dest), []).append(arrow.trigger.value)
    return [_Edge(*ends, tuple(triggers)) for ends, triggers in found.items()]


def _markers() -> list[str]:
    heads = (("tip", _FAINT), ("tip-lit", _LIT))
    shape = "M0 0L8 4L0 8z"
    return [
        "<defs>",
        *(f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9"'
          f' markerHeight="9" markerUnits="userSpaceOnUse" orient="auto">'
          f'<path d="{shape}" fill="{ink}"/></marker>'
          for name, ink in heads),
        "</defs>",
    ]  # fmt: skip


def _box(state: State, is_visited: bool, is_current: bool) -> str:
    x, y = _PLACES[state]
    fill = _LIT if is_current else _TINT if is_visited else "#fff"
    ink = "#fff" if is_current else _INK
    names = ["state", *(["visited"] if is_visited else []), *(["current"] if is_current else [])]
    names += ["final"] if state in FINAL else []
    edge = _LIT if is_visited or is_current else _FAINT
    width = 2.5 if state in FINAL else 1.5
    return (
        f'<g class="{" ".join(names)}"><rect x="{x - _W / 2:g}" y="{y - _H / 2:g}" width="{_W}"'
        f' height="{_H}" rx="9" fill="{fill}" stroke="{edge}" stroke-width="{width}"/>'
        f'<text class="name" x="{x}" y="{y + 4.5:g}" text-anchor="middle" font-size="13"'
        f' font-weight="600" fill="{ink}">{state}</text></g>'
    )


def _arrow(edge: _Edge, *, is_lit: bool) -> str:
    ink, width = (_LIT, 2.25) if is_lit else (_FAINT, 1.25)
    drawn, label = _loop(edge.source) if edge.source is edge.dest else _curve(edge)
    triggers = [t for t in edge.triggers if t != "cancelled"]
    # Every state can be cancelled: said once, by a thin line, and not with four words.
    dash = "" if triggers or is_lit else ' stroke-dasharray="3 4"'
    words = (
        f'<text class="why" x="{label[0]:.0f}" y="{label[1]:.0f}" text-anchor="middle"'
        f' paint-order="stroke" stroke="#fff" stroke-width="4"'
        f' font-size="11" fill="{_INK}">{", ".join(triggers)}</text>'
        if triggers
        else ""
    )
    return (
        f'<g class="arrow{" lit" if is_lit else ""}" data-from="{edge.source}"'
        f' data-to="{edge.dest}"><title>{edge.source} to {edge.dest}: {", ".join(edge.triggers)}'
        f'</title><path d="{drawn}" fill="none" stroke="{ink}" stroke-width="{width}"{dash}'
        f' marker-end="url(#tip{"-lit" if is_lit else ""})"/>{words}</g>'
    )


def _loop(state: State) -> tuple[str, tuple[float, float]]:
    x, y = _PLACES[state]
    top = y - _H / 2
    return f"M{x - 16} {top:g}c-14 -34 46 -34 32 -2", (x, top - 30)


def _curve(edge: _Edge) -> tuple[str, tuple[float, float]]:
    (x1, y1), (x2, y2) = _PLACES[edge.source], _PLACES[edge.dest]
    length = hypot(x2 - x1, y2 - y1)
    bend = _BENDS.get((edge.source, edge.dest), 0)
    nx, ny = (y2 - y1) / length, -(x2 - x1) / length  # to the left of the way
    mx, my = (x1 + x2) / 2 + nx * bend * 2, (y1 + y2) / 2 + ny * bend * 2
    sx, sy = _border(x1, y1, mx, my, 0)
    tx, ty = _border(x2, y2, mx, my, 3)
    at = _WORDS_AT.get((edge.source, edge.dest), 0.5)
    lx = (1 - at) ** 2 * sx + 2 * at * (1 - at) * mx + at**2 * tx
    ly = (1 - at) ** 2 * sy + 2 * at * (1 - at) * my + at**2 * ty
    return f"M{sx:.1f} {sy:.1f}Q{mx:.1f} {my:.1f} {tx:.1f} {ty:.1f}", (lx, ly - 6)


def _border(x: float, y: float, to_x: float, to_y: float, gap: float) -> tuple[float, float]:
    """Where the line from a box's middle to a point leaves the box."""
    dx, dy = to_x - x, to_y - y
    scale = min(
        (_W / 2 + gap) / abs(dx) if dx else float("inf"),
        (_H / 2 + gap) / abs(dy) if dy else float("inf"),
    )
    return x + dx * scale, y + dy * scale


def _text(text: str) -> str:
    for char, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(char, name)
    return text
