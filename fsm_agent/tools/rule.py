"""What a tool demands of people before a call of it may run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fsm_agent.errors import BadAgent
from fsm_agent.run.delta import OnExpiry
from fsm_agent.run.tally import SoFar

from .functions import is_async, name_of

Predicate = Callable[[dict[str, Any]], bool | str] | Callable[[dict[str, Any], SoFar], bool | str]
_OUTCOMES = ("reject", "fail_run", "approve")
_LONGEST_S = 10 * 365 * 86_400.0
_MOST_LEVELS = 5


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When people are asked about a call, how many, and what becomes of it if they are silent.

    Made by `ask`, which states the meaning of each setting.
    """

    when: Literal[True] | Predicate | None = True  # None: never, but for `if_tainted`
    if_tainted: bool = False
    expires_s: float | None = None
    on_expiry: OnExpiry = "reject"
    quorum: int = 1
    not_requester: bool = False
    to: str = ""
    escalation: tuple[tuple[int, str], ...] = ()  # ms, whom

    @property
    def name(self) -> str:
        """What consents and verdicts call it: 'always', 'tainted', or the predicate's own name."""
        if self.when is None:
            return "tainted"
        return "always" if self.when is True else name_of(self.when)

    @property
    def sees_so_far(self) -> bool:
        """Whether the predicate wants to know what the run has spent."""
        return callable(self.when) and _takes_two(self.when)


Approval = Literal["always", "never"] | Predicate | Rule


def ask(
    *,
    when: Literal[True] | Predicate | None = None,
    if_tainted: bool = False,
    expires_s: float | None = None,
    on_expiry: OnExpiry = "reject",
    quorum: int = 1,
    not_requester: bool = False,
    to: str = "",
    escalate: Mapping[float, str] | None = None,
) -> Rule:
    """The `approval` of a tool that asks people on terms of its own.

    `when` is a function of the arguments, as in `approval=`; with a second parameter it is also
    given the run's `SoFar`, so that many small calls do not slip under a limit. Without it people
    are asked about every call.
    `if_tainted` also asks where arguments repeat words that a tool, a file or an event brought and
    no person said, as an injected order would have it; with no `when`, only there. No standing
    consent answers for such a call.
    `expires_s` is how long people have, by the store's clock. Then, by `on_expiry`, the call is
    refused ('reject'), the run ends ('fail_run'), or the call runs ('approve': silence counts as
    consent, so say it only where that is meant).
    `quorum` people must agree, each a different one; one who rejects is enough to reject.
    With `not_requester` whoever started the run may not decide.
    `to` says whom to ask, such as a group, and `escalate` whom besides, each after so many seconds
    without a decision: `{600: "leads", 3600: "head of support"}`. Both are shown with the request
    and go into notices. They take the right to decide from nobody.

    Raises BadAgent for terms that cannot work.
    """
    if when is None and not if_tainted:
        when = True
    if not (when is None or when is True or callable(when)):
        raise BadAgent(f"ask(when={when!r}): give True, or a function of the arguments.")
    if callable(when) and is_async(when):
        raise BadAgent("ask(when=…) is an async function. It has to decide at once.")
    if expires_s is not None and not 0 < expires_s <= _LONGEST_S:
        raise BadAgent(f"ask(expires_s={expires_s}) must be a positive number of seconds.")
    if on_expiry not in _OUTCOMES:
        raise BadAgent(f"ask(on_expiry={on_expiry!r}): use one of {', '.join(_OUTCOMES)}.")
    if on_expiry != "reject" and expires_s is None:
        raise BadAgent(f"ask(on_expiry={on_expiry!r}) never happens without expires_s=….")
    if isinstance(quorum, bool) or not isinstance(quorum, int) or quorum < 1:
        raise BadAgent(f"ask(quorum={quorum!r}) must be 1 or more people.")
    if not isinstance(to, str):
        raise BadAgent(f"ask(to={to!r}) must be a name.")
    return Rule(
        when=when,
        if_tainted=bool(if_tainted),
        expires_s=expires_s,
        on_expiry=on_expiry,
        quorum=quorum,
        not_requester=not_requester,
        to=to,
        escalation=_levels(escalate or {}, expires_s),
    )


def _levels(escalate: Mapping[float, str], expires_s: float | None) -> tuple[tuple[int, str], ...]:
    """The steps in the order of time, in ms. Raises BadAgent for those that cannot work."""
    if not isinstance(escalate, Mapping) or len(escalate) > _MOST_LEVELS:
        raise BadAgent(
            f"ask(escalate={escalate!r:.100}): give up to {_MOST_LEVELS} pairs of seconds and "
            "a name."
        )
    for after_s, to in escalate.items():
        is_number = isinstance(after_s, (int, float)) and not isinstance(after_s, bool)
        if not is_number or not 0 < after_s <= _LONGEST_S:
            raise BadAgent(
                f"ask(escalate={{{after_s!r}: …}}) must be a positive number of seconds."
            )
        if not isinstance(to, str) or not to.strip():
            raise BadAgent(f"ask(escalate={{{after_s!r}: {to!r}}}) needs a name.")
        if expires_s is not None and after_s >= expires_s:
            raise BadAgent(
                f"ask(escalate={{{after_s!r}: …}}) never happens: the request ends after "
                f"{expires_s:g} s."
            )
    return tuple((int(after_s * 1000), to) for after_s, to in sorted(escalate.items()))


def rule_of(approval: Approval) -> Rule | None:
    """What an `approval=` means; None: nobody is asked."""
    if isinstance(approval, Rule):
        return approval
    if approval == "never":
        return None
    return Rule() if approval == "always" else Rule(when=approval)


def _takes_two(predicate: Predicate) -> bool:
    """Whether it has a second parameter that must be given, or one that is named for it."""
    try:
        parameters = list(inspect.signature(predicate).parameters.values())
    except (TypeError, ValueError):
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = [p for p in parameters if p.kind in places][1:2]
    return bool(second) and (second[0].default is second[0].empty or second[0].name == "so_far")
