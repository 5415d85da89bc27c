"""What an agent says of how its runs are judged."""

from __future__ import annotations

import msgspec

from fsm_agent.errors import BadAgent

from .policy import POLICIES
from .scene import Policy, Progress


class Reflection(msgspec.Struct, frozen=True, kw_only=True):
    """The policies of REFLECT and their settings.

    `policies` are functions `(run, scene) -> verdict`, asked in this order after each turn; the
    gravest verdict decides. Add your own to `POLICIES`, or leave some out. They must be pure: a
    resumed run asks them again. `may_repeat` names tools whose repeats are no loop, such as one
    that waits or polls.
    """

    policies: tuple[Policy, ...] = POLICIES
    progress: Progress = Progress()
    may_repeat: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.may_repeat, str):
            name = self.may_repeat
            raise BadAgent(f"Reflection: may_repeat is the string {name!r}. Give a tuple of names.")
        for policy in self.policies:
            if not callable(policy):
                raise BadAgent(
                    f"Reflection: {policy!r} is no policy. Give a function (run, scene)."
                )
