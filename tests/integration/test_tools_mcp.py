"""Tools of real MCP servers: one that is started over stdio, and one over HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, McpServer, ToolContext, mcp_servers, mcp_tools, tool
from fsm_agent.errors import BadAgent
from fsm_agent.run.content import Source
from fsm_agent.tools.arguments import Refused
from fsm_agent.tools.attachments import Attachment
from fsm_agent.tools.dispatch import Result, run_call
from tests.conftest import Bench, ask, finish, results, turns

SERVER = str(Path(__file__).parents[1] / "unit" / "mcp_server.py")
CONTEXT = ToolContext(run_id="r", call_id="c", idempotency_key="k")


def stdio(**fields: Any) -> McpServer:
    return McpServer(command=sys.executable, args=(SERVER,), **fields)


@pytest.fixture(scope="module")
def http_url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, SERVER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            break
        except OSError:
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return by_name(stdio())


async def call(made: Any, **arguments: Any) -> Result:
    return await run_call(made, made.bind(json.dumps(arguments)), CONTEXT)


def by_name(server: McpServer, **settings: Any) -> dict[str, Any]:
    return {made.name: made for made in mcp_tools(server, **settings)}


async def test_a_stdio_server_is_started_and_its_tools_work(plain: dict[str, Any]) -> None:
    tools = plain

    added, looked = await call(tools["add"], a=2), await call(tools["look"])

    assert {"add", "look", "put_it", "fail"} <= set(tools)
    assert tools["add"].description == "Add two numbers."
    assert (added.status, added.text, looked.text) == ("success", "3", "seen")
    assert isinstance(tools["add"].bind('{"a": "x"}'), Refused)
    assert isinstance(tools["add"].bind("{}"), Refused)


async def test_a_server_over_http_works_alike(http_url: str) -> None:
    tools = by_name(McpServer(url=http_url, prefix="far_"))

    assert (await call(tools["far_add"], a=2, b=3)).text == "5"
    failed = await call(tools["far_fail"])
    assert failed.status == "error"
    assert "fail" in failed.text


async def test_an_agent_uses_them_in_a_run_and_links_become_sources(bench: Bench) -> None:
    agent = Agent("a", tools=mcp_tools(stdio(only=("links", "add"))))
    runtime = await bench.runtime(
        model := turns(ask(("links", {}), ("add", {"a": 1}), ("add", {"a": "1"})), finish("ok"))
    )

    result = await runtime.run(agent, "Go.")

    assert [status for _, status, _ in results(model.requests[-1])] == [
        "success", "success", "error",
    ]  # fmt: skip
    assert result.sources == (Source("Page 1", "http://p/1"),)


async def test_pictures_and_bytes_of_a_server_are_files(plain: dict[str, Any]) -> None:
    found = await call(plain["pictures"])

    assert (found.status, found.text) == ("success", "")
    assert found.files == (
        Attachment("image.png", b"\x89PNG\r\n\x1a\n"),
        Attachment("image.png", problem="its bytes are no base64"),
        Attachment("file:///out/notes.bin", b"\0\1\2"),
    )


def test_a_tool_is_unsafe_unless_the_operator_says_otherwise(
    plain: dict[str, Any],
) -> None:
    trusted = by_name(stdio(trust_annotations=True, effects={"add": "idempotent"}))

    assert {made.effect_class for made in plain.values()} == {"unsafe"}
    assert trusted["look"].effect_class == "read"
    assert trusted["put_it"].effect_class == "idempotent"
    assert trusted["add"].effect_class == "idempotent"
    assert trusted["fail"].effect_class == "unsafe"


async def test_the_server_sees_only_allowed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("Openai_Api_Key", "secret")
    monkeypatch.setenv("MCP_ALLOWED", "yes")

    tools = by_name(stdio(pass_env=("MCP_ALLOWED",), env={"MCP_SET": "too"}))
    seen = json.loads((await call(tools["environment"])).text)

    assert (seen["MCP_ALLOWED"], seen["MCP_SET"]) == ("yes", "too")
    assert not {name for name in seen if name.lower() == "openai_api_key"}


async def test_a_server_that_dies_midway_leaves_the_effect_unknown_and_is_started_anew(
    plain: dict[str, Any],
) -> None:
    tools = plain

    died = await call(tools["die"])
    after = await call(tools["add"], a=2)

    assert (died.status, died.is_effect_unknown) == ("error", True)
    assert "server went away" in died.text
    assert (after.status, after.text) == ("success", "3")


async def test_a_slow_tool_times_out_and_the_connection_stays_usable(tmp_path: Path) -> None:
    tools = by_name(stdio(timeout_s=0.2))

    slow = await call(tools["slow"], file=str(tmp_path / "late"))
    after = await call(tools["add"], a=2)

    assert (slow.status, after.text) == ("timeout", "3")


async def test_calls_at_once_share_one_server(plain: dict[str, Any]) -> None:
    made = plain["add"]

    found = await asyncio.gather(*(call(made, a=n) for n in range(20)))

    assert [result.text for result in found] == [str(n + 1) for n in range(20)]


def test_one_connection_serves_several_event_loops(plain: dict[str, Any]) -> None:
    made = plain["add"]

    assert [asyncio.run(call(made, a=n)).text for n in (1, 2)] == ["2", "3"]


# -- who may name a command -----------------------------------------------------------------------


async def test_a_tool_call_cannot_name_a_server(tmp_path: Path) -> None:
    @tool
    def install(command: str, args: list[str]) -> str:
        mcp_tools(McpServer(command=command, args=tuple(args)))
        return "installed"

    @tool
    async def install_async(command: str) -> str:
        mcp_tools(McpServer(command=command))
        return "installed"

    made = tmp_path / "made"
    result = await call(install, command="/bin/sh", args=["-c", f"touch {made}"])
    other = await call(install_async, command="/bin/sh")

    assert (result.status, other.status) == ("error", "error")
    assert "never by a tool call" in result.text
    assert not made.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"command": "a", "url": "http://b"},
        {"url": "file:///etc/passwd"},
        {"command": "/no/such/program"},
        {"command": sys.executable, "pass_env": ("NOT_THERE_AT_ALL",)},
        {"command": sys.executable, "effects": {"add": "harmless"}},
        {"command": sys.executable, "args": ("-c", "print('no server')"), "connect_s": 20.0},
        {"command": sys.executable, "args": ("-c", "input(); input()"), "connect_s": 0.5},
        {"url": "http://127.0.0.1:9/mcp", "connect_s": 10.0},
        {"command": sys.executable, "args": (SERVER,), "only": ("nothing",)},
    ],
)  # fmt: skip
def test_a_description_that_cannot_work_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadAgent):
        mcp_tools(McpServer(**fields))


def test_servers_come_from_a_file_and_unknown_fields_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "servers.toml"
    file.write_text(
        '[servers.a]\ncommand = "python"\nargs = ["x.py"]\n'
        '[servers.b]\nurl = "http://h/mcp"\neffects = {look = "read"}\n'
    )

    servers = mcp_servers(file)

    assert servers["a"].args == ("x.py",)
    assert servers["b"].effects == {"look": "read"}
    file.write_text('[servers.a]\ncommand = "x"\nshell = true\n')
    with pytest.raises(BadAgent, match="shell"):
        mcp_servers(file)
    with pytest.raises(BadAgent):
        mcp_servers(tmp_path / "none.toml")


def test_the_package_of_mcp_is_imported_only_when_a_server_is_used() -> None:
    code = "import sys, fsm_agent, fsm_agent.tools, fsm_agent.runtime; print('mcp' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, env={**os.environ},
    )  # fmt: skip

    assert done.stdout.strip() == "False", done.stderr
