"""Structs and events as plain JSON values, with the tags that they have on disk."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from fsm_agent.run.event import EntryEvent, Event, LiveEvent, ParkedEvent

JsonObject = dict[str, Any]


def plain_event(event: Event) -> JsonObject:
    """An event of a run. Facts carry the tag that they have on disk as `kind`."""
    match event:
        case EntryEvent(run_id, seq, state, record):
            return {
                "event": "entry",
                "run_id": run_id,
                "seq": seq,
                "state": state.value,
                "trigger": record.trigger.value if record.trigger else None,
                "at_ms": record.at_ms,
                "facts": [plain(delta) for delta in record.deltas],
            }
        case LiveEvent():
            return {"event": "live"} | plain(event)
        case ParkedEvent():
            return {"event": "parked"} | plain(event)
        case _:
            assert_never(event)


def plain(struct: msgspec.Struct) -> JsonObject:
    """A struct with its field names, and its tag as `kind`: on disk it is an array."""
    tag = struct.__struct_config__.tag
    named = {name: _value(getattr(struct, name)) for name in struct.__struct_fields__}
    return {"kind": tag} | named if tag else named


def _value(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return plain(value)
    if isinstance(value, (tuple, list)):
        return [_value(item) for item in value]
    return value
