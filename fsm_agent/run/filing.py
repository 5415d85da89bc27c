"""For whom a run is, and how it stands to others: checked before it goes on record."""

from __future__ import annotations

from typing import get_args

from fsm_agent.errors import UsageError

from .content import clean_text
from .delta import Filed, OnBusy

MAX_NAME_CHARS = 180  # of a tenant or a thread
MAX_PRIORITY = 100


def checked_filing(tenant: str, priority: int, thread: str, on_busy: OnBusy) -> Filed:
    """How a run is filed. Raises UsageError."""
    for what, name in (("tenant", tenant), ("thread", thread)):
        if len(name) > MAX_NAME_CHARS or clean_text(name) != name or name != name.strip():
            raise UsageError(
                f"{name[:40]!r} is no {what}: use at most {MAX_NAME_CHARS} characters, without"
                " spaces around them."
            )
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise UsageError(f"{priority!r} is no priority: it is a whole number.")
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise UsageError(f"{priority} is no priority. Use -{MAX_PRIORITY} to {MAX_PRIORITY}.")
    if on_busy not in get_args(OnBusy):
        raise UsageError(f"on_busy is one of {', '.join(get_args(OnBusy))}, not {on_busy!r}.")
    if on_busy != "reject" and not thread:
        raise UsageError(
            f"on_busy={on_busy!r} says what happens while another run of the thread is active, and"
            " this run is given no thread. Name one with thread=…, or --thread."
        )
    return Filed(tenant, priority, thread, on_busy)
