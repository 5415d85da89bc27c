"""What the rooms below log, as talk on stderr."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

import structlog

from fsm_agent.cli.clean import one_line
from fsm_agent.observability.logs import Redacting, json_processors
from fsm_agent.run.redaction import Redactor, secret_values

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def set_up() -> None:
    """Warnings and worse as one line each, without secrets. FSM_AGENT_LOG=info shows more, and
    FSM_AGENT_LOG_FORMAT=json makes each line a JSON object."""
    wanted = os.environ.get("FSM_AGENT_LOG", "").strip().lower() or "warning"
    level = _LEVELS.get(wanted, _LEVELS["warning"])
    redactor = Redactor(secret_values(os.environ))
    talk: list[Any] = [structlog.processors.add_log_level, Redacting(redactor), _line]
    is_json = os.environ.get("FSM_AGENT_LOG_FORMAT", "").lower() == "json"
    structlog.configure(
        processors=json_processors(redactor) if is_json else talk,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_Talk,
        cache_logger_on_first_use=False,
    )
    if wanted not in _LEVELS:
        known = ", ".join(_LEVELS)
        _Talk().msg(one_line(f"warning: FSM_AGENT_LOG is {wanted!r}. It is one of {known}.", 200))


class _Talk:
    """Writes to what is stderr at that moment. One that is closed, or that nobody reads any more,
    loses the line and nothing else: what is logged has happened, and must not look as if it failed.
    """

    def __init__(self, *_: Any) -> None:
        pass

    def msg(self, line: str) -> None:
        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)

    debug = info = warning = warn = error = exception = critical = fatal = log = msg


def _line(logger: Any, method: str, event: Any) -> str:
    name, level = event.pop("event"), event.pop("level", method)
    fields = ", ".join(f"{key} {value}" for key, value in event.items())
    return one_line(f"{level}: {name}: {fields}" if fields else f"{level}: {name}", 500)
