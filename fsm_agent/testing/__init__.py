"""What users test their agents with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsm_agent.testing.script import (
    Attempts,
    Drop,
    Hang,
    HttpError,
    Raw,
    Reply,
    Request,
    Script,
    StreamError,
    ToolCall,
    Usage,
    call,
    otherwise,
    when,
)

if TYPE_CHECKING:
    from fsm_agent.testing.model_server import ModelServer

__all__ = [
    "Attempts",
    "Drop",
    "Hang",
    "HttpError",
    "ModelServer",
    "Raw",
    "Reply",
    "Request",
    "Script",
    "StreamError",
    "ToolCall",
    "Usage",
    "call",
    "otherwise",
    "when",
]


def __getattr__(name: str) -> Any:
    # Late, because `python -m fsm_agent.testing.model_server` would otherwise have it twice.
    if name == "ModelServer":
        from fsm_agent.testing.model_server import ModelServer

        return ModelServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
