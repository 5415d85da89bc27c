"""What a caller can watch of a run: entries once they are durable, and live text that is not."""

from __future__ import annotations

from typing import Literal

import msgspec

from .record import Record
from .state import State


class EntryEvent(msgspec.Struct, frozen=True):
    """An entry that is on record, with the state that the run has after it."""

    run_id: str
    seq: int
    state: State
    record: Record


class LiveEvent(msgspec.Struct, frozen=True):
    """Text of a reply or tool under way. Not durable; 'retracted' takes back the attempt's text."""

    run_id: str
    channel: Literal["thinking", "body", "progress", "retracted"]
    text: str
    attempt: int
    call_id: str = ""


class ParkedEvent(msgspec.Struct, frozen=True):
    """The run waits, and no process is held: for a person, or until `wake_ms`."""

    run_id: str
    status: Literal["waiting", "sleeping"]
    ask_ids: tuple[str, ...]
    wake_ms: int | None = None


Event = EntryEvent | LiveEvent | ParkedEvent
