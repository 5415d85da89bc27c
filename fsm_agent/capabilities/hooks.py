"""What the host of an agent may say while its runs go on: optional functions, sync or async.

Hooks are outside the journal. What one returns is on record with the step that it belongs to, and
a step that is on record is not asked about again; but a crash before that commit repeats the step,
and the hook with it. So a hook may be called more than once for the same step, in different
processes: let it look and decide, and make what it does to the world harmless to repeat.

A hook that raises, returns what it may not, or takes longer than `timeout_s` ends the run with the
reason `host`: every call has its result, and the history is whole. A run is a frozen value; to look
at it is all that can be done with it. Sync hooks run in the event loop, so they have to be quick.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fsm_agent.run.content import Call
from fsm_agent.run.delta import Replied, Settled
from fsm_agent.run.record import Run

Words = str | None | Awaitable[str | None]


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """The hooks of an agent. Each is optional, and returns words or None."""

    before_turn: Callable[[Run], Words] | None = None
    """Before each model call, but not before its retry after a failure of the provider.

    Words are told to the model, as a note after everything else: 'Turn 3 of 10.'
    """

    on_intermediate: Callable[[Run, Replied], Words] | None = None
    """After a good reply that neither calls tools nor ends the run, once it is on record.

    `reply.label` tells THINK from PAUSE, whose text is for the user. Words are told to the model.
    """

    validate_terminal: Callable[[Run, Any], Words] | None = None
    """Before an answer is accepted: its text, or its value where the agent has an output type.

    Words say what is wrong with it: the model is told, and may try again as often as after any
    violation (`limits.repairs`). None accepts it. Not asked about an answer that a tool gave or a
    limit forced without the model's words.
    """

    repair_message: Callable[[Run, str, str], Words] | None = None
    """Before a correction: the violation's name, and what the model would be told.

    Words take the correction's place; None leaves it as it is.
    """

    force_finalize: Callable[[Run], Words] | None = None
    """After each turn that would be followed by another one.

    Words make the model finish now, without further tools, and are told to it; the answer's reason
    is `host`. None goes on.
    """

    after_tool: Callable[[Run, Call, Settled], Words] | None = None
    """When a tool has run, before its result is on record; not for a call that a person settled.

    Words are shown to the model in place of the result's text; the whole output that is kept
    beside a long one stays as it was. If it raises, the result is on record as the tool gave it.
    """

    timeout_s: float = 30.0
