"""Events, requests and runs as JSON objects, one a line."""

from __future__ import annotations

import json
from typing import Any

from checkpoints.model import Head
from fsm_agent.audit import AuditRow
from fsm_agent.errors import CorruptRecord
from fsm_agent.run import codec
from fsm_agent.run.event import Event
from fsm_agent.runtime import Request, Result
from fsm_agent.telling.plain import plain, plain_event

JsonObject = dict[str, Any]

# JSON lets these through, and terminals obey them: they go out as escapes, which mean the same.
_ESCAPED = {
    code: f"\\u{code:04x}"
    for code in (*range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F),
                 *range(0x2066, 0x206A))
}  # fmt: skip


def line(value: JsonObject) -> str:
    """One object on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).translate(_ESCAPED)


def event(event: Event) -> JsonObject:
    """An event of a run. Facts carry the tag that they have on disk as `kind`."""
    return plain_event(event)


def request(request: Request) -> JsonObject:
    """Something that waits for a person. Its arguments are the canonical text that is hashed."""
    return {"event": "request"} | plain(request)


def audit(row: AuditRow) -> JsonObject:
    """A fact that bears on a decision, with the hash of its entry."""
    return {"event": "audit"} | plain(row)


def result(result: Result) -> JsonObject:
    """How a run stands."""
    shown = {"event": "result"} | plain(result)
    del shown["value"]  # any type; its JSON is the answer
    return shown


def head(head: Head) -> JsonObject:
    """A run as lists show it."""
    shown = {
        "event": "run",
        "run_id": head.run_id,
        "status": head.status,
        "seq": head.seq,
        "due_ms": head.due_ms,
        "owner": head.owner if head.lease_until_ms else None,
        "created_ms": head.created_ms,
        "updated_ms": head.updated_ms,
    }
    try:
        return shown | plain(codec.decode_snapshot(head.snapshot))
    except CorruptRecord as error:
        return shown | {"problem": str(error)}
