"""What went wrong, as an answer that a program can read and a person can act on (RFC 9457)."""

from __future__ import annotations

from typing import Any

import structlog
from starlette.responses import Response

from checkpoints.errors import (
    AlreadyDecided,
    AlreadyVoted,
    AskClaimed,
    AskExpired,
    AskLocked,
    AskNotFound,
    BadRunId,
    CheckpointError,
    CorruptEntry,
    DecisionRefused,
    DecisionStale,
    RunBusy,
    RunClosed,
    RunExists,
    RunNotFound,
    StoreUnavailable,
    StoreUsageError,
    ThreadBusy,
)
from fsm_agent.errors import AgentError, NotAllowed, UsageError
from fsm_agent.inbox import wire

log = structlog.get_logger(__name__)


class Problem(Exception):
    """An answer other than success. `kind` is a fixed word, `more` goes into the answer."""

    def __init__(self, status: int, kind: str, words: str, **more: Any) -> None:
        super().__init__(words)
        self.status, self.kind, self.words, self.more = status, kind, words, more
        self.headers: dict[str, str] = more.pop("headers", {})

    def response(self) -> Response:
        """As problem JSON."""
        told: dict[str, Any] = {
            "type": f"urn:fsm-agent:{self.kind}",
            "title": self.kind.replace("-", " "),
        }
        told |= {"status": self.status, "detail": self.words}
        return Response(
            wire.encode(told | self.more),
            self.status,
            headers=self.headers,
            media_type="application/problem+json",
        )


def not_found(what: str = "There is nothing here.") -> Problem:
    """The same for what does not exist and for what is somebody else's."""
    return Problem(404, "not-found", what)


def problem_of(error: Exception) -> Problem:
    """The problem that an exception of ours is; any other is a fault of this program."""
    match error:
        case Problem():
            return error
        case AlreadyDecided() | AlreadyVoted():
            return Problem(
                409, "already-decided", str(error), by=error.by, at=error.at_ms, verb=error.verb
            )
        case AskClaimed():
            return Problem(409, "claimed", str(error), by=error.by, at=error.at_ms)
        case AskLocked():
            return Problem(409, "locked", str(error), unlock_ms=error.unlock_ms)
        case DecisionStale():
            return Problem(412, "stale", str(error), args_sha256=error.digest)
        case AskExpired():
            return Problem(410, "expired", str(error), expires_ms=error.expires_ms)
        case RunClosed():
            return Problem(410, "run-ended", str(error), run_status=error.status)
        case AskNotFound() | RunNotFound():
            return not_found(str(error))
        case BadRunId():
            return Problem(400, "bad-run-id", str(error))
        case RunExists():
            return Problem(409, "run-exists", str(error))
        case RunBusy():
            return Problem(409, "run-busy", str(error), until=error.until_ms)
        case ThreadBusy():
            return Problem(409, "thread-busy", str(error), run_id=error.active)
        case NotAllowed():
            return Problem(403, "not-allowed", str(error))
        case StoreUnavailable():
            away = {"Retry-After": "2"}
            words = "The store cannot be reached: nothing was recorded. Try again soon."
            return Problem(503, "store-unavailable", words, headers=away)
        case CorruptEntry():
            return Problem(500, "corrupt-entry", str(error), seq=error.seq)
        case UsageError() | StoreUsageError():
            return Problem(422, "unusable", str(error))
        case DecisionRefused():
            return Problem(409, "refused", str(error))
        case AgentError() | CheckpointError():
            return Problem(500, "failed", str(error))
        case _:
            log.error("inbox.fault", why=repr(error), exc_info=error)
            words = "This should not happen. The log of the inbox says more."
            return Problem(500, "fault", words)
