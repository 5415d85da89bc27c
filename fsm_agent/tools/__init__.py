"""Functions that a model may call: what they take, what they do to the world, how they run."""

from .attachments import with_files
from .context import ToolContext
from .effects import cannot_tell, done, keyed, not_done, probed
from .foreign import tool_from
from .isolation import Resources
from .mcp_tools import McpServer, mcp_servers, mcp_tools
from .outcomes import partial, pause, terminate, with_sources
from .registry import Tool, tool
from .rule import ask

__all__ = [
    "McpServer",
    "Resources",
    "Tool",
    "ToolContext",
    "ask",
    "cannot_tell",
    "done",
    "keyed",
    "mcp_servers",
    "mcp_tools",
    "not_done",
    "partial",
    "pause",
    "probed",
    "terminate",
    "tool",
    "tool_from",
    "with_files",
    "with_sources",
]
