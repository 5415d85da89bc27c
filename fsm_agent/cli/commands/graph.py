"""`graph`: the state machine, and a run's way through it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import click

from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.failures import FAILED, USAGE, CliError
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import common, current
from fsm_agent.run.event import EntryEvent
from fsm_agent.run.state import State

DRAWING_S = 30.0


@click.command("graph")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid", "dot", "svg", "png"]),
    help="png needs Graphviz.  [default: by the name of FILE, else mermaid]",
)
@click.option("--svg", "is_svg", is_flag=True, help="The same as --format svg.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this file.")
@common
def graph_command(run_id: str | None, form: str | None, is_svg: bool, output: Path | None) -> int:
    """Draw the state machine; with RUN, its way is lit and its present state filled."""
    form = form or ("svg" if is_svg else _form_of(output) if output else "mermaid")
    events = process.run(lambda: _history(run_id)) if run_id else ()
    drawing = _drawn(events, form)
    if not current().is_json:
        _emit(drawing, output)
        return failures.DONE
    if output is not None:
        output.write_bytes(drawing)
    put(asjson.line(_told(run_id, events, form, drawing, output)))
    return failures.DONE


def _told(
    run_id: str | None, events: Sequence[EntryEvent], form: str, drawing: bytes, output: Path | None
) -> dict[str, object]:
    """The drawing as JSON. `text` is null for a PNG, which is none."""
    return {
        "event": "graph",
        "run_id": run_id,
        "format": form,
        "text": None if form == "png" else drawing.decode(),
        "path": [event.state.value for event in events],
        "current": events[-1].state.value if events else None,
        "file": str(output) if output else None,
    }


def _form_of(output: Path) -> str:
    return {".dot": "dot", ".gv": "dot", ".svg": "svg", ".png": "png"}.get(
        output.suffix.lower(), "mermaid"
    )


async def _history(run_id: str) -> Sequence[EntryEvent]:
    async with looking() as runtime:
        return await runtime.history(run_id)


def _drawn(events: Sequence[EntryEvent], form: str) -> bytes:
    from fsm_agent.run import graph, picture

    states = [event.state for event in events]
    path: list[tuple[State, State]] = list(pairwise(states))
    present = states[-1] if states else None
    if form == "mermaid":
        return graph.mermaid(path, present).encode()
    if form == "svg":
        title = f"The way of run {events[0].run_id}" if events else "The state machine"
        return picture.svg(path, present, title=title).encode()
    dot = graph.dot(path, present).encode()
    return dot if form == "dot" else _rendered_png(dot)


def _rendered_png(dot: bytes) -> bytes:
    program = shutil.which("dot")
    if program is None:
        raise CliError(
            "png needs Graphviz, which is not installed. Install it with 'apt-get install"
            " graphviz' or 'brew install graphviz', or use --svg, which needs nothing."
        )
    try:
        done = subprocess.run(
            [program, "-Tpng"], input=dot, capture_output=True, timeout=DRAWING_S, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise CliError(f"Graphviz could not draw it: {error}.", FAILED) from error
    return done.stdout


def _emit(drawing: bytes, output: Path | None) -> None:
    if output is not None:
        output.write_bytes(drawing)
        say(f"written to {output}")
        return
    if drawing.startswith(b"\x89PNG"):
        if sys.stdout.isatty():
            raise CliError("a PNG is no text for a terminal. Write it to a file: -o run.png", USAGE)
        sys.stdout.flush()
        sys.stdout.buffer.write(drawing)
        return
    put(drawing.decode().rstrip("\n"))
