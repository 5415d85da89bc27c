"""A real fleet under real misfortune: workers are killed and frozen, the store's server is killed,
and at the end every run and every effect is counted."""

from __future__ import annotations

from .play import Plan, Report, play

__all__ = ["Plan", "Report", "play"]
