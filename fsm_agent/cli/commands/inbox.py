"""`inbox`: the web inbox, for people who never open a terminal."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import click

from checkpoints.address import parse, without_password
from fsm_agent.capabilities.agent import Agent
from fsm_agent.cli import asjson, failures, process, remembered
from fsm_agent.cli.failures import USAGE, CliError
from fsm_agent.cli.opening import looking
from fsm_agent.cli.person import operator
from fsm_agent.cli.process import Stopped, put, say
from fsm_agent.cli.settings import common, current
from fsm_agent.inbox.actors import Role
from fsm_agent.inbox.auth import Auth, LocalToken, Proxy, StaticUsers
from fsm_agent.inbox.keys import load_keys
from fsm_agent.inbox.settings import DEFAULT_PORT, Settings, check_exposure
from fsm_agent.inbox.users import Users, add_user


@click.command("inbox")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True)
@click.option("--base-url", default="", metavar="URL", help="How people reach it, behind a proxy.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Another name of it.")
@click.option("--users", type=click.Path(path_type=Path), metavar="FILE", help="Who may log in.")
@click.option("--add", "new_user", metavar="NAME", help="Put somebody into --users, then end.")
@click.option(
    "--role", type=click.Choice(["viewer", "approver", "operator"]), default="approver",
    help="Of --add, and of people behind a proxy.  [default: approver]",
)  # fmt: skip
@click.option("--tenant", metavar="NAME", help="Of --add: whose runs they see.  [default: all]")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Of --add: one of theirs.")
@click.option("--proxy-header", metavar="NAME", help="A proxy logs people in, and names them here.")
@click.option("--proxy-tenant-header", default="", metavar="NAME", help="…and their tenant here.")
@click.option("--proxy-groups-header", default="", metavar="NAME", help="…and their groups.")
@click.option("--operator", "operators", multiple=True, metavar="NAME", help="…who may do all.")
@click.option("--agent", "paths", multiple=True, metavar="PATH:NAME", help="To check edits, show"
              " policies and start runs.  [default: those used with this store here]")  # fmt: skip
@click.option("--reports", type=click.Path(path_type=Path), help="A folder of crash reports.")
@common
def inbox_command(
    host: str, port: int, base_url: str, hosts: tuple[str, ...], users: Path | None,
    new_user: str | None, role: Role, tenant: str | None, groups: tuple[str, ...],
    proxy_header: str | None, proxy_tenant_header: str, proxy_groups_header: str,
    operators: tuple[str, ...], paths: tuple[str, ...], reports: Path | None,
) -> int:  # fmt: skip
    """Serve the web inbox: what waits for people, runs live, workers, policies, audit.

    On this machine only, unless people log in: with --users FILE, or behind a proxy that names
    them (--proxy-header, and its secret in FSM_AGENT_PROXY_SECRET). It works on no run: that is
    what `fsm-agent worker` is for. Slack's buttons need FSM_AGENT_SLACK_SECRET.
    """
    if new_user is not None:
        return _add(users, new_user, role, tenant, groups)
    headers = (proxy_tenant_header, proxy_groups_header)
    auth, token = _auth(users, proxy_header, headers, role, operators)
    check_exposure(host, has_auth=auth.mode != "local")
    settings = Settings(host=host, port=port, base_url=base_url, allowed_hosts=hosts)
    found = _agents(paths)
    try:
        return process.run(lambda: _serve(settings, auth, token, found, reports))
    except Stopped:
        say("inbox stopped.")
        return failures.DONE


def _add(
    users: Path | None, name: str, role: Role, tenant: str | None, groups: Sequence[str]
) -> int:
    if users is None:
        raise click.UsageError("--add needs --users FILE.")
    token = add_user(users, name, role=role, tenant=tenant, groups=groups)
    if current().is_json:
        put(asjson.line({"event": "user", "name": name, "role": role, "token": token}))
    else:
        put(token)
        say(f"This is {name}'s token. It is shown once; {users} holds only its hash.")
    return failures.DONE


def _auth(
    users: Path | None,
    header: str | None,
    more: tuple[str, str],
    role: Role,
    operators: Sequence[str],
) -> tuple[Auth, str]:
    """How people log in, and the token to print where it is this one person. `more` are the
    headers of a person's tenant and groups."""
    if users and header:
        raise click.UsageError("give one of --users and --proxy-header.")
    if users:
        return StaticUsers(Users(users)), ""
    if header:
        secret = os.environ.get("FSM_AGENT_PROXY_SECRET", "")
        if len(secret) < 16:
            raise CliError(
                "--proxy-header needs FSM_AGENT_PROXY_SECRET, 16 characters or more, which the"
                " proxy sends as X-Proxy-Secret.",
                USAGE,
            )
        return Proxy(header, secret, *more, role, frozenset(operators)), ""
    token = secrets.token_urlsafe(32)
    return LocalToken(operator(), token), token


def _agents(paths: Sequence[str]) -> dict[str, tuple[str, Agent]]:
    """Paths and agents by name. One that was only remembered, and cannot be loaded, is left out."""
    found: dict[str, tuple[str, Agent]] = {}
    for path in paths or remembered.recall_all(current().store):
        try:
            agent = remembered.load(path)
        except Exception as error:
            if paths:
                raise
            say(f"note: {path} is left out: {error}")
            continue
        found[agent.name] = path, agent
    return found


async def _serve(
    settings: Settings,
    auth: Auth,
    token: str,
    agents: dict[str, tuple[str, Agent]],
    reports: Path | None,
) -> int:
    try:
        from fsm_agent.inbox.desk import Desk
        from fsm_agent.inbox.server import feeds_of, serve
    except ModuleNotFoundError as error:
        words = f"the inbox needs {error.name}. Install it: pip install 'fsm-agent[inbox]'."
        raise CliError(words, USAGE) from error

    store = current().store
    address = parse(store)
    async with looking() as runtime:
        desk = Desk(
            runtime=runtime,
            auth=auth,
            keys=load_keys(without_password(store), address.folder),
            feeds=feeds_of(runtime, settings),
            settings=settings,
            agents={name: agent for name, (_, agent) in agents.items()},
            paths={name: path for name, (path, _) in agents.items()},
            address=address,
            slack_secret=os.environ.get("FSM_AGENT_SLACK_SECRET", ""),
            reports=reports,
        )
        await serve(desk, on_ready=lambda port: _ready(settings, port, auth, token))
    return failures.DONE


def _ready(settings: Settings, port: int, auth: Auth, token: str) -> None:
    url = settings.url if settings.port or settings.base_url else f"http://{settings.host}:{port}"
    # After the '#', which no browser sends: the token reaches neither a log nor another site.
    address = f"{url}/inbox#{token}" if token else f"{url}/inbox"
    if current().is_json:
        put(asjson.line({"event": "inbox", "url": address, "auth": auth.mode}))
        return
    put(address)
    people = {"local": "you, with this address", "proxy": "whom the proxy names"}
    say(f"inbox for {people.get(auth.mode, 'the people of the file')}; Ctrl-C ends it.")
