"""Functions that a model may call: what they take, what they do to the world, how they run."""

from .context import ToolContext
from .effects import cannot_tell, done, keyed, not_done, probed
from .registry import Tool, tool

__all__ = [
    "Tool",
    "ToolContext",
    "cannot_tell",
    "done",
    "keyed",
    "not_done",
    "probed",
    "tool",
]
