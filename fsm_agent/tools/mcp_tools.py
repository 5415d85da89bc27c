"""Tools of Model Context Protocol servers, which an operator names: by command or by address."""

from __future__ import annotations

import asyncio
import atexit
import base64
import os
import re
import shutil
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fsm_agent.errors import BadAgent
from fsm_agent.run.content import Source, clean_text

from .attachments import Attachable, Attachment, with_files
from .context import is_in_call
from .effects import Effect, Idempotent, Read, Unsafe, effect_named
from .foreign import foreign_signature
from .outcomes import with_sources
from .registry import DEFAULT_OUTPUT_CHARS, Tool
from .results import Died, Reported
from .rule import Approval

MAX_TOOLS = 500
MAX_ABOUT_CHARS = 2000  # of a description: it is the server's words, and the model reads them
MAX_SCHEMA_CHARS = 50_000
CLOSE_S = 2.0

T = TypeVar("T")


class McpServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server as the operator describes it: with a `command` (stdio) or a `url` (streamable HTTP).

    The command sees PATH, HOME and the like, `env`, and the variables that `pass_env` names.
    `header_env` gives for each HTTP header the variable that holds it. `only` narrows the tools.
    `effects` says by tool what the operator knows of it; all others are `unsafe`, unless
    `trust_annotations` lets the server's own word count.
    """

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()
    cwd: str | None = None
    url: str = ""
    header_env: dict[str, str] = {}
    only: tuple[str, ...] = ()
    prefix: str = ""
    effects: dict[str, str] = {}
    trust_annotations: bool = False
    timeout_s: float = 60.0
    connect_s: float = 30.0


class _File(msgspec.Struct, frozen=True):
    servers: dict[str, McpServer]


def mcp_servers(path: str | Path) -> dict[str, McpServer]:
    """The servers of a TOML file, by name: a table `[servers.NAME]` with the fields of McpServer.

    Raises BadAgent, naming the file and the field.
    """
    try:
        return msgspec.toml.decode(Path(path).expanduser().read_bytes(), type=_File).servers
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadAgent(f"{path}: no list of MCP servers: {error}") from error


def mcp_tools(
    server: McpServer,
    *,
    approval: Approval = "never",
    max_output_chars: int = DEFAULT_OUTPUT_CHARS,
) -> tuple[Tool[..., Any], ...]:
    """The tools that `server` offers now, to be given to an agent.

    Connects and waits up to `connect_s`; the connection stays, and is made anew where it broke.
    Call it where agents are declared: it blocks, and inside a tool call it is refused, so that
    nothing that a model or user wrote can name a command.

    Raises BadAgent for a server that cannot be reached, or a description that cannot work.
    """
    if is_in_call():
        raise BadAgent("mcp_tools: servers are named by the operator's code, never by a tool call.")
    _refuse(server)
    link = _Link(server)
    offered = link.blocking(link.list_tools(), server.connect_s)
    if unknown := sorted({*server.only, *server.effects} - {each.name for each in offered}):
        raise BadAgent(f"{_address(server)} offers no tool named {', '.join(unknown)}.")
    return tuple(
        _tool(link, each, approval, max_output_chars)
        for each in offered
        if not server.only or each.name in server.only
    )


def _refuse(server: McpServer) -> None:
    if bool(server.command) == bool(server.url):
        raise BadAgent("an MCP server needs either a command or a url.")
    if server.url and not server.url.startswith(("http://", "https://")):
        raise BadAgent(f"{server.url!r} is no http or https address of an MCP server.")
    if server.command and shutil.which(server.command) is None:
        raise BadAgent(f"there is no program {server.command!r} to start an MCP server with.")
    missing = [n for n in (*server.pass_env, *server.header_env.values()) if n not in os.environ]
    if missing:
        raise BadAgent(f"{_address(server)} needs {', '.join(missing)} in the environment.")
    for effect in server.effects.values():
        effect_named(effect)


def _address(server: McpServer) -> str:
    return server.url or " ".join((server.command, *server.args))[:200]


def _tool(link: _Link, offered: Any, approval: Approval, max_output_chars: int) -> Tool[..., Any]:
    server = link.server
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", server.prefix + offered.name)[:64]
    if len(str(offered.input_schema)) > MAX_SCHEMA_CHARS:
        raise BadAgent(f"tool {name!r}: its schema is longer than {MAX_SCHEMA_CHARS} characters.")
    about = clean_text(str(offered.description or offered.title or ""))[:MAX_ABOUT_CHARS]

    async def call(**arguments: Any) -> Any:
        return await link.call(offered.name, arguments)

    return Tool(
        function=call,
        name=name,
        effect=_effect(server, offered),
        approval=approval,
        timeout_s=server.timeout_s,
        max_output_chars=max_output_chars,
        signature=foreign_signature(name, about, offered.input_schema),
    )


def _effect(server: McpServer, offered: Any) -> Effect:
    if offered.name in server.effects:
        return effect_named(server.effects[offered.name])
    hints = offered.annotations
    if not server.trust_annotations or hints is None:
        return Unsafe()  # a hint is the server's own word, which anybody could give
    if hints.read_only_hint is True:
        return Read()
    return Idempotent() if hints.idempotent_hint is True else Unsafe()


class _Link:
    """A connection in the thread of all connections, made when it is needed."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._owner: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._closing: asyncio.Event | None = None

    def blocking(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        waiting = asyncio.run_coroutine_threadsafe(work, _loop())
        try:
            return waiting.result(timeout_s)
        except TimeoutError as error:
            waiting.cancel()
            raise BadAgent(f"{_address(self.server)} gave no answer in {timeout_s:g} s.") from error
        except Exception as error:
            why = f"{type(_one(error)).__name__}: {_one(error)}".split("\n", 1)[0]
            raise BadAgent(f"{_address(self.server)} is no MCP server: {why}") from error

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool, from any loop. Raises Reported, or Died if the server went away midway."""
        work = asyncio.run_coroutine_threadsafe(self._call(name, arguments), _loop())
        return await asyncio.wrap_future(work)

    async def list_tools(self) -> list[Any]:
        client = await self._client()
        found: list[Any] = []
        cursor = None
        while len(found) < MAX_TOOLS:
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        return found[:MAX_TOOLS]

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        try:
            client = await self._client()
        except Exception as error:
            why = f"{_address(self.server)} cannot be reached: {_one(error)}"
            raise Reported(why, may_pass=True) from error
        try:
            result = await client.call_tool(name, arguments)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise self._lost(error) from error
            raise Reported(f"{error.message}", may_pass=False) from error
        except asyncio.CancelledError:
            raise
        except (
            Exception
        ) as error:  # what lies below: a broken pipe, an HTTP failure, a closed stream
            raise self._lost(error) from error
        return _value(result)

    def _lost(self, error: Exception) -> Died:
        if self._closing:
            self._closing.set()
        self._owner = None
        return Died(f"its server went away ({type(_one(error)).__name__})")

    async def _client(self) -> Any:
        """The client of the connection that stands, or of a new one."""
        if self._owner is None or self._owner.done():
            loop = asyncio.get_running_loop()
            self._ready, self._closing = loop.create_future(), asyncio.Event()
            # A task of its own: the client must be left where it was entered.
            owner = self._owner = loop.create_task(self._stay(self._ready, self._closing))
            _owners.append((owner, self._closing))
        assert self._ready
        return await asyncio.shield(self._ready)

    async def _stay(self, ready: asyncio.Future[Any], closing: asyncio.Event) -> None:
        try:
            async with AsyncExitStack() as stack:
                ready.set_result(await self._connected(stack))
                await closing.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(_one(error) if isinstance(error, Exception) else OSError())
                ready.exception()  # looked at: nobody may be waiting any more
            if not isinstance(error, Exception):
                raise

    async def _connected(self, stack: AsyncExitStack) -> Any:
        from mcp import Client, StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        server = self.server
        transport: Any
        if server.command:
            env = {name: os.environ[name] for name in server.pass_env} | server.env
            nowhere = os.open(os.devnull, os.O_WRONLY)
            transport = stdio_client(
                StdioServerParameters(
                    command=server.command, args=list(server.args), env=env, cwd=server.cwd
                ),
                errlog=stack.enter_context(os.fdopen(nowhere, "w")),
            )
        else:
            headers = {name: os.environ[held] for name, held in server.header_env.items()}
            http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
            transport = streamable_http_client(server.url, http_client=http)
        return await stack.enter_async_context(Client(transport))


def _one(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


# -- results --------------------------------------------------------------------------------------


def _value(result: Any) -> Any:
    """A result as ours: text or data, pictures and other bytes as files, links as sources."""
    blocks = getattr(result, "content", None) or []
    texts = [text for block in blocks if (text := _text(block))]
    if getattr(result, "is_error", False):
        raise Reported("\n".join(texts) or "the server gave no reason", may_pass=False)
    structured = getattr(result, "structured_content", None)
    files = [file for block in blocks if (file := _file(block))]
    # Beside bytes, data without text would be those bytes once more.
    value: Any = "\n".join(texts) if texts or files else structured
    if files:
        value = with_files(value or None, *files)
    sources = [
        Source(str(block.title or block.name), str(block.uri))
        for block in blocks
        if block.type == "resource_link"
    ]
    return with_sources(value, *sources) if sources else value


def _text(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "resource_link":
            return f"[{block.title or block.name}: {block.uri}]"
        case "resource":
            text = getattr(block.resource, "text", None)
            return str(text) if text is not None else ""
        case "image" | "audio":
            return ""
    return f"[{block.type}, not shown]"


def _file(block: Any) -> Attachable | Attachment | None:
    """The bytes of a block that is no text, under a name; None where it has none."""
    if block.type in ("image", "audio"):
        name, data = f"{block.type}.{block.mime_type.rpartition('/')[2] or 'bin'}", block.data
    elif block.type == "resource" and getattr(block.resource, "text", None) is None:
        name, data = str(block.resource.uri), block.resource.blob
    else:
        return None
    try:
        return name, base64.b64decode(data, validate=True)
    except ValueError:
        return Attachment(name, problem="its bytes are no base64")


# -- the thread -----------------------------------------------------------------------------------

_thread_lock = threading.Lock()
_running: asyncio.AbstractEventLoop | None = None
_owners: list[tuple[asyncio.Task[None], asyncio.Event]] = []


def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all connections, in a thread of its own: they outlive the loops that use them."""
    global _running
    with _thread_lock:
        if _running is None:
            _running = asyncio.new_event_loop()
            threading.Thread(target=_running.run_forever, name="mcp", daemon=True).start()
            atexit.register(_close_all)
        return _running


def _close_all() -> None:
    """End the servers that we have started, politely."""

    async def close() -> None:
        for _, closing in _owners:
            closing.set()
        await asyncio.wait([owner for owner, _ in _owners], timeout=CLOSE_S)

    if _running and _owners:
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(close(), _running).result(CLOSE_S + 1)
