"""Who sits at this keyboard."""

from __future__ import annotations

import getpass


def operator() -> str:
    """The name of the operating system's user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"
