"""Moments as people say them."""

from __future__ import annotations

from datetime import datetime


def clock(at_ms: int) -> str:
    """A time of day, with the date if it was not today."""
    at = datetime.fromtimestamp(at_ms / 1000)
    form = "%H:%M:%S" if at.date() == datetime.now().date() else "%Y-%m-%d %H:%M:%S"
    return at.strftime(form)
