"""`link`: a signed link with which one person may decide one request, once."""

from __future__ import annotations

import time

import click

from checkpoints.address import parse, without_password
from fsm_agent.cli import asjson, failures, process
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import common, current
from fsm_agent.cli.terms import hash_option
from fsm_agent.inbox.keys import load_keys
from fsm_agent.inbox.links import DEFAULT_S, make_link
from fsm_agent.inbox.settings import Settings
from fsm_agent.waiting import Request

_UNITS = {"m": 60, "h": 3600, "d": 86_400}


class _Span(click.ParamType):  # type: ignore[type-arg]
    """'90m', '24h' or '7d', as seconds."""

    name = "span"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        if not (value[:-1].isdigit() and value[-1:] in _UNITS and len(value) < 8):
            self.fail(f"{value!r} is no time. Give minutes, hours or days: 90m, 24h.", param, ctx)
        return int(value[:-1]) * _UNITS[value[-1]]


@click.command("link")
@click.argument("run_id", metavar="RUN")
@click.argument("ask_id", metavar="ASK")
@click.option("--for", "audience", required=True, metavar="NAME", help="Whose decision it will be.")
@click.option("--verbs", default="", metavar="A,B", help="For these only, such as approve,reject.")
@click.option(
    "--expires", "expires_s", type=_Span(), default=DEFAULT_S, metavar="TIME",
    help="90m, 24h, 7d; never beyond the request's own deadline.  [default: 24h]",
)  # fmt: skip
@click.option(
    "--base-url", default="", metavar="URL", help="How people reach the inbox."
    "  [default: http://127.0.0.1:8765]",
)  # fmt: skip
@hash_option
@common
def link_command(
    run_id: str,
    ask_id: str,
    audience: str,
    verbs: str,
    expires_s: int,
    base_url: str,
    digest: str | None,
) -> int:
    """Print a link that lets one person decide one request, once, without a login.

    It opens a page of the inbox; only the page's button decides, so a scanner that follows the
    link does nothing. It counts for exactly the arguments that are asked about now.
    """
    store = current().store
    request = process.run(lambda: _request(run_id, ask_id, digest))
    keys = load_keys(without_password(store), parse(store).folder)
    token = make_link(
        keys,
        request,
        audience=audience,
        now_s=time.time(),
        expires_s=expires_s,
        verbs=[verb.strip() for verb in verbs.split(",") if verb.strip()],
    )
    url = f"{Settings(base_url=base_url).url}/a/{token}"
    if current().is_json:
        put(asjson.line({"event": "link", "run_id": run_id, "ask_id": ask_id, "url": url}))
    else:
        put(url)
        say(f"Whoever has this link decides as {audience}. Send it to nobody else.")
    return failures.DONE


async def _request(run_id: str, ask_id: str, digest: str | None) -> Request:
    async with looking() as runtime:
        return await runtime.request(run_id, ask_id, digest=digest)
