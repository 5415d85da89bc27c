"""Every way in which two workers, one store and a bad network can go through a run of two tool
calls: the lease and commit protocol as a model, explored breadth first.

The model mirrors what the Lua scripts check, in their order. That it finds what each check is
there for is shown by leaving the check out. A model proves the design, and not the code: the state
machine of the contract tests and the simulation run the real scripts.
"""

from __future__ import annotations

from .rules import Bounds, Rules
from .search import Finding, explore
from .variants import VARIANTS, Variant

__all__ = ["VARIANTS", "Bounds", "Finding", "Rules", "Variant", "explore"]
