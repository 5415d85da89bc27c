"""An MCP server for tests, to be run as a process: over stdio, or with a port over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.types import (
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolAnnotations,
)

server = MCPServer("test")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look() -> str:
    """Look."""
    return "seen"


@server.tool(name="put/it", annotations=ToolAnnotations(idempotent_hint=True))
def put(text: str) -> str:
    return f"put {text}"


@server.tool()
def environment() -> dict[str, str]:
    return dict(os.environ)


@server.tool()
def fail() -> str:
    raise ValueError("no such order")


@server.tool()
async def slow(file: str) -> str:
    await asyncio.sleep(0.8)
    await asyncio.to_thread(Path(file).write_text, "late")
    return "done"


@server.tool()
def die() -> str:
    os._exit(1)


@server.tool(structured_output=False)
def links() -> list[TextContent | ResourceLink]:
    return [
        TextContent(type="text", text="two pages"),
        ResourceLink(type="resource_link", name="Page 1", uri="http://p/1"),
    ]


@server.tool(structured_output=False)
def pictures() -> list[ImageContent | EmbeddedResource]:
    blob = BlobResourceContents(uri="file:///out/notes.bin", blob="AAEC", mime_type="x/y")
    return [
        ImageContent(type="image", data="iVBORw0KGgo=", mime_type="image/png"),
        ImageContent(type="image", data="!no base64", mime_type="image/png"),
        EmbeddedResource(type="resource", resource=blob),
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(server.run_streamable_http_async(port=int(sys.argv[1])))
    else:
        server.run("stdio")
