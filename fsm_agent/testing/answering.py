"""What a script says to one request: an HTTP answer, or an error that says why there is none."""

from __future__ import annotations

import logging
from collections import Counter
from typing import NamedTuple

from fsm_agent.testing.script import (
    AnswerFunction,
    Attempts,
    Raw,
    Reply,
    Request,
    Response,
    Script,
    Unmatched,
    drifted,
    error_body,
    history_fault,
    rendered,
)

log = logging.getLogger(__name__)


class BadHistory(ValueError):
    """The messages of a request are such as OpenAI refuses."""


class Answered(NamedTuple):
    """The response, and why it is not the script's if it is not."""

    response: Raw
    error: Exception | None = None


class Answering:
    """A script at work. It remembers how often a conversation came, for `Attempts`.

    `strict`: refuse a history that OpenAI refuses.
    """

    def __init__(self, script: Script | AnswerFunction, *, strict: bool = True) -> None:
        self.script, self._strict = script, strict
        self._attempts: Counter[tuple[Attempts, str]] = Counter()

    async def answer(self, request: Request) -> Answered:
        """The script's answer. A request that it does not know gets 400, its own failure 500."""
        try:
            if self._strict and (fault := history_fault(request.messages)):
                raise BadHistory(fault)
            response = await self._resolved(request)
            seed = str(request.number) if self._is_drifting else ""
            return Answered(rendered(response, request, seed=seed))
        except Unmatched as error:
            log.warning("%s", error)
            # 400, for which no client tries again: the test fails at once, and says why.
            body = error_body(str(error), type="invalid_request_error", code="unmatched_request")
            return Answered(Raw(status=400, body=body), error)
        except BadHistory as error:
            log.warning("%s", error)
            body = error_body(str(error), type="invalid_request_error")
            return Answered(Raw(status=400, body=body), error)
        except Exception as error:
            log.exception("the script failed on request %d", request.number)
            body = error_body(f"the script raised {error!r}", type="server_error", code="script")
            return Answered(Raw(status=500, body=body), error)

    async def _resolved(self, request: Request) -> Response:
        if isinstance(self.script, Script):
            answer = self.script.answer(request)
        else:
            answer = await self.script(request)
        while not isinstance(answer, Response):
            if isinstance(answer, Attempts):
                answer = self._next_attempt(answer, request)
                continue
            answer = await answer(request)
        if isinstance(answer, Reply) and self._is_drifting:
            return drifted(answer, request.number)
        return answer

    @property
    def _is_drifting(self) -> bool:
        return isinstance(self.script, Script) and self.script.drifting

    def _next_attempt(self, attempts: Attempts, request: Request) -> Response:
        conversation = (attempts, attempts.key(request))
        self._attempts[conversation] += 1
        return attempts.pick(self._attempts[conversation] - 1)
