"""HTML: templates that escape everything, and the filters they use."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from math import log2
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from fsm_agent.inbox.actors import Actor
from fsm_agent.inbox.arguments import editable, one_line_arguments, parts_of
from fsm_agent.inbox.desk import desk_of
from fsm_agent.telling.clean import piece
from fsm_agent.telling.words import RULED_WORDS, seconds

HOME = Path(__file__).parent
_BLANK = Markup("")


@cache
def environment() -> Environment:
    """The templates. Whatever a name of a person, a model or a tool holds is text."""
    found = Environment(
        loader=FileSystemLoader(HOME / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_controls,
    )
    found.filters |= {
        "marked": parts_of,
        "one_line_arguments": one_line_arguments,
        "editable": editable,
        "span": seconds,
        "when": _when,
        "log2": log2,
        "given": lambda pairs: {name: value for name, value in pairs.items() if value},
        "count": lambda number: f"{number:,}",
        "ruled": lambda verb: RULED_WORDS.get(verb, verb),
        "drawing": Markup,  # of our own picture of the machine, which escapes its title
    }
    found.globals["asset"] = asset
    found.globals["time"] = _time
    found.globals["clock"] = _clock
    return found


def page(
    request: Request, template: str, actor: Actor | None, *, status_code: int = 200, **values: Any
) -> Response:
    """A page for a person."""
    desk = desk_of(request)
    path = request.url.path
    html = (
        environment()
        .get_template(template)
        .render(actor=actor, path=path, desk=desk, now=desk.clock.wall_ms(), **values)
    )
    return HTMLResponse(html, status_code)


def _without_controls(value: Any) -> Any:
    """What no template marked on its own: titles, attributes, names."""
    return piece(value) if type(value) is str else value


@cache
def asset(name: str) -> str:
    """The address of a static file, which changes with what is in it."""
    return f"/static/{name}?{sha256((HOME / 'static' / name).read_bytes()).hexdigest()[:12]}"


@pass_context
def _time(context: Context, at_ms: int) -> Markup:
    """A moment, which the script of the page turns into 'five minutes ago'."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    iso = at.isoformat(timespec="milliseconds")
    return Markup('<time datetime="{}" data-ms="{}">{}</time>').format(iso, at_ms, _when(at_ms))


def _clock(at_ms: int) -> Markup:
    """A moment that stays one: the script of the page puts it into the person's own time."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    html = '<time datetime="{}" data-clock="{}">{} UTC</time>'
    return Markup(html).format(at.isoformat(timespec="seconds"), at_ms, f"{at:%H:%M}")


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
