"""Whole fleets in one thread, on a virtual clock: each seed is a run of the engine that nobody has
to wait for, and that can be run again to the letter.

The engine, the store's client and the scripts are the real ones; the event loop, the network, the
model, the tools and the people are simulated. What cannot be simulated is refused: threads,
sockets, processes.
"""

from __future__ import annotations

from .simulate import Outcome, simulate

__all__ = ["Outcome", "simulate"]
