"""Killing an agent's process at every point that matters, and counting what it did to the world.

A sweep runs a scenario once undisturbed and writes down every point it passes: before and after
each writing call to the store, around each tool, and after each effect, and each request to the
store. Then it runs it again for each point and fault, in forked processes that really die, lets
other processes finish the run, and has the whole judged: see `oracles`.
"""

from .case import Case, Strike
from .children import fork, in_child, wait_for
from .evidence import Outcome
from .ledger import Ledger
from .people import Person, approving_only, truthful_person
from .report import Report
from .scenario import Scenario
from .sweep import Plan, SweepFailed, sweep

__all__ = [
    "Case",
    "Ledger",
    "Outcome",
    "Person",
    "Plan",
    "Report",
    "Scenario",
    "Strike",
    "SweepFailed",
    "approving_only",
    "fork",
    "in_child",
    "sweep",
    "truthful_person",
    "wait_for",
]
