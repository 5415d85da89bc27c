"""The API as an OpenAPI document, from the same structs that bodies are held to."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fsm_agent.inbox.api_approvals import CommentBody, DecisionBody, NothingBody
from fsm_agent.inbox.api_runs import CancelBody, ForkBody, SayBody, StartBody
from fsm_agent.inbox.desk import json_answer
from fsm_agent.inbox.pages import ExplainBody

_BODIES = (
    DecisionBody, CommentBody, NothingBody, StartBody, CancelBody, ForkBody, SayBody, ExplainBody,
)  # fmt: skip
_PROBLEMS = {
    "400": "An id or a body that cannot be read",
    "401": "No credential, or one that does not count",
    "403": "This person may not do this",
    "404": "Nothing there, or nothing that this person may see",
    "409": "Somebody was first: `by`, `at` and `verb` say who, when and what",
    "410": "Expired, or the run has ended",
    "412": "Something else is asked now than what was looked at",
    "422": "The body does not fit",
}


@cache
def document_of() -> dict[str, Any]:
    """OpenAPI 3.1."""
    _, schemas = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    schemas["Problem"] = {
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "by": {"type": "string"},
            "at": {"type": "integer", "description": "Milliseconds since 1970"},
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "fsm-agent inbox", "version": metadata.version("fsm-agent")},
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
        "paths": _paths(),
    }


def _paths() -> dict[str, Any]:
    approval, run = "/v1/approvals/{approval_id}", "/v1/runs/{run_id}"
    return {
        "/v1/approvals": {"get": _operation("Requests, in the order to look at them", query=(
            "state", "assignee", "asked", "run_id", "tool", "limit", "cursor"))},
        approval: {"get": _operation("One request, with what helps to decide it")},
        f"{approval}/decision": {"post": _operation("Decide, once", DecisionBody, ("If-Match",))},
        f"{approval}/claim": {"post": _operation("Say that you look at it", NothingBody)},
        f"{approval}/release": {"post": _operation("Take the claim back", NothingBody)},
        f"{approval}/comment": {"post": _operation("Say something", CommentBody)},
        "/v1/inbox/events": {"get": _operation(
            "Server-sent events: the lists have changed", media="text/event-stream")},
        "/v1/runs": {
            "get": _operation("Runs, newest first", query=(
                "status", "agent", "tenant", "q", "limit")),
            "post": _operation("Start a run; idempotent by run_id", StartBody, status="201"),
        },
        run: {"get": _operation("How a run stands")},
        f"{run}/events": {"get": _operation(
            "Server-sent events: the journal, live. Last-Event-ID is the last seq seen",
            headers=("Last-Event-ID",), query=("after",), media="text/event-stream")},
        f"{run}/cancel": {"post": _operation("End a run", CancelBody, status="202")},
        f"{run}/resume": {"post": _operation(
            "Let a worker look at it now", NothingBody, status="202")},
        f"{run}/fork": {"post": _operation(
            "A new run from the first entries of this one", ForkBody, status="201")},
        f"{run}/say": {"post": _operation("Give it a further message", SayBody, status="202")},
        f"{run}/consents/{{consent_id}}/revoke": {
            "post": _operation("End a standing consent", NothingBody)},
        "/v1/policies/explain": {"post": _operation("Would a person be asked?", ExplainBody)},
    }  # fmt: skip


def _operation(
    summary: str,
    body: type[msgspec.Struct] | None = None,
    headers: tuple[str, ...] = (),
    *,
    query: tuple[str, ...] = (),
    status: str = "200",
    media: str = "application/json",
) -> dict[str, Any]:
    places = [("header", name) for name in headers] + [("query", name) for name in query]
    found: dict[str, Any] = {
        "summary": summary,
        "parameters": [
            {"name": name, "in": place, "required": False, "schema": {"type": "string"}}
            for place, name in places
        ],
        "responses": {
            status: {"description": "Done", "content": {media: {}}},
            **{code: _problem(words) for code, words in _PROBLEMS.items()},
        },
    }
    if body:
        ref = {"$ref": f"#/components/schemas/{body.__name__}"}
        is_required = any(field.required for field in msgspec.structs.fields(body))
        content = {"application/json": {"schema": ref}}
        found["requestBody"] = {"required": is_required, "content": content}
    return found


def _problem(words: str) -> dict[str, Any]:
    ref = {"$ref": "#/components/schemas/Problem"}
    return {"description": words, "content": {"application/problem+json": {"schema": ref}}}


@cache
def _whole() -> dict[str, Any]:
    document = document_of()
    for path, operations in document["paths"].items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        for operation in operations.values():
            operation["parameters"] += [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in names
            ]
    return document


async def document(request: Request) -> Response:
    """The document."""
    return json_answer(_whole())
