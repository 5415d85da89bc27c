"""What users test their agents with."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsm_agent.testing.model_server import ModelServer
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
    # Late: every pytest run imports this package for its plugin, and may need nothing of it; and
    # `python -m fsm_agent.testing.model_server` would otherwise have that module twice.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "model_server" if name == "ModelServer" else "script"
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
