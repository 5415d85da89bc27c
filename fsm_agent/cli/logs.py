"""What the rooms below log, as talk on stderr."""

from __future__ import annotations

import os
import sys
from typing import Any

import structlog

from fsm_agent.cli.clean import one_line

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def set_up() -> None:
    """Warnings and worse as one line each; FSM_AGENT_LOG=info shows more."""
    level = _LEVELS.get(os.environ.get("FSM_AGENT_LOG", "warning").lower(), 30)
    structlog.configure(
        processors=[structlog.processors.add_log_level, _line],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _line(logger: Any, method: str, event: Any) -> str:
    name, level = event.pop("event"), event.pop("level", method)
    fields = ", ".join(f"{key} {value}" for key, value in event.items())
    return one_line(f"{level}: {name}: {fields}" if fields else f"{level}: {name}", 500)
